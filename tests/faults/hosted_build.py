"""The child process of test_host_shutdown.py: a build under asyncio that gets a real Ctrl-C.

``python hosted_build.py DIRECTORY HOW`` builds under `asyncio.run`, under a loop that is run by hand, or under anyio,
and prints "waiting" when its cells wait. Then it runs another loop in the same thread, to show that trio can run in it
again, and resumes the directory.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import trio

import seedbed as sb

CONFIG = sb.RunConfig(buffer_size=2)


def say(word: str) -> None:
    """Write a line to the parent, unbuffered."""
    os.write(1, f"{word}\n".encode())


async def numbers(rows: range) -> list[int]:
    """Fill a column with the numbers of its rows."""
    return list(rows)


async def waits(n: int) -> int:
    """Wait forever, except in the first rows."""
    if n >= 2:
        try:
            # Inside the block: in a loop that is run by hand the Ctrl-C may be raised right after this line.
            say("waiting")
            await trio.sleep_forever()
        finally:
            say("unwound")
    return n


async def plain(n: int) -> int:
    """Fill the same column at once."""
    return n


async def build(directory: Path, fill: Any, *, resume: bool = False) -> sb.Dataset:
    """Build or resume."""
    columns = [sb.Column("n", numbers, kind="from_scratch"), sb.Column("x", fill)]
    return await sb.build_async(columns, rows=6, out=directory, config=CONFIG, resume=resume, accept_changes=resume)


def by_hand(directory: Path) -> None:
    """Run a loop as old programs do: remaining tasks are cancelled at the end."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(build(directory, waits))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def main(directory: Path, how: str) -> None:
    """Build until interrupted, then resume."""
    try:
        if how == "asyncio":
            asyncio.run(build(directory, waits))
        elif how == "anyio":
            anyio.run(build, directory, waits)
        else:
            by_hand(directory)
    except KeyboardInterrupt:
        say(f"interrupted {trio.lowlevel.in_trio_run()}")
    dataset = asyncio.run(build(directory, plain, resume=True))
    names = {thread.name.split()[0] for thread in threading.enumerate()}
    say(f"rows {dataset.rows} {' '.join(sorted(names))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
