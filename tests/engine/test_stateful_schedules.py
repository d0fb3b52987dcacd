"""A stateful column sees the same rows in the same order under every schedule: outcomes decide, not timing."""

from __future__ import annotations

import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import seedbed as sb

if TYPE_CHECKING:
    import polars as pl

CONFIG = sb.RunConfig(
    jitter_seed=1,
    shutdown_error_rate=1,
    salvage_error_threshold=1,
    salvage_max_rounds=1,
    backoff_base=0.5,
    backoff_max=1,
    commit_interval=0.001,
)


@attrs.define(eq=False)
class Chain:
    """A stateful generator whose every value depends on all calls before; `seen` are its calls in this process."""

    world: World
    seen: list[str] = attrs.Factory(list)
    state: int = 0

    def step(self, what: str) -> str:
        """One call."""
        self.seen.append(what)
        self.state = (self.state * 31 + sum(map(ord, what))) % 99_991
        return f"{what}@{self.state}"


class CellChain(Chain):
    """For cells; it cannot tell its state."""

    is_stateful = True

    async def agenerate(self, n: int, up: int, whole: int) -> str:
        value = self.step(f"{n}/{up}/{whole}")
        await self.world.turn("state", n)
        return value


class KeptChain(Chain):
    """For whole columns; it can tell its state."""

    is_stateful = True

    async def agenerate(self, frame: pl.DataFrame) -> list[str]:
        found = [self.step(f"w{n}") for n in frame["n"]]
        await self.world.turn("group", frame["n"][0])
        return found

    def get_state(self) -> Any:
        """Everything that the next call depends on."""
        return self.state

    def set_state(self, state: Any) -> None:
        """Go on from there."""
        self.state = state


class SeedChain(Chain):
    """For a column from scratch."""

    is_stateful = True

    async def agenerate(self, rows: range) -> list[str]:
        found = [self.step(f"s{n}") for n in rows]
        await self.world.turn("seed", rows[0])
        return found


@attrs.define(eq=False)
class World:
    """Outcomes by cell, latencies by schedule, and when to stop."""

    faults: dict[tuple[str, int], str]
    schedule: int
    stop_at: float | None = None
    plays: dict[tuple[str, int], int] = attrs.Factory(dict)

    async def turn(self, column: str, n: int) -> None:
        """Take a while that depends on the schedule; end as the outcome of the cell says."""
        await trio.sleep(random.Random(repr((self.schedule, column, n))).choice([0, 0.1, 1, 3, 10]))
        fate = self.faults.get((column, n))
        self.plays[column, n] = self.plays.get((column, n), 0) + 1
        if fate == "fails":
            raise sb.Permanent("scripted")
        if fate == "always again" or (fate == "again" and self.plays[column, n] == 1):
            raise sb.Retryable("scripted")

    def columns(self) -> tuple[list[sb.Column], list[Chain]]:
        """A chain of columns with stateful ones, columns beside it and one behind it."""
        chains = [CellChain(self), KeptChain(self), SeedChain(self)]

        async def before(n: int) -> int:
            await self.turn("before", n)
            return n

        async def up(n: int) -> int:
            await self.turn("up", n)
            return n + 1

        async def whole(frame: pl.DataFrame) -> list[Any]:
            await self.turn("whole", frame["n"][0])
            bad = {n for column, n in self.faults if column == "in whole"}
            return [sb.Permanent("in whole") if n in bad else frame.height for n in frame["n"]]

        async def after(n: int, state: str) -> str:
            await self.turn("after", n)
            return state.upper()

        async def other(n: int) -> int:
            await self.turn("other", n)
            return -n

        cell, kept, seed = chains
        return [
            sb.Column("n", lambda rows: [*rows], kind="from_scratch"),
            sb.Column("seed", seed, kind="from_scratch"),
            sb.Column("before", before),
            sb.Column("up", up),
            sb.Column("whole", whole, kind="full_column", requires=["n", "up"]),
            sb.Column("state", cell),
            sb.Column("group", kept, kind="full_column", requires=["n", "before"]),
            sb.Column("after", after),
            sb.Column("other", other),
        ], chains

    def run(self, out: Path | None, *, rows: int, **options: Any) -> tuple[Any, list[Chain]]:
        """Build it, or as much of it as there is time for."""
        columns, chains = self.columns()
        run_options = {name: options.pop(name) for name in ("engine", "buffer_size", "max_concurrent_row_groups")}
        config = attrs.evolve(CONFIG, **run_options)

        async def main() -> Any:
            async with sb.open_build(columns, rows=rows, out=out, config=config, **options) as build:
                if self.stop_at is None:
                    groups = {group.row_group: group.to_polars().rows() async for group in build}
                    return groups, {drop.row for drop in build.report.dropped}
                # Two stops end it at once, as a kill after the last commit would.
                with trio.move_on_after(self.stop_at), suppress(sb.AllRowsDropped):
                    await build.wait()
                    return None
                build.stop()
                build.stop()
                with suppress(sb.Interrupted, sb.AllRowsDropped):
                    await build.wait()
            return None

        return trio.run(main, clock=MockClock(autojump_threshold=0)), chains


FAULTS = st.dictionaries(
    st.tuples(st.sampled_from(["before", "up", "whole", "in whole", "state", "group", "after", "other", "seed"]),
              st.integers(0, 9)),
    st.sampled_from(["fails", "fails", "again", "always again"]),
    max_size=6,
)  # fmt: skip


@given(
    rows=st.integers(1, 10),
    size=st.integers(1, 5),
    faults=FAULTS,
    schedules=st.lists(st.integers(), min_size=2, max_size=3),
)
def test_values_and_state_do_not_depend_on_the_schedule(
    rows: int, size: int, faults: dict[tuple[str, int], str], schedules: list[int]
) -> None:
    """The same outcomes give the same rows, drops and calls of stateful generators, also one thing after the other."""
    how: dict[str, Any] = {"rows": rows, "buffer_size": size}
    found, chains = World(faults, 0).run(None, **how, engine="sequential", max_concurrent_row_groups=1)
    for schedule in schedules:
        same, again = World(faults, schedule).run(None, **how, engine="concurrent", max_concurrent_row_groups=3)
        assert same == found
        assert [chain.seen for chain in again] == [chain.seen for chain in chains]


@settings(max_examples=settings.default.max_examples // 4)
@given(
    how=st.fixed_dictionaries(
        {
            "rows": st.integers(1, 10),
            "buffer_size": st.integers(1, 5),
            "engine": st.sampled_from(["concurrent", "concurrent", "sequential"]),
            "max_concurrent_row_groups": st.just(3),
        }
    ),
    faults=FAULTS,
    schedules=st.lists(st.integers(), min_size=2, max_size=2),
    stops=st.lists(st.sampled_from([0.05, 0.5, 1.5, 3.5, 7.0, 10.5, 14.0, 25.0]), min_size=1, max_size=2),
)
def test_values_and_state_are_the_same_after_a_stop_and_resume(
    how: dict[str, Any], faults: dict[tuple[str, int], str], schedules: list[int], stops: list[float]
) -> None:
    """Ended anywhere and resumed under another schedule, the dataset and the state are those of one run."""
    expected, chains = World(faults, schedules[0]).run(None, **how)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        world = World(faults, schedules[0])
        for number, stop in enumerate(stops):
            # How often a cell was tried is part of its outcome.
            world = World(faults, schedules[number % 2], stop, world.plays)
            world.run(out, **how, resume=True)
        world = World(faults, schedules[1], None, world.plays)
        _, again = world.run(out, **how, resume=True)
        dataset = sb.Dataset.open(out)
        rows_made = [row for index in sorted(expected[0]) for row in expected[0][index]]
        assert (dataset.to_polars().rows() if dataset.rows else []) == rows_made
        assert {drop.row for drop in dataset.drops} == expected[1]
        assert again[1].state == chains[1].state
