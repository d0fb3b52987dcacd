"""The child process of test_two_processes.py: a build that says that it runs and does not end.

``python locked_build.py DIRECTORY [process]``: its one cell hangs, in a worker process if asked.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import seedbed as sb


def hang(n: int) -> int:
    """Tell the parent that the cell was reached, and stay in it."""
    os.write(1, f"{os.getpid()}\n".encode())
    time.sleep(3_600)
    return n


def numbers(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


def columns(*, process: bool) -> list[sb.Column]:
    """What both processes build."""
    return [sb.Column("n", numbers, kind="from_scratch"), sb.Column("v", hang, process=process)]


if __name__ == "__main__":
    sb.build(columns(process=sys.argv[2:] == ["process"]), rows=1, out=Path(sys.argv[1]))
