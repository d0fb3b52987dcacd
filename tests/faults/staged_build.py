"""A build with stages in a process that kills itself: `staged_build.py OUT POINT NTH`, the NTH time at a fault point.

It prints every cell that was answered. With POINT `none` it runs to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import trio
from staged import World, recipe

import seedbed as sb
from seedbed.runtime import faults


def main(out: str, point: str, nth: int) -> None:
    """Build or resume in `out`."""
    world, reached = World(pace=0.03), 0

    def hook(name: str) -> None:
        nonlocal reached
        reached += name == point
        if name == point and reached == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    faults.hook = hook

    async def build() -> None:
        config = sb.RunConfig(buffer_size=3, jitter_seed=1, commit_interval=0.002)
        async with sb.open_build(recipe(world), rows=20, out=Path(out), resume=True, config=config) as running:
            await running.wait()

    trio.run(build)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
