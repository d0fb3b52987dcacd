"""Processes of the viewer.

`python -m seedbed.view DIR` serves beside a run: it prints its URL and ends when its standard input is closed.
`python -m seedbed.view --statistics DIR [STAGE]` prints the statistics of a dataset.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from . import STATISTICS, save_memory


async def closed() -> None:
    """Wait until the process that started this one has ended, however it did."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


def announce(url: str) -> None:
    """Tell the process that started this one where the page is."""
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    save_memory()
    if sys.argv[1] == STATISTICS:
        from .reading import statistics

        sys.stdout.write(json.dumps(statistics(Path(sys.argv[2]), *sys.argv[3:])))
    else:
        from .server import serve

        serve([Path(sys.argv[1])], announce=announce, until=closed)
