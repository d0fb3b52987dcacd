"""The child process of test_signals.py that is killed: a build that says when each task and row group is done.

``python killed_build.py DIRECTORY`` builds ten row groups of five rows; a line of standard output for every event.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

import seedbed as sb


async def numbers(rows: range) -> list[int]:
    """Fill a column with the numbers of its rows."""
    return list(rows)


async def squares(n: int) -> int:
    """Fill a cell after a moment."""
    await trio.lowlevel.checkpoint()
    return n * n


def texts(n: int) -> str:
    """Fill a cell in a thread."""
    return f"row {n}"


def say(event: object) -> None:
    """Tell the parent what happened."""
    os.write(1, f"{type(event).__name__} {getattr(event, 'row_group', '')}\n".encode())


if __name__ == "__main__":
    sb.build(
        [sb.Column("n", numbers, kind="from_scratch"), sb.Column("squares", squares), sb.Column("texts", texts)],
        rows=50,
        out=Path(sys.argv[1]),
        config=sb.RunConfig(buffer_size=5),
        readers=[say],
    )
