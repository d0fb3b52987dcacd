"""The test server as a process: `python -m seedbed.testing '{"latency": 0.05}'` prints its base URL and serves.

It ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import trio

from .server import serve_openai


async def main(options: dict[str, Any]) -> None:
    """Serve until standard input ends."""
    async with serve_openai(**options) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        # The parent holds the other end of stdin: a server whose parent is gone has nobody left to serve.
        stdin = trio.lowlevel.FdStream(sys.stdin.fileno())
        while await stdin.receive_some(1):
            pass


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))
