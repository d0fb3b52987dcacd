"""Resume with a changed recipe: what is finished stays, and only what is new is generated."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from changing_recipes import Calls, Total, keep, numbers, root, steps

import seedbed as sb
from seedbed.store.manifest import read
from seedbed.store.values import JSON

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

CONFIG = sb.RunConfig(buffer_size=3, shutdown_error_rate=1.0, salvage_max_rounds=0)


def columns(**filled: Calls) -> list[sb.Column]:
    """Numbers, and columns that are filled by calls."""
    return [
        sb.Column("n", numbers, kind="from_scratch"),
        *(sb.Column(name, calls, key="k", dtype=str) for name, calls in filled.items()),
    ]


async def build(out: Path, *processors: sb.Processor, rows: int = 8, **filled: Calls) -> sb.Dataset:
    """Begin or resume a dataset."""
    options: Any = {"retry_dropped": True} if filled.pop("retry", None) else {}
    return await sb.build_async(
        columns(**filled), rows=rows, out=out, config=CONFIG, processors=processors, resume=True, **options
    )


NONE, POST, AFTER = {}, {"post_batch": keep(odd=True)}, {"after_generation": keep(odd=True)}
OTHER_POST, OTHER_AFTER = {"post_batch": keep(odd=False)}, {"after_generation": keep(odd=False)}
KEPT = {"odd": [1, 3, 5, 7], "even": [0, 2, 4, 6], "all": list(range(8)), "none": []}


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        (AFTER, OTHER_AFTER, "even"),
        (AFTER, NONE, "all"),
        (NONE, AFTER, "odd"),
        (POST, OTHER_POST, "even"),
        (POST, NONE, "all"),
        (NONE, POST, "odd"),
        (POST, AFTER, "odd"),
        (AFTER, POST, "odd"),
        ({**POST, **AFTER}, {**POST, **OTHER_AFTER}, "none"),
        ({**POST, **OTHER_AFTER}, {**OTHER_POST, **OTHER_AFTER}, "even"),
    ],
)
async def test_processors_change(
    before: dict[str, Any], after: dict[str, Any], kept: str, autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Rows that were generated are processed again, and every loader reads the new dataset; no cell is generated."""
    out, calls, again = tmp_path / "out", Calls(), Calls()
    await build(out, *steps(**before), a=calls)
    dataset = await build(out, *steps(**after), a=again)
    assert dataset.complete
    assert (len(calls.seen), again.seen) == (8, [])
    found = dataset.to_polars()
    assert found["n"].to_list() == KEPT[kept]
    if kept != "none":
        assert root(out).equals(found)
    fresh = await build(tmp_path / "fresh", *steps(**after), a=Calls())
    assert found.equals(fresh.to_polars())
    files = {path.relative_to(out).as_posix() for path in out.rglob("*.par*")}
    assert files == {path.relative_to(fresh.path).as_posix() for path in fresh.path.rglob("*.par*")}
    report, expected = dataset.report, fresh.report
    assert report is not None
    assert expected is not None
    assert (report.written, report.removed, report.unfinished) == (expected.written, expected.removed, ())
    # Once more it is a dataset like any other.
    assert (await build(out, *steps(**after), rows=11, a=again)).complete
    assert sorted(again.seen) == [8, 9, 10]


@pytest.mark.parametrize("processors", [NONE, POST, AFTER], ids=["none", "post-batch", "after generation"])
async def test_a_column_is_added(processors: dict[str, Any], autojump_clock: MockClock, tmp_path: Path) -> None:
    """Only its cells are generated, and the dataset is that of a run with both columns."""
    out, a, b = tmp_path / "out", Calls("a"), Calls("b")
    await build(out, *steps(**processors), a=Calls("a"))
    dataset = await build(out, *steps(**processors), a=a, b=b)
    assert (a.seen, sorted(b.seen)) == ([], list(range(8)))
    fresh = await build(tmp_path / "fresh", *steps(**processors), a=Calls("a"), b=Calls("b"))
    assert dataset.complete
    assert dataset.to_polars().equals(fresh.to_polars())
    assert root(out).equals(fresh.to_polars())
    report = dataset.report
    assert report is not None
    assert (report.restored, report.attempts["b"], report.attempts.get("a", 0)) == (16, 8, 0)


async def test_columns_are_removed_and_come_back(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A removed column is no longer in the dataset; one of that name that is added later is generated."""
    out = tmp_path / "out"
    await build(out, a=Calls("a"), b=Calls("b"))
    dataset = await build(out, a=Calls("a"))
    assert dataset.columns == ("n", "a")
    assert root(out).columns == ["n", "a"]
    again = Calls("c")
    dataset = await build(out, a=Calls("a"), b=again)
    assert dataset.to_polars()["b"].to_list() == [f"c{n}" for n in range(8)]


async def test_dropped_rows_stay_dropped(autojump_clock: MockClock, tmp_path: Path) -> None:
    """They keep their finished cells, and a retry generates what is missing of them, in the new column too."""
    out, a, b = tmp_path / "out", Calls("a"), Calls("b", fails=[4])
    before = await build(out, a=Calls("a"), x=Calls("x", fails=[1, 5]))
    finished = before.dropped()["a"].to_list()
    dataset = await build(out, a=a, x=Calls("x"), b=b)
    assert sorted(b.seen) == [0, 2, 3, 4, 6, 7]
    dropped = dataset.dropped()
    assert dropped["_row"].to_list() == [1, 4, 5]
    assert dropped["a"].to_list() == [finished[0], "a4", finished[1]]
    assert dropped["x"].to_list() == [None, "x4", None]
    assert dataset.to_polars()["n"].to_list() == [0, 2, 3, 6, 7]
    assert {drop.column for drop in dataset.drops} == {"x", "b"}
    x, b = Calls("x"), Calls("b")
    dataset = await build(out, a=a, x=x, b=b, retry=Calls())
    # The call of a cell is cancelled if another one of its row fails first.
    assert set(a.seen) == {n for n, cell in zip((1, 5), finished, strict=True) if cell is None}
    assert (sorted(x.seen), sorted(b.seen)) == ([1, 5], [1, 4, 5])
    assert dataset.to_polars().rows() == [(n, f"a{n}", f"x{n}", f"b{n}") for n in range(8)]


@pytest.mark.parametrize("processors", [NONE, POST], ids=["none", "post-batch"])
async def test_a_retry_with_a_new_column(processors: dict[str, Any], autojump_clock: MockClock, tmp_path: Path) -> None:
    """Rows that are retried in the same run get both their missing cells and the new ones."""
    out, a, x, b = tmp_path / "out", Calls("a"), Calls("x"), Calls("b")
    await build(out, *steps(**processors), a=Calls("a"), x=Calls("x", fails=[1, 5]))
    dataset = await build(out, *steps(**processors), a=a, x=x, b=b, retry=Calls())
    assert set(a.seen) <= {1, 5}
    assert (sorted(x.seen), sorted(b.seen)) == ([1, 5], list(range(8)))
    fresh = await build(tmp_path / "fresh", *steps(**processors), a=Calls("a"), x=Calls("x"), b=Calls("b"))
    assert dataset.to_polars().equals(fresh.to_polars())


async def test_open_row_groups(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A column of which nothing was finished may change, also where row groups are open; one that has cells may not."""
    out = tmp_path / "out"

    async def stop(n: int, a: str) -> str:
        if n == 4:
            build.stop()
        raise sb.Retryable(f"{n}, {a}")

    unfinished = [*columns(a=Calls("a")), sb.Column("b", stop, key="k", dtype=str)]
    config = sb.RunConfig(buffer_size=8, grace=0)
    with pytest.raises(sb.Interrupted):
        async with sb.open_build(unfinished, rows=8, out=out, config=config) as build:
            await build.wait()
    a, b = Calls("a"), Calls("b")
    dataset = await sb.build_async(columns(a=a, b=b), rows=8, out=out, config=config, resume=True)
    assert a.seen == []
    assert dataset.to_polars().rows() == [(n, f"a{n}", f"b{n}") for n in range(8)]
    changed = [columns()[0], sb.Column("a", Calls("a"), dtype=bytes)]
    with pytest.raises(
        sb.ManifestError, match=r"columns\.a\.dtype.*; column 'a' has 8 finished cells\nfor a new dataset"
    ):
        await sb.build_async(changed, rows=8, out=out, config=config, resume=True)


async def test_values_of_all_kinds_are_kept(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Documents, vectors, structs and skipped cells are the same after their row groups were written anew."""
    recipe = [
        columns()[0],
        sb.Column("document", lambda n: {"to": n} if n % 2 else {"city": "Rome", "x": [1, "a"]}, dtype=JSON),
        sb.Column("vector", lambda n: np.arange(3, dtype=np.float32) * n),
        sb.Column("struct", lambda n: {"a": n} if n % 2 else {"a": n, "b": [datetime.date(2020, 1, 1)]}),
        sb.Column("late", lambda n: None if n < 4 else f"{n}"),
        sb.Column("skipped", lambda n: f"s{n}", skip=Thirds()),
    ]
    more = [
        sb.Column("keys", lambda document: " ".join(sorted(document))),
        sb.Column("after", lambda skipped: f"{skipped}!", skip_policy="skip"),
    ]
    processors = steps(post_batch=lambda frame: frame.with_columns(sum=pl.col("vector").list.sum()))
    options: Any = {"rows": 8, "config": CONFIG}
    await sb.build_async(recipe, out=tmp_path / "out", **options)
    dataset = await sb.build_async(
        [*recipe, *more], out=tmp_path / "out", processors=processors, resume=True, **options
    )
    fresh = await sb.build_async([*recipe, *more], out=tmp_path / "fresh", processors=processors, **options)
    assert dataset.to_polars().schema == fresh.to_polars().schema
    assert dataset.to_polars().rows() == fresh.to_polars().rows()
    assert dataset.to_polars()["after"].null_count() == 3


class Thirds:
    """Skips every third row."""

    requires = ("n",)

    @staticmethod
    def decide(values: dict[str, int]) -> bool:
        """True for multiples of three."""
        return values["n"] % 3 == 0


async def test_accepted_code_keeps_cells(autojump_clock: MockClock, tmp_path: Path) -> None:
    """With a new column beside it, edited code that is accepted is not run for what it generated."""
    out = tmp_path / "out"
    before, after = (lambda n: n * 2), (lambda n: n * 3)
    await sb.build_async([columns()[0], sb.Column("v", before)], rows=4, out=out)
    new = [columns()[0], sb.Column("v", after), sb.Column("w", lambda v: v + 1)]
    with pytest.raises(sb.ManifestError, match="column 'v' has 4 finished cells\nto resume anyway"):
        await sb.build_async(new, rows=4, out=out, resume=True)
    dataset = await sb.build_async(new, rows=4, out=out, resume=True, accept_changes=True)
    assert dataset.to_polars().rows() == [(n, n * 2, n * 2 + 1) for n in range(4)]


async def test_pre_batch_processors_may_not_change(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Their rows have been generated; columns after them may be added."""
    out = tmp_path / "out"
    await build(out, *steps(pre_batch=keep(odd=True)), a=Calls("a"))
    with pytest.raises(sb.ManifestError, match="the rows of this dataset have passed its pre-batch processors"):
        await build(out, a=Calls("a"))
    dataset = await build(out, *steps(pre_batch=keep(odd=True)), a=Calls("a"), b=Calls("b"))
    assert dataset.to_polars().rows() == [(n, f"a{n}", f"b{n}") for n in (1, 3, 5, 7)]


class Numbers:
    """A column from scratch that counts its calls, which a saved state or a replay has to repeat."""

    is_stateful = True

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, rows: range) -> list[str]:
        self.rows.extend(rows)
        return [f"{row} of {len(self.rows)}" for row in rows]


@pytest.mark.parametrize("stateful", [False, True])
async def test_a_column_from_scratch_is_added_after_pre_batch_processors(
    stateful: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    """It is generated for the rows that the processors returned, in all row groups, and they never see it."""
    out, seen = tmp_path / "out", set[str]()

    def keep_odd(frame: pl.DataFrame) -> pl.DataFrame:
        seen.update(frame.columns)
        return frame.filter(pl.col("n") % 2 == 1)

    processors = steps(pre_batch=keep_odd)
    a = Calls("a")
    async with sb.open_build(columns(a=a), rows=8, out=out, config=CONFIG, processors=processors) as build_:
        a.on_call = lambda n: build_.stop() if n == 5 else None
        with pytest.raises(sb.Interrupted):
            await build_.wait()
    many, late = Numbers(), (lambda: Numbers() if stateful else numbers)
    more = [*columns(a=a), sb.Column("m", many if stateful else numbers, kind="from_scratch")]
    dataset = await sb.build_async(more, rows=8, out=out, config=CONFIG, processors=processors, resume=True)
    more[-1] = sb.Column("m", late(), kind="from_scratch")
    dataset = await sb.build_async(more, rows=10, out=out, config=CONFIG, processors=processors, resume=True)
    assert seen == {"n"}
    places = [(1, 0, 3), (3, 3, 6), (5, 4, 6), (7, 6, 8), (9, 8, 10)]  # one by one: its position, of how many
    assert dataset.to_polars().rows() == [
        (n, f"a{n}", f"{place} of {count}" if stateful else place) for n, place, count in places
    ]


async def test_a_removed_column_comes_back_while_row_groups_are_open(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What the journal has of it does not count: it is generated by the new recipe, and its generator starts anew."""
    out, config = tmp_path / "out", sb.RunConfig(buffer_size=8, grace=0)

    async def stopped(recipe: list[sb.Column], calls: Calls, **options: Any) -> None:
        async with sb.open_build(recipe, rows=8, out=out, config=config, resume=True) as running:
            calls.on_call = lambda n: running.stop() if n == 6 else None
            with pytest.raises(sb.Interrupted):
                await running.wait()

    a, b, total = Calls("a"), Calls("b"), Total()
    await stopped([*columns(a=a), sb.Column("total", total), sb.Column("b", b, key="k", dtype=str)], b)
    assert total.seen
    await stopped(columns(a=Calls("a"), c=(c := Calls("c"))), c)
    again = Total()
    recipe = [*columns(a=Calls("a"), c=Calls("c"), b=(new := Calls("new"))), sb.Column("total", again)]
    dataset = await sb.build_async(recipe, rows=8, out=out, config=config, resume=True)
    assert sorted(new.seen) == again.seen == list(range(8))
    totals = [sum(range(n + 1)) for n in range(8)]
    assert dataset.to_polars().rows() == [(n, f"a{n}", f"c{n}", f"new{n}", totals[n]) for n in range(8)]


async def test_a_stateful_column_beside_a_new_one(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Its generator sees its rows again, as in any resume; a stateful column that is added sees all rows in order."""
    out, more = tmp_path / "out", Total()
    config = sb.RunConfig(buffer_size=3)

    def recipe(*added: sb.Column) -> list[sb.Column]:
        return [columns()[0], sb.Column("total", Total()), *added]

    await sb.build_async(recipe(), rows=7, out=out, config=config)
    added = sb.Column("again", more)
    dataset = await sb.build_async(recipe(added), rows=9, out=out, config=config, resume=True)
    assert more.seen == list(range(9))
    totals = [sum(range(n + 1)) for n in range(9)]
    assert dataset.to_polars().rows() == [(n, total, total) for n, total in enumerate(totals)]


async def test_rows_before_their_processors_are_damaged(autojump_clock: MockClock, tmp_path: Path) -> None:
    """They cannot be processed again, which the error says; with the same processors the dataset stays as it is."""
    out = tmp_path / "out"
    await build(out, *steps(**POST), a=Calls("a"))
    (out / ".seedbed" / "parts" / "generated_0000001.part").write_bytes(b"damaged")
    with pytest.raises(sb.StoreError, match="row group 1 cannot be processed again: its rows before the post-batch"):
        await build(out, *steps(**OTHER_POST), a=Calls("a"))
    assert not read(out).finished
