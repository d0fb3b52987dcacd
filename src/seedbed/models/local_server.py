"""The process of the embedded model: `python -m seedbed.models.local_server '{"weights": …}'`.

Prints `listening http://…` when it can be spoken to, and ends when its standard input does: the parent holds that, so
no server outlives its build.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main(options: dict[str, Any]) -> None:
    """Serve until standard input ends."""
    xllamacpp = importlib.import_module("xllamacpp")  # an extra, and without types
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options["weights"]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_parallel = options["parallel"]
    parameters.n_ctx = options["context_size"] * options["parallel"]
    parameters.cpuparams.n_threads = options["threads"]
    parameters.cpuparams_batch.n_threads = options["threads"]
    parameters.embedding = options["embeddings"]
    parameters.verbosity = -1
    if options["chat_template"] is not None:
        parameters.chat_template = options["chat_template"]
    try:
        server = xllamacpp.Server(parameters)
    except Exception as error:  # noqa: BLE001  whatever native code raises, the parent wants one line
        say(f"failed {' '.join(str(error).split()) or type(error).__name__}")
        return
    say(f"listening {server.listening_address}")
    while os.read(0, 1024):
        pass
    os._exit(0)  # threads of native code would be waited for


def say(line: str) -> None:
    """Write a line where the parent reads."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
