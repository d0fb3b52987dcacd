"""Columns that run once per key: one cell for each key runs, and all rows with that key have its value."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

import seedbed as sb
from seedbed.errors import BuildStopped, DatasetGenerationError, Permanent, Retryable

if TYPE_CHECKING:
    from pathlib import Path

ACCOUNTS = 3


def accounts(rows: range) -> list[int]:
    """Fill a column with numbers of accounts."""
    return [row % ACCOUNTS for row in rows]


class Writer:
    """Fills the column of profiles, slowly, and counts its calls by account."""

    def __init__(self, bad: dict[int, int] | None = None, *, stop_after: int = 10**9) -> None:
        self.calls: Counter[int] = Counter()
        self.at_once = self.most = 0
        self._bad, self._stop_after = bad or {}, stop_after

    async def profile(self, account: int) -> str:
        self.calls[account] += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await trio.sleep(1)
        finally:
            self.at_once -= 1
        if self._bad.get(account, 0) >= self.calls[account]:
            raise Retryable("not now")
        if self._bad.get(account, 0) < 0:
            raise Permanent("never", code="closed_account")
        return f"profile {account}"


def columns(writer: Writer, **fields: Any) -> list[sb.Column]:
    """An account for each row, its profile, and a column that reads it."""
    return [
        sb.Column("account", accounts, kind="from_scratch"),
        sb.Column("profile", writer.profile, key="m", once_per="account", **fields),
        sb.Column("shout", lambda profile: profile.upper()),
    ]


async def build(writer: Writer, out: Path, rows: int = 12, *, resume: bool = False, **given: Any) -> sb.Dataset:
    """Build the dataset in row groups of four rows."""
    options = {name: given.pop(name) for name in ("retry_dropped", "readers") if name in given}
    config = sb.RunConfig(buffer_size=4, max_parallel_requests=2, backoff_base=0.01, **given)
    return await sb.build_async(columns(writer), rows=rows, out=out, config=config, resume=resume, **options)


@pytest.mark.parametrize("engine", ["concurrent", "sequential"])
async def test_a_cell_runs_once_for_each_key(
    engine: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Rows of all row groups share the value; those that wait hold no permit of the two that there are."""
    writer = Writer()
    dataset = await build(writer, tmp_path / "out", engine=engine)
    assert dataset.to_polars()["shout"].to_list() == [f"PROFILE {row % 3}" for row in range(12)]
    assert writer.calls == {0: 1, 1: 1, 2: 1}
    assert writer.most <= 2
    assert dataset.report.attempts["profile"] == 3
    origins = dataset.provenance()["profile__provenance"].to_list()
    assert all(each["shared"] and each["attempts"] == 1 for each in origins)


async def test_a_key_that_fails_fails_for_all_its_rows(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The rows are dropped with one reason, without being tried; a retry of them tries the key once."""
    writer = Writer({1: -1})
    dataset = await build(writer, tmp_path / "out")
    assert writer.calls[1] == 1
    dropped = dataset.dropped()
    assert dropped["_row"].to_list() == [1, 4, 7, 10]
    assert set(dropped["_reason"]) == {"never"}
    assert set(dropped["_code"]) == {"closed_account"}
    again = Writer()
    dataset = await build(again, tmp_path / "out", resume=True, retry_dropped=True)
    assert again.calls == {1: 1}
    assert dataset.to_polars()["profile"].to_list() == [f"profile {row % 3}" for row in range(12)]


async def test_failures_that_are_retried_are_those_of_one_cell(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The others wait until it has an answer."""
    writer = Writer({2: 2})
    dataset = await build(writer, tmp_path / "out")
    assert dataset.rows == 12
    assert writer.calls == {0: 1, 1: 1, 2: 3}


async def test_answers_outlive_a_run(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A run that is resumed, and a dataset that grows, take what is known; nothing is paid for twice."""
    first = Writer()

    def stop(event: sb.Event) -> None:
        if isinstance(event, sb.events.CellsCommitted) and first.calls[2]:
            raise KeyError("enough")

    with pytest.raises(BuildStopped):
        await build(first, tmp_path / "out", rows=30, readers=[stop])
    second = Writer()
    dataset = await build(second, tmp_path / "out", rows=30, resume=True)
    assert dataset.to_polars()["profile"].to_list() == [f"profile {row % 3}" for row in range(30)]
    assert sum((first.calls + second.calls).values()) <= 4
    third = Writer()
    dataset = await build(third, tmp_path / "out", rows=60, resume=True)
    assert dataset.rows == 60
    assert not third.calls


async def test_the_next_row_runs_when_the_first_is_dropped(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A call that is cancelled with its row is made for another row of its key."""
    writer = Writer()

    async def picky(n: int) -> int:
        await trio.sleep(0.5)
        if n == 0:
            raise Permanent("not this row")
        return n

    dataset = await sb.build_async(
        [
            sb.Column("n", lambda rows: [*rows], kind="from_scratch"),
            sb.Column("account", lambda rows: [0] * len(rows), kind="from_scratch"),
            sb.Column("picky", picky),
            sb.Column("profile", writer.profile, once_per="account"),
        ],
        rows=4,
        out=tmp_path / "out",
    )
    assert dataset.to_polars()["profile"].to_list() == ["profile 0"] * 3
    assert writer.calls == {0: 2}


async def test_draws_depend_on_the_key(tmp_path: Path) -> None:
    """Whichever row is first, a model gets the same request and the same seed."""
    seen = []

    def answer(request: Any) -> str:
        seen.append(request.seed)
        return "x"

    recipe = sb.Recipe(
        seed=3,
        columns=[
            sb.Category("account", values=["a"]),
            sb.LLMText("text", model="m", prompt="About {{ account }}", once_per="account"),
        ],
        models={"m": sb.Scripted(answers=answer)},
    )
    for rows, name in ((1, "one"), (5, "five")):
        await sb.build_async(recipe, rows=rows, out=tmp_path / name)
    assert len(seen) == 2
    assert len(set(seen)) == 1


def test_what_cannot_run_once_per_key() -> None:
    """Columns that are generated as a whole, stateful ones, and keys that are no columns."""
    scratch = sb.Column("n", accounts, kind="from_scratch", once_per="m")
    with pytest.raises(DatasetGenerationError, match="not generated cell by cell"):
        sb.preview([sb.Column("m", accounts, kind="from_scratch"), scratch], rows=1)
    with pytest.raises(DatasetGenerationError, match="stateful"):
        sb.preview([plain_accounts(), sb.Column("c", lambda m: m, once_per="m", is_stateful=True)], rows=1)
    with pytest.raises(DatasetGenerationError, match="nothing"):
        sb.preview([plain_accounts(), sb.Column("c", lambda m: m, once_per="nothing")], rows=1)


def plain_accounts() -> sb.Column:
    """A column of accounts."""
    return sb.Column("m", accounts, kind="from_scratch")
