"""Datasets that the tests of exports and cards read."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import polars as pl

import seedbed as sb

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))


def number(rows: range) -> list[int]:
    """The number of each row."""
    return list(rows)


def question(n: int) -> str:
    """A prompt."""
    return f"What is {n} + {n}?"


def answer(n: int) -> str | None:
    """A response, null for some rows."""
    return None if n % 10 == 3 else f"{2 * n}, «exactly»"


def talk(question: str, answer: str | None) -> list[dict[str, str]]:
    """Both as a conversation."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer or "no"}]


def facts(n: int) -> dict[str, Any]:
    """Values that JSON does not have."""
    return {"day": datetime.date(2020, 1, 1 + n % 28), "raw": b"\x00\xff", "of": [n, None]}


def parity(n: int) -> str:
    """A value that many rows share."""
    return "even" if n % 2 == 0 else "odd"


def fails(n: int) -> int:
    """Drops every seventh row."""
    if n % 7 == 6:
        raise ValueError("no seven")
    return n


def make_dataset(out: Path, rows: int = 40, buffer_size: int = 8) -> sb.Dataset:
    """Rows of every kind of value, in several row groups; every seventh is dropped."""
    columns = [
        sb.Column("n", number, kind="from_scratch", dtype=int),
        sb.Column("question", question),
        sb.Column("answer", answer, dtype=str),
        sb.Column("talk", talk, dtype=MESSAGES),
        sb.Column("facts", facts),
        sb.Column("parity", parity),
        sb.Column("fails", fails),
    ]
    return sb.build(columns, rows=rows, out=out, config=sb.RunConfig(buffer_size=buffer_size, salvage_max_rounds=0))
