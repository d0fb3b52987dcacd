"""Columns that count their calls, and processors, for recipes that are changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

import seedbed as sb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class Calls:
    """Fill a cell with a text of the inputs; counts its calls, and fails for some rows."""

    def __init__(self, text: str = "", fails: Sequence[int] = ()) -> None:
        self.text = text
        self.fails = fails
        self.seen: list[int] = []
        self.on_call: Callable[[int], object] = lambda _: None

    async def agenerate(self, n: int) -> str:
        self.seen.append(n)
        self.on_call(n)
        if n in self.fails:
            raise sb.Permanent(f"{n} fails")
        return f"{self.text}{n}"


def numbers(rows: range) -> list[int]:
    """The number of each row."""
    return list(rows)


def keep(odd: bool) -> Callable[[Any], Any]:
    """A processor that keeps the odd or the even rows."""
    if odd:
        return lambda frame: frame.filter(pl.col("n") % 2 == 1)
    return lambda frame: frame.filter(pl.col("n") % 2 == 0)


def steps(**stages: Callable[[Any], Any]) -> list[sb.Processor]:
    """One processor for each stage."""
    return [sb.Processor(stage=stage, apply=apply, name=stage) for stage, apply in stages.items()]


def root(out: Path) -> pl.DataFrame:
    """What a tool that knows nothing of seedbed reads."""
    assert all(path.name.startswith("batch_") for path in out.iterdir() if path.name != ".seedbed")
    return pl.read_parquet(f"{out}/*.parquet")


class Total:
    """A stateful generator that adds up the numbers it has seen."""

    is_stateful = True

    def __init__(self) -> None:
        self.total = 0
        self.seen: list[int] = []

    def __call__(self, n: int) -> int:
        self.seen.append(n)
        self.total += n
        return self.total


def chain(a: Any = None, b: Any = None, *more: sb.Column) -> list[sb.Column]:
    """Numbers, `a` of the number, `b` of `a`, and `other`, which depends on neither."""
    return [
        sb.Column("n", numbers, kind="from_scratch"),
        sb.Column("a", a or Calls("a"), key="k", dtype=str),
        sb.Column("b", b or Echo("b"), key="k", dtype=str),
        sb.Column("other", Calls("o"), key="k", dtype=str),
        *more,
    ]


class Echo(Calls):
    """Fill a cell with a text of column `a`."""

    async def agenerate(self, n: int, a: str) -> str:  # type: ignore[override]
        self.seen.append(n)
        if n in self.fails:
            raise sb.Permanent(f"{n} fails")
        return f"{self.text}({a})"
