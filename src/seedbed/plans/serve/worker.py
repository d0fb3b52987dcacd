"""One of several processes of `seedbed plan serve`; started by `processes.py` with the listening socket."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from .processes import ServerConfig, run_worker
from .service import ServeConfig


def main(arguments: list[str]) -> None:
    """Serve on the socket with that number: `LISTENER PARENT METRICS_FOLDER CONFIG`."""
    listener, parent, folder, stored = arguments
    values: dict[str, Any] = msgspec.json.decode(stored)
    config = ServerConfig(**{**values, "serve": ServeConfig(**values["serve"])})
    run_worker(config, socket.socket(fileno=int(listener)), Path(folder), int(parent))


if __name__ == "__main__":
    main(sys.argv[1:])
