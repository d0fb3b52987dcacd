"""Builds in memory, and columns that record their calls."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
import trio

from seedbed import Column, RunConfig, open_build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from seedbed import BuildReport, FinishedGroup, Recipe

FAST = RunConfig(jitter_seed=1)
"""The defaults, with waits that are the same in every run."""


@attrs.frozen
class Grown:
    """What a build in memory gave."""

    groups: list[FinishedGroup]
    """In the order in which they finished."""
    report: BuildReport

    @property
    def frame(self) -> pl.DataFrame:
        """All rows, in declared order."""
        ordered = sorted(self.groups, key=lambda group: group.row_group)
        frames = [frame for group in ordered if (frame := group.to_polars()).height]
        return pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame()

    def column(self, name: str) -> list[Any]:
        """The values of one column, in declared order."""
        frame = self.frame
        return frame[name].to_list() if frame.height else []


async def grow(columns: Recipe | Iterable[Column], *, rows: int, config: RunConfig = FAST, **options: Any) -> Grown:
    """Build in memory and wait for the end."""
    async with open_build(columns, rows=rows, config=config, **options) as build:
        groups = [group async for group in build]
        return Grown(groups, build.report)


def config(**options: Any) -> RunConfig:
    """The fast configuration with some options changed."""
    return attrs.evolve(FAST, **options)


def seed(name: str = "n", **options: Any) -> Column:
    """A column made from scratch: the row's number."""

    async def numbers(rows: range) -> list[int]:
        return list(rows)

    return Column(name, numbers, kind="from_scratch", **options)


@attrs.define
class Watched:
    """An async cell function of one column `n`, which notes when it runs and for which rows.

    `act(n, attempt)` may raise or return the value; without it the value is `n`.
    """

    seconds: float = 1.0
    act: Callable[[int, int], Any] | None = None
    started: list[tuple[float, int]] = attrs.Factory(list)
    finished: list[tuple[float, int]] = attrs.Factory(list)
    cancelled: list[tuple[float, int]] = attrs.Factory(list)
    attempts: Counter[int] = attrs.Factory(Counter)
    running: int = 0
    peak: int = 0

    async def agenerate(self, n: int) -> Any:
        """Fill one cell."""
        self.started.append((trio.current_time(), n))
        self.attempts[n] += 1
        attempt = self.attempts[n]
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.cancelled.append((trio.current_time(), n))
            raise
        finally:
            self.running -= 1
        self.finished.append((trio.current_time(), n))
        return n if self.act is None else self.act(n, attempt)
