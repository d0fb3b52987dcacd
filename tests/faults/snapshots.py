"""Builds in virtual time, and what a SIGKILL would have left of them at any of their fault points.

The store's threads are made to work one after the other, and what is on disk is copied whenever one of them reaches a
point: the copy is the directory as the kill would have left it, and one run gives as many of them as it has points.
"""

from __future__ import annotations

import shutil
import zlib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs
import trio
from shapes import RETRIES, Shape, Trouble, answer_to, make_processors, make_recipe, raise_status
from trio.testing import MockClock

import seedbed as sb
from seedbed.engine import services as services_module
from seedbed.runtime import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Cell = tuple[str, int]


@attrs.frozen
class Snapshot:
    """What there is if the process is killed at its `number`-th point, and what had happened until then."""

    number: int
    point: str
    directory: Path
    time: float
    delivered: dict[Cell, float]
    """When each model cell was answered."""
    seen: dict[Cell, int]
    """How often each model cell was asked for, by this run and those before."""


@attrs.define(eq=False)
class World:
    """Everything outside a build: the models, which count, and the instants at which they answered."""

    shape: Shape
    latency: float = 0.2
    trouble: Trouble = attrs.Factory(lambda self: Trouble(self.shape), takes_self=True)
    asked: list[Cell] = attrs.Factory(list)
    delivered: dict[Cell, float] = attrs.Factory(dict)

    async def ask(self, column: str, row: int, prompt: str) -> str:
        """Answer after a while, each prompt in its own time."""
        self.asked.append((column, row))
        await trio.sleep(self.latency * (zlib.crc32(prompt.encode()) % 32) / 31)
        raise_status(self.trouble.status(column, row))
        self.delivered[column, row] = trio.current_time()
        return answer_to(prompt)

    def since(self, snapshot: Snapshot) -> World:
        """The world after a kill."""
        after = World(self.shape, self.latency)
        after.trouble.seen.update(snapshot.seen)
        return after


@contextmanager
def hooked(hook: Callable[[str], None] | None) -> Iterator[None]:
    """Have something done at every fault point, with the store's threads one after the other."""
    threads, services_module.STORE_THREADS = services_module.STORE_THREADS, 1
    faults.hook = hook
    try:
        yield
    finally:
        faults.hook = None
        services_module.STORE_THREADS = threads


def grow(
    world: World,
    out: Path,
    *,
    into: Path | None = None,
    wanted: Callable[[int], bool] = lambda _: True,
    **options: Any,
) -> tuple[sb.Dataset, list[Snapshot]]:
    """Begin or continue with a build and see it through; copies of what it has on disk go `into` a directory.

    `wanted` says of the number of a point whether a copy is wanted.
    """
    clock = MockClock(autojump_threshold=0)
    snapshots: list[Snapshot] = []
    points = 0
    run_options = {
        "jitter_seed": 1,
        "buffer_size": world.shape.buffer_size,
        **RETRIES,
        **options.pop("run_options", {}),
    }

    def copy(point: str) -> None:
        nonlocal points
        points += 1
        if into is None or not wanted(points):
            return
        target = into / f"{points}"
        if out.exists():
            shutil.copytree(out, target)
        snapshots.append(
            Snapshot(points, point, target, clock.current_time(), dict(world.delivered), dict(world.trouble.seen))
        )

    async def main() -> sb.Dataset:
        async with sb.open_build(
            make_recipe(world.shape, ask=world.ask),
            rows=world.shape.rows,
            out=out,
            config=sb.RunConfig(**run_options),
            processors=make_processors(world.shape),
            **{"resume": True, **options},
        ) as build:
            with suppress(sb.AllRowsDropped):
                await build.wait()
            return build.dataset

    with hooked(copy):
        return trio.run(main, clock=clock), snapshots


def check_paid_once(snapshot: Snapshot, after: World, interval: float) -> None:
    """What had been answered before the kill, and longer ago than a commit takes to come, is not sent again."""
    durable = {cell for cell, when in snapshot.delivered.items() if when < snapshot.time - interval - 1e-6}
    again = durable & set(after.asked)
    assert not again, f"asked again after a kill at {snapshot.point!r} ({snapshot.number}): {sorted(again)[:5]}"
