"""The child process of test_signals.py: a build that says where it is and continues on request.

``python signalled_build.py DIRECTORY MODE HOST`` builds three row groups of two rows. It writes a line to standard
output whenever something happens that its parent waits for, and reads a line of standard input as leave to continue.
MODE says where it waits: in a cell, in one that ignores cancellation or blocks the loop, at the start, or at the end.
HOST says what it is called from: a plain script, or a function that runs in an asyncio loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

import seedbed as sb
from seedbed.engine import api

if TYPE_CHECKING:
    import polars as pl

    from seedbed.engine.storage import Stores

GO = threading.Event()


def say(word: str) -> None:
    """Tell the parent."""
    os.write(1, f"{word}\n".encode())


def listen() -> None:
    """Wait for the parent's leave to continue."""
    os.read(0, 1)
    GO.set()


async def numbers(rows: range) -> list[int]:
    """Fill a column with the numbers of its rows."""
    return list(rows)


class Cells:
    """A column whose first row group is quick; what the others do depends on the mode."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._group_done = trio.Event()

    def see(self, event: object) -> None:
        """Note that the first row group is on disk."""
        if type(event).__name__ == "RowGroupFinished":
            self._group_done.set()

    async def agenerate(self, n: int) -> int:
        """Wait where the mode says."""
        if n < 2 or self._mode in {"start", "end"}:
            return n
        await self._group_done.wait()
        say("waiting")
        if self._mode == "blocks":
            while True:  # a handler runs between two of these
                say("tick")
                GO.wait(0.01)
        try:
            await wait_for_go()
        except trio.Cancelled:
            if self._mode != "ignores":
                raise
            say("cancelled")
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()
        return n


async def wait_for_go() -> None:
    """Wait for the parent without keeping the loop from anything."""
    await trio.to_thread.run_sync(GO.wait, abandon_on_cancel=True)


def wait_at_start(plan: Any, out: Path) -> Stores:
    """Hold up the making of the output directory."""
    say("waiting")
    GO.wait()
    return open_stores(plan, out)


def wait_at_end(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Hold up the end of a build whose rows are all there."""
    say("waiting")
    GO.wait()
    return frame


def stop(build: sb.Build) -> None:
    """Say that a signal has arrived."""
    real_stop(build)
    say("stopped")


open_stores, real_stop = api.open_stores, sb.Build.stop


def main(directory: Path, mode: str) -> int:
    """Run the build; the exit status says how it ended."""
    threading.Thread(target=listen, daemon=True).start()
    sb.Build.stop = stop  # type: ignore[method-assign]
    if mode == "start":
        api.open_stores = wait_at_start
    cells = Cells(mode)
    try:
        sb.build(
            [sb.Column("n", numbers, kind="from_scratch"), sb.Column("x", cells)],
            rows=6,
            out=directory,
            config=sb.RunConfig(buffer_size=2, grace=3_600),
            processors=[sb.Processor(stage="after_generation", apply=wait_at_end)] if mode == "end" else [],
            readers=[cells.see],
        )
    except sb.Interrupted as interrupted:
        report = interrupted.report
        say("no report" if report is None else f"interrupted {report.written} {sum(map(len, report.unfinished))}")
        return 3
    say("through")
    return 0


async def in_loop(directory: Path, mode: str) -> int:
    """Call it as a notebook does: synchronously, on the thread of a running loop."""
    return main(directory, mode)


if __name__ == "__main__":
    where, how = Path(sys.argv[1]), sys.argv[2]
    sys.exit(main(where, how) if sys.argv[3] == "script" else asyncio.run(in_loop(where, how)))
