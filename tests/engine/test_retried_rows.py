"""Dropped rows that are retried, behind processors of every kind: the dataset is that of a run without drops."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import seedbed as sb

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = sb.RunConfig(
    jitter_seed=1, shutdown_error_rate=1, salvage_error_threshold=1, backoff_base=0.01, max_concurrent_row_groups=2
)
N = pl.col("n")

PROCESSORS: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "filter": lambda frame: frame.filter(N % 3 != 1),
    "sort": lambda frame: frame.sort(N % 4, N, descending=True, maintain_order=True),
    "duplicate": lambda frame: pl.concat([frame, frame.filter(N % 2 == 0)]),
    "transform": lambda frame: frame.with_columns(N + 100, topic=pl.col("topic").str.to_uppercase()),
    "add": lambda frame: pl.concat([frame.head(1).with_columns(N * 0 - 7), frame]),
    "nothing": lambda frame: frame,
    "empty": lambda frame: frame.clear() if frame.height == 2 else frame,
}


def processors(names: tuple[str, ...], stage: str) -> list[sb.Processor]:
    """Processors of one stage."""
    return [sb.Processor(stage=stage, name=name, apply=PROCESSORS[name]) for name in names]


@attrs.define(eq=False)
class World:
    """What is outside a build: which cells fail this time, and what was asked for.

    Cells are named by what they are made of and not by a number, as rows may be the same twice.
    """

    bad: frozenset[tuple[str, int]] = frozenset()
    asked: list[tuple[str, int]] = attrs.Factory(list)
    ran: int = 0

    def ask(self, column: str, n: int) -> None:
        """A cell is made; raises if it is a bad one."""
        self.asked.append((column, n))
        if (column, n % 100) in self.bad:
            raise sb.Permanent(f"bad {n}")

    def columns(self) -> list[sb.Column]:
        """Numbers and topics, three columns of cells, two whole columns."""

        def numbers(rows: range) -> list[int]:
            return list(rows)

        def topics(rows: range) -> list[str]:
            return [["rain", "tea", "bread"][row % 3] for row in rows]

        async def shout(n: int, topic: str) -> str:
            await trio.sleep(n % 5)
            self.ask("shout", n)
            return f"{topic.upper()}!"

        def whole(frame: pl.DataFrame) -> list[str]:
            return [f"{n}:{topic}" for n, topic in frame.select("n", "topic").iter_rows()]

        async def answer(n: int, shout: str, whole: str) -> dict[str, Any]:
            await trio.sleep(n % 3)
            self.ask("answer", n)
            return {"answer": f"answer {n} {whole}", "loud": shout}

        async def side(n: int) -> int:
            await trio.sleep(n % 7)
            self.ask("side", n)
            return -n

        return [
            sb.Column("n", numbers, kind="from_scratch"),
            sb.Column("topic", topics, kind="from_scratch"),
            sb.Column("shout", shout),
            sb.Column("whole", whole, kind="full_column", requires=["n", "topic", "shout"]),
            sb.Column("answer", answer, outputs=["answer", "loud"]),
            sb.Column("side", side),
        ]

    def build(
        self, out: Path, *, rows: int, size: int, pre: tuple[str, ...], post: tuple[str, ...], **options: Any
    ) -> sb.Dataset:
        """Build or resume it."""
        config = attrs.evolve(CONFIG, buffer_size=size, engine=options.pop("engine", "concurrent"))
        found = [*processors(pre, "pre_batch"), *processors(post, "post_batch")]
        for at, each in enumerate(found):
            if each.stage.value == "pre_batch":
                found[at] = attrs.evolve(each, apply=self._counted(each.apply))

        async def main() -> sb.Dataset:
            columns = self.columns()
            async with sb.open_build(
                columns, rows=rows, out=out, config=config, processors=found, resume=True, **options
            ) as running:
                with suppress(sb.AllRowsDropped):
                    await running.wait()
                return running.dataset

        return trio.run(main, clock=MockClock(autojump_threshold=0))

    def _counted(self, apply: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def counted(frame: pl.DataFrame) -> Any:
            self.ran += 1
            return apply(frame)

        return counted


CHAINS = st.lists(st.sampled_from(sorted(PROCESSORS)), max_size=3).map(tuple)
CELLS = st.tuples(st.sampled_from(["shout", "answer", "side"]), st.integers(0, 12) | st.just(93))


@settings(max_examples=settings.default.max_examples // 4)
@given(
    how=st.fixed_dictionaries(
        {"rows": st.integers(1, 12), "size": st.integers(1, 6), "pre": CHAINS, "post": CHAINS | st.just(())}
    ),
    rounds=st.lists(st.frozensets(CELLS, max_size=6), min_size=1, max_size=3),
    engine=st.sampled_from(["concurrent", "sequential"]),
)
def test_retrying_everything_gives_the_undisturbed_dataset(
    how: dict[str, Any], rounds: list[frozenset[tuple[str, int]]], engine: str
) -> None:
    """Whatever processors do and whichever cells fail, once or several times: values, order and counts are the same."""
    with tempfile.TemporaryDirectory() as folder:
        calm = World()
        expected = calm.build(Path(folder, "calm"), **how)
        out = Path(folder, "out")
        made: list[tuple[str, int]] = []
        for number, bad in enumerate([*rounds, frozenset()]):
            world = World(bad)
            options = {"retry_dropped": True} if number else {"engine": engine}
            dataset = world.build(out, **how, **options)
            made += [cell for cell in world.asked if (cell[0], cell[1] % 100) not in bad]
            if number:
                assert world.ran == 0  # pre-batch processors are never run again
            check_drops(dataset, how, bad)
        assert dataset.to_polars().rows() == expected.to_polars().rows()
        assert dataset.to_polars().columns == expected.to_polars().columns
        assert dataset.drops == ()
        assert dataset.report is not None
        assert expected.report is not None
        assert (dataset.report.removed, dataset.report.added) == (expected.report.removed, expected.report.added)
        assert dataset.report.written == expected.report.written
        assert sorted(made) == sorted(calm.asked)  # every cell is made once
        dataset.verify()


def check_drops(dataset: sb.Dataset, how: dict[str, Any], bad: frozenset[tuple[str, int]]) -> None:
    """Each drop names a row, by its position behind the pre-batch processors, that has the cell that failed."""
    size, rows = how["size"], how["rows"]
    for drop in dataset.drops:
        start = drop.row // size * size
        frame = pl.DataFrame(
            {
                "n": list(range(start, min(start + size, rows))),
                "topic": [["rain", "tea", "bread"][row % 3] for row in range(start, min(start + size, rows))],
            }
        )
        for name in how["pre"]:
            frame = PROCESSORS[name](frame)
        n = frame["n"][drop.row - start + drop.copy]
        assert drop.error == f"bad {n}"
        assert (drop.column, n % 100) in bad


def test_a_retried_row_has_the_values_that_processors_returned(tmp_path: Path) -> None:
    """With a processor that sorts, the row that failed comes back, and no other one twice."""
    how: dict[str, Any] = {"rows": 8, "size": 8, "pre": ("transform", "sort"), "post": ()}
    World(frozenset({("answer", 7)})).build(tmp_path / "out", **how)
    dataset = World().build(tmp_path / "out", **how, retry_dropped=True)
    frame = dataset.to_polars()
    assert sorted(frame["n"].to_list()) == list(range(100, 108))
    for row in frame.iter_rows(named=True):
        assert row["topic"] == row["topic"].upper()
        assert row["shout"] == f"{row['topic']}!"
        assert row["answer"] == f"answer {row['n']} {row['n']}:{row['topic']}"


@pytest.mark.parametrize("failing", ["all", "one"])
def test_rows_that_failed_before_the_processors(tmp_path: Path, failing: str) -> None:
    """Where all rows of a group failed, the processors see them at the retry; one alone cannot come back."""
    fail = True

    def numbers(rows: range) -> list[Any]:
        if fail and failing == "all" and 2 in rows:
            raise sb.Permanent("not now")
        return [sb.Permanent("not now") if fail and failing == "one" and row == 2 else row for row in rows]

    def build(**options: Any) -> sb.Dataset:
        return sb.build(
            [sb.Column("n", numbers, kind="from_scratch"), sb.Column("v", lambda n: -n)],
            rows=4,
            out=tmp_path / "out",
            config=attrs.evolve(CONFIG, buffer_size=2),
            processors=[sb.Processor(stage="pre_batch", apply=lambda frame: frame.with_columns(N * 10))],
            **options,
        )

    first = build()
    assert {drop.row for drop in first.drops} == ({2, 3} if failing == "all" else {2})
    fail = False
    again = build(resume=True, retry_dropped=True)
    if failing == "all":
        assert again.to_polars().rows() == [(0, 0), (10, -10), (20, -20), (30, -30)]
    else:
        assert again.to_polars().rows() == [(0, 0), (10, -10), (30, -30)]
        assert [(drop.row, drop.column) for drop in again.drops] == [(2, "n")]


def test_without_a_journal_rows_that_processors_saw_stay_dropped(tmp_path: Path) -> None:
    """What was not stored is not guessed: the rows stay dropped, and the others stay as they are."""

    def build(bad: int | None, **options: Any) -> sb.Dataset:
        def v(n: int) -> int:
            if n == bad:
                raise sb.Permanent("no")
            return n

        return sb.build(
            [sb.Column("n", lambda rows: [*rows], kind="from_scratch"), sb.Column("v", v)],
            rows=6,
            out=tmp_path / "out",
            config=attrs.evolve(CONFIG, buffer_size=3, durability="row_group"),
            processors=[sb.Processor(stage="pre_batch", apply=lambda frame: frame.reverse())],
            **options,
        )

    first = build(4)
    again = build(None, resume=True, retry_dropped=True)
    assert again.to_polars().rows() == first.to_polars().rows()
    assert [drop.row for drop in again.drops] == [4]


@pytest.mark.parametrize("get_state", [False, True])
def test_a_stateful_cell_that_ran_is_not_run_again(tmp_path: Path, get_state: bool) -> None:
    """A retry keeps what a stateful column gave for dropped rows, also behind rows that it has yet to see."""

    class Numbered:
        is_stateful = True

        def __init__(self) -> None:
            self.calls: list[int] = []
            self.count = 0

        async def agenerate(self, n: int, a: int) -> str:
            self.calls.append(n)
            self.count += 1
            return f"{a}@{self.count}"

    class Kept(Numbered):
        async def agenerate(self, n: int, a: int) -> str:
            return await super().agenerate(n, a)

        def get_state(self) -> int:
            return self.count

        def set_state(self, state: int) -> None:
            self.count = state

    def build(bad: set[tuple[str, int]], **options: Any) -> tuple[list[Any], list[int]]:
        async def a(n: int) -> int:
            if ("a", n) in bad:
                raise sb.Permanent("no")
            return n

        async def b(n: int) -> int:
            if ("b", n) in bad:
                raise sb.Permanent("no")
            return -n

        generator = (Kept if get_state else Numbered)()
        columns = [
            sb.Column("n", lambda rows: [*rows], kind="from_scratch"),
            sb.Column("a", a),
            sb.Column("s", generator),
            sb.Column("b", b),
        ]
        config = attrs.evolve(CONFIG, buffer_size=4)
        dataset = sb.build(columns, rows=8, out=tmp_path / "out", config=config, **options)
        return dataset.to_polars()["s"].to_list(), generator.calls

    values, calls = build({("a", 1), ("b", 2), ("b", 3)})
    assert values == ["0@1", "4@4", "5@5", "6@6", "7@7"]
    assert calls == [0, 2, 3, 4, 5, 6, 7]
    values, calls = build(set(), resume=True, retry_dropped=True)
    assert values[2:] == ["2@2", "3@3", "4@4", "5@5", "6@6", "7@7"]
    if get_state:
        assert calls == [1]
