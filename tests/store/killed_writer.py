"""The child process of test_kill.py: writes a dataset again and again, each time killed one step later.

``python killed_writer.py DIRECTORY`` makes DIRECTORY/0, DIRECTORY/1 and so on, each by a process of its own that kills
itself at its n-th step, until one gets to the end. The names of the steps are printed, one a line.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path

import polars as pl

from seedbed.observe.report import Drop
from seedbed.runtime import faults
from seedbed.store.manifest import GroupRecord, Header
from seedbed.store.writer import DatasetWriter

HEADER = Header(rows=4, buffer_size=2, columns=("a", "b"), publishes_at_end=True, created=0.0, version="0")


def write(directory: Path, survive: int, steps: int) -> None:
    """Write two row groups, add a row to one, rewrite one at the end, and publish what a processor returned."""
    done = 0

    def hook(name: str) -> None:
        nonlocal done
        os.write(steps, f"{name}\n".encode())
        if done == survive:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1

    drop = Drop(row=1, column="b", attempts=3, error="no", kind="failed")
    faults.hook = hook
    with DatasetWriter.create(directory, HEADER) as writer:
        writer.write_group(GroupRecord(index=0, start=0, stop=2, drops=(drop,)), {"a": [1], "b": [None]})
        writer.write_group(GroupRecord(index=1, start=2, stop=4), {"a": [0.5, 2.5], "b": ["x", "y"]})
        writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [7], "b": [None]}, order=[1, 0])
        writer.unify()
        writer.publish(pl.DataFrame({"z": [1, 2, 3]}))
        writer.finish()


def main(root: Path) -> None:
    """Start a process for each number of steps to survive."""
    for survive in count():
        steps, inherited = os.pipe()
        child = os.fork()
        if child == 0:
            # Forked while nothing but imports has run, so no thread of a library is in the middle of anything.
            write(root / str(survive), survive, inherited)
            os._exit(0)
        os.close(inherited)
        with open(steps, encoding="utf-8") as names:  # noqa: PTH123 - a descriptor
            last = names.read().splitlines()[-1]
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            print(last, flush=True)  # noqa: T201 - read by the test
        elif os.waitstatus_to_exitcode(status) == 0:
            return
        else:
            sys.exit(f"the writer of {survive} ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
