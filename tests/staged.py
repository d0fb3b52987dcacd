"""Recipes with stages whose cells are functions that count their calls, built in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs
import trio
from trio.testing import MockClock

import seedbed as sb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import polars as pl


@attrs.define
class World:
    """What cells do: they take a time that `salt` decides, and those in `failing` fail."""

    salt: int = 0
    pace: float = 1.0
    """The longest time of a cell, in seconds."""
    failing: set[tuple[str, Any]] = attrs.Factory(set)
    calls: Counter[tuple[str, Any]] = attrs.Factory(Counter)
    delivered: dict[tuple[str, Any], float] = attrs.Factory(dict)

    async def answer(self, column: str, key: Any) -> str:
        """Take a while, then fail or answer."""
        self.calls[column, key] += 1
        await trio.sleep(self.pace * random.Random(f"{self.salt} {column} {key}").random())
        if (column, key) in self.failing:
            raise sb.Permanent("no")
        self.delivered[column, key] = trio.current_time()
        return f"{column} of {key}"


def recipe(world: World, **run: Any) -> sb.Recipe:
    """Documents, a question for each item of a list, two answers for each, and sets of four answers of one topic."""

    @sb.column
    async def text(n: int) -> str:
        return await world.answer("text", n)

    @sb.column
    async def asked(question: str) -> str:
        return await world.answer("asked", question)

    @sb.column
    async def said(asked: str, _k: int) -> str:
        return await world.answer("said", (asked, _k))

    @sb.column
    async def label(said_in: str) -> str:
        return await world.answer("label", said_in)

    return sb.Recipe(
        stages=[
            sb.Stage(
                "docs",
                rows=10,
                columns=[
                    sb.Uniform("n", low=0, high=10**9, decimals=0, dtype="int"),
                    sb.Category("topic", values=["a", "b", "c"]),
                    text,
                    sb.Expression("questions", "[n ~ '?', n ~ '!', n ~ '.'][:n % 4]", dtype="list[str]"),
                ],
            ),
            sb.Stage("questions", from_="docs", each="{{ questions }}", item="question", columns=[asked]),
            sb.Stage(
                "answers",
                from_="questions",
                each=2,
                columns=[sb.Uniform("draw", low=0, high=1), said, sb.Expression("about", "topic ~ ': ' ~ question")],
            ),
            sb.Stage(
                "sets",
                from_="answers",
                group=sb.Group(by="topic", size=4),
                columns=[sb.Expression("said_in", "answers | map(attribute='said') | join(' ')"), label],
            ),
        ],
        run={"buffer_size": 3, "jitter_seed": 1, **run},
    )


def build(
    given: sb.Recipe, out: Path, *, reader: Callable[[Any], None] | None = None, **options: Any
) -> tuple[sb.Dataset, sb.BuildReport]:
    """Build in virtual time."""

    async def main() -> tuple[sb.Dataset, sb.BuildReport]:
        readers = () if reader is None else (reader,)
        async with sb.open_build(given, out=out, readers=readers, **options) as running:
            report = await running.wait()
            return running.dataset, report

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def rows_of(out: Path) -> dict[str, pl.DataFrame]:
    """The rows of every stage."""
    dataset = sb.Dataset.open(out)
    return {name: dataset.stage(name).to_polars() for name in dataset.stages}


def same(one: dict[str, pl.DataFrame], other: dict[str, pl.DataFrame]) -> None:
    """All stages have the same rows."""
    assert one.keys() == other.keys()
    for name, frame in one.items():
        assert frame.equals(other[name]), name
