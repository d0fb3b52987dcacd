"""Processors: before a group's columns, before its checkpoint, and over the whole dataset."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import polars as pl
import pytest
import trio
from engine_helpers import Watched, config, grow, seed

from seedbed import (
    CellContext,
    Column,
    ConfigError,
    Dataset,
    DatasetGenerationError,
    Permanent,
    Processor,
    ProcessorFailed,
    SchemaConflict,
    build,
    build_async,
    preview,
    resume,
)
from seedbed.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

    Apply = Callable[[pl.DataFrame], pl.DataFrame]

TWO = config(buffer_size=2)
ENGINES = pytest.mark.parametrize("engine", ["concurrent", "sequential"])


def pre(apply: Apply, name: str = "") -> Processor:
    """A processor before the columns."""
    return Processor(stage="pre_batch", apply=apply, name=name)


def post(apply: Apply, name: str = "") -> Processor:
    """A processor before the checkpoint."""
    return Processor(stage="post_batch", apply=apply, name=name)


async def twice(n: int) -> int:
    """The cell column that most tests have."""
    return 2 * n


class TestPreBatch:
    @ENGINES
    async def test_it_may_change_rows(self, autojump_clock: MockClock, engine: str) -> None:
        """What it returns is what the columns see, and the rows are still the same rows."""
        grown = await grow(
            [seed(), Column("v", twice)],
            rows=4,
            config=config(buffer_size=2, engine=engine),
            processors=[pre(lambda frame: frame.with_columns(pl.col("n") + 100))],
        )
        assert grown.frame.rows() == [(100, 200), (101, 202), (102, 204), (103, 206)]
        assert grown.report.dropped == ()

    @ENGINES
    async def test_it_may_remove_rows(self, autojump_clock: MockClock, engine: str) -> None:
        """Removed rows are counted and cost no call."""
        column = Watched(0.1)

        def odd(frame: pl.DataFrame) -> pl.DataFrame:
            return frame.filter(pl.col("n") % 2 == 1)

        grown = await grow(
            [seed(), Column("v", column)], rows=4, config=config(buffer_size=4, engine=engine), processors=[pre(odd)]
        )
        assert grown.column("v") == [1, 3]
        assert sorted(column.attempts) == [1, 3]
        assert grown.report.dropped == ()
        assert (grown.report.removed, grown.report.added) == (2, 0)

    @ENGINES
    async def test_it_may_add_rows(self, autojump_clock: MockClock, engine: str) -> None:
        """Rows are known by their position in what it returned: in their contexts and in their drops."""
        rows = []

        async def v(n: int, context: CellContext) -> int:
            rows.append((n, context.row))
            if n == 103:
                raise Permanent("no")
            return n

        def add(frame: pl.DataFrame) -> pl.DataFrame:
            return pl.DataFrame({"n": [each for n in frame["n"] for each in (n, n + 100)]})

        grown = await grow(
            [seed(), Column("v", v)], rows=4, config=config(buffer_size=2, engine=engine), processors=[pre(add)]
        )
        assert sorted(rows) == [(0, 0), (1, 1), (2, 2), (3, 3), (100, 1), (101, 1), (102, 3), (103, 3)]
        assert grown.column("v") == [0, 100, 1, 101, 2, 102, 3]
        (drop,) = grown.report.dropped
        assert (drop.row, drop.copy, drop.kind) == (3, 2, "failed")
        assert (grown.report.removed, grown.report.added) == (0, 4)

    @ENGINES
    async def test_it_may_remove_every_row(self, autojump_clock: MockClock, engine: str) -> None:
        """A group left without rows is complete and empty; nothing is called for it."""
        column = Watched(0.1)
        grown = await grow(
            [seed(), Column("v", column)],
            rows=4,
            config=config(buffer_size=2, engine=engine),
            processors=[pre(lambda frame: frame.filter(pl.col("n") > 1))],
        )
        assert grown.column("v") == [2, 3]
        assert sorted(column.attempts) == [2, 3]
        assert (grown.report.dropped, grown.report.removed) == ((), 2)

    @ENGINES
    async def test_its_failure_skips_that_group_only(self, autojump_clock: MockClock, engine: str) -> None:
        """The rows of the group are listed as skipped with the reason; the other groups continue."""
        column, told = Watched(0.1), []

        def picky(frame: pl.DataFrame) -> pl.DataFrame:
            if 2 in frame["n"]:
                raise ValueError("not these")
            return frame

        grown = await grow(
            [seed(), Column("v", column)],
            rows=6,
            config=config(buffer_size=2, engine=engine),
            processors=[pre(picky)],
            readers=[lambda event: told.append(event) if isinstance(event, events.RowGroupSkipped) else None],
        )
        assert grown.column("v") == [0, 1, 4, 5]
        assert sorted(column.attempts) == [0, 1, 4, 5]
        assert grown.report.skipped_row_groups == (1,)
        line = picky.__code__.co_firstlineno + 2
        reason = f"picky: ValueError: not these (test_processors.py, line {line})"
        assert [(drop.row, drop.kind, drop.error) for drop in grown.report.dropped] == [
            (2, "skipped", reason),
            (3, "skipped", reason),
        ]
        assert [(event.row_group, event.error) for event in told] == [(1, reason)]
        assert list(grown.report.tracebacks) == list(grown.report.drops_by_reason)

    @pytest.mark.parametrize(
        ("apply", "reason"),
        [
            (lambda frame: frame.rename({"n": "m"}), "lost 'n' and has 'm', which no column generates"),
            (lambda frame: frame.with_columns(extra=1), "the frame it returned has 'extra', which no column generates"),
            (lambda frame: frame.drop("other"), "the frame it returned lost 'other'"),
            (lambda frame: frame["n"].to_list(), "a processor must return a polars frame, not list"),
            (lambda frame: None, "a processor must return a polars frame, not NoneType"),
        ],
    )
    @ENGINES
    async def test_wrong_columns_skip_the_group(
        self, autojump_clock: MockClock, apply: Apply, reason: str, engine: str
    ) -> None:
        """What it returned is checked, and the reason says what is wrong."""
        grown = await grow(
            [seed(), seed("other"), Column("v", twice)],
            rows=1,
            config=config(engine=engine),
            processors=[pre(apply, name="p")],
        )
        (drop,) = grown.report.dropped
        assert drop.error.startswith("p: ")
        assert reason in drop.error
        assert grown.report.written == 0

    async def test_it_is_a_barrier_for_columns_without_requirements(self, autojump_clock: MockClock) -> None:
        """A column that needs nothing waits too, and is made for the rows that the processor left."""
        started = []

        async def slow(rows: range) -> list[int]:
            await trio.sleep(5)
            return list(rows)

        async def free() -> str:
            started.append(trio.current_time() - start)
            return "x"

        start = trio.current_time()
        grown = await grow(
            [Column("n", slow, kind="from_scratch"), Column("free", free)],
            rows=3,
            processors=[pre(lambda frame: frame.head(1))],
        )
        assert started == [5.0]
        assert grown.frame.rows() == [(0, "x")]

    async def test_it_sees_seeds_only_and_runs_once_for_each_group(self, autojump_clock: MockClock) -> None:
        """Its frame has the columns made from scratch, with their side effects, of its own group."""
        seen = []

        async def pair(rows: range) -> dict[str, list[int]]:
            return {"low": list(rows), "low__trace": [0 for _ in rows]}

        def look(frame: pl.DataFrame) -> pl.DataFrame:
            seen.append((frame.columns, frame["low"].to_list()))
            return frame

        await grow(
            [
                Column("low", pair, kind="from_scratch", side_effects=["low__trace"]),
                Column("v", twice, requires=["n"]),
                seed(),
            ],
            rows=3,
            config=TWO,
            processors=[pre(look)],
        )
        assert sorted(seen) == [(["low", "low__trace", "n"], [0, 1]), (["low", "low__trace", "n"], [2])]

    @ENGINES
    async def test_several_run_in_order(self, autojump_clock: MockClock, engine: str) -> None:
        """Each gets what the one before left."""
        grown = await grow(
            [seed(), Column("v", twice)],
            rows=4,
            config=config(engine=engine),
            processors=[
                pre(lambda frame: frame.filter(pl.col("n") != 1), "without_one"),
                pre(lambda frame: frame.filter(pl.col("n") != 3), "without_three"),
            ],
        )
        assert grown.column("n") == [0, 2]
        assert (grown.report.dropped, grown.report.removed) == ((), 2)

    async def test_a_lazy_frame_will_do(self, autojump_clock: MockClock) -> None:
        """What it returns is collected where it is lazy."""
        grown = await grow(
            [seed(), Column("v", twice)], rows=2, processors=[pre(lambda frame: frame.lazy().filter(pl.col("n") > 0))]
        )
        assert grown.column("v") == [2]

    def test_it_needs_something_to_see(self) -> None:
        """A pre-batch processor without a column from scratch is a problem at start-up."""

        async def free() -> int:
            return 1

        with pytest.raises(DatasetGenerationError, match="a pre-batch processor needs a column from scratch"):
            trio.run(lambda: grow([Column("v", free)], rows=1, processors=[pre(lambda frame: frame)]))

    async def test_it_runs_off_the_loop(self, autojump_clock: MockClock) -> None:
        """A slow processor does not hold up the loop: it has a thread."""
        threads = []

        def where(frame: pl.DataFrame) -> pl.DataFrame:
            threads.append(threading.current_thread())
            return frame

        await grow([seed()], rows=1, processors=[pre(where), post(where)])
        assert len(threads) == 2
        assert threading.main_thread() not in threads


class TestPostBatch:
    @ENGINES
    async def test_it_may_filter_and_add_columns(self, autojump_clock: MockClock, tmp_path: Path, engine: str) -> None:
        """Rows it takes out are counted, columns it adds are in the dataset."""

        def keep_large(frame: pl.DataFrame) -> pl.DataFrame:
            return frame.filter(pl.col("v") > 2).with_columns(half=pl.col("v") / 2)

        dataset = await build_async(
            [seed(), Column("v", twice)],
            rows=4,
            out=tmp_path / "data",
            config=config(buffer_size=2, engine=engine),
            processors=[post(keep_large)],
        )
        assert dataset.columns == ("n", "v", "half")
        assert dataset.to_polars().rows() == [(2, 4, 2.0), (3, 6, 3.0)]
        assert dataset.drops == ()
        assert dataset.report is not None
        assert dataset.report.removed == 2
        assert dataset.report.written == 2

    async def test_it_sees_only_rows_that_are_left(self, autojump_clock: MockClock) -> None:
        """A dropped row is not in its frame, and a group without rows is not given to it."""
        seen = []

        def look(frame: pl.DataFrame) -> pl.DataFrame:
            seen.append(frame["n"].to_list())
            return frame

        async def v(n: int) -> int:
            if n in {0, 2, 3}:
                raise Permanent("no")
            return n

        await grow([seed(), Column("v", v)], rows=4, config=TWO, processors=[post(look)])
        assert seen == [[1]]

    @ENGINES
    async def test_its_failure_stops_the_run_and_preserves_other_groups(
        self, autojump_clock: MockClock, tmp_path: Path, engine: str
    ) -> None:
        """The error names processor and group and carries the report; groups on disk stay readable."""

        def picky(frame: pl.DataFrame) -> pl.DataFrame:
            if 2 in frame["n"]:
                raise KeyError("column of dreams")
            return frame

        with pytest.raises(ProcessorFailed) as raised:
            await build_async(
                [seed(), Column("v", twice)],
                rows=6,
                out=tmp_path,
                config=config(buffer_size=2, max_concurrent_row_groups=1, engine=engine),
                processors=[post(picky)],
            )
        failed = "post-batch processor 'picky' failed (row_group=1): KeyError: 'column of dreams' (test_processors.py, "
        assert str(raised.value).startswith(failed)
        assert isinstance(raised.value.__cause__, KeyError)
        report = raised.value.report
        assert report is not None
        assert report.unfinished == (range(2, 6),)
        dataset = Dataset.open(tmp_path)
        assert dataset.to_polars()["v"].to_list() == [0, 2]
        assert not dataset.complete


class TestAfterGeneration:
    @ENGINES
    async def test_its_result_is_beside_the_parts(self, autojump_clock: MockClock, tmp_path: Path, engine: str) -> None:
        """The dataset reads as the processor left it; `raw` has what was generated."""

        def total(frame: pl.LazyFrame) -> pl.LazyFrame:
            assert isinstance(frame, pl.LazyFrame)
            return frame.select(total=pl.col("v").sum())

        dataset = await build_async(
            [seed(), Column("v", twice)],
            rows=5,
            out=tmp_path,
            config=config(buffer_size=2, engine=engine),
            processors=[Processor(stage="after_generation", apply=total)],
        )
        assert dataset.to_polars().rows() == [(20,)]
        assert dataset.raw().to_polars()["v"].to_list() == [0, 2, 4, 6, 8]
        assert dataset.report is not None
        assert (dataset.report.written, dataset.report.removed) == (1, 4)

    async def test_several_run_in_order_and_may_be_eager(self, autojump_clock: MockClock, tmp_path: Path) -> None:
        """Each gets what the one before returned, as a lazy frame."""
        dataset = await build_async(
            [seed()],
            rows=4,
            out=tmp_path,
            processors=[
                Processor(stage="after_generation", apply=lambda frame: frame.collect().sort("n", descending=True)),
                Processor(stage="after_generation", apply=lambda frame: frame.head(1)),
            ],
        )
        assert dataset.to_polars().rows() == [(3,)]

    @pytest.mark.parametrize(
        ("apply", "text"),
        [
            (lambda frame: 1 / 0, "after-generation processor 'p' failed: ZeroDivisionError: division by zero"),
            (
                lambda frame: 3,
                "after-generation processor 'p' failed: TypeError: it must return a polars frame, not int",
            ),
            (lambda frame: frame.select("nowhere"), "after-generation processor 'p' failed: ColumnNotFoundError"),
        ],
    )
    async def test_its_failure_leaves_the_parts_readable(
        self, autojump_clock: MockClock, tmp_path: Path, apply: Apply, text: str
    ) -> None:
        """What was generated is complete and can be read, whatever became of the processor."""
        with pytest.raises(ProcessorFailed) as raised:
            await build_async(
                [seed(), Column("v", twice)],
                rows=3,
                out=tmp_path,
                config=TWO,
                processors=[Processor(stage="after_generation", apply=apply, name="p")],
            )
        assert str(raised.value).startswith(text)
        assert raised.value.report is not None
        assert raised.value.report.unfinished == ()
        dataset = Dataset.open(tmp_path)
        dataset.verify()
        assert dataset.to_polars()["v"].to_list() == [0, 2, 4]


class TestProcessor:
    def test_its_stage_is_checked(self) -> None:
        """An unknown stage is answered with the known ones."""
        with pytest.raises(ConfigError, match="stage must be 'pre_batch', 'post_batch' or 'after_generation'"):
            Processor(stage="before", apply=len)

    def test_its_function_is_checked(self) -> None:
        """Something that cannot be called is refused at once."""
        with pytest.raises(ConfigError, match="a processor's apply must be a function of a frame, not 3"):
            Processor(stage="pre_batch", apply=3)  # type: ignore[arg-type]

    def test_its_label_is_its_name_or_its_function(self) -> None:
        """Reports call it by what its author called it."""
        assert pre(len).label == "len"
        assert pre(len, "measure").label == "measure"


TYPED = [
    seed(),
    Column("small", lambda n: n, dtype=pl.Int8),
    Column("half", lambda n: n / 2, dtype=pl.Float64),
    Column("none", lambda n: None, dtype=str),
]


def test_a_post_batch_function_may_change_declared_types(tmp_path: Path) -> None:
    """It gets columns of their declared types; what it casts has the new type, others have the declared one."""
    seen = []

    def cast(frame: pl.DataFrame) -> pl.DataFrame:
        seen.append(dict(frame.schema))
        return frame.with_columns(pl.col("half").cast(pl.String))

    declared = {"n": pl.Int64, "small": pl.Int8, "half": pl.Float64, "none": pl.String}
    dataset = build(TYPED, rows=4, out=tmp_path / "out", processors=[post(cast)], config=TWO)
    assert seen == [declared, declared]
    assert dict(dataset.schema) == {**declared, "half": pl.String}
    assert dataset.to_polars()["half"].to_list() == ["0.0", "0.5", "1.0", "1.5"]
    assert dict(preview(TYPED, rows=3, processors=[post(cast)]).frame.schema) == dict(dataset.schema)
    assert dict(resume(tmp_path / "out", TYPED).schema) == declared


def test_a_post_batch_function_may_remove_what_does_not_fit_its_type(tmp_path: Path) -> None:
    """A value of another type than the declared one is a conflict only if it is written."""

    def only_numbers(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(pl.col("n") != 2)

    columns = [seed(), Column("v", lambda n: "two" if n == 2 else n, requires=["n"], dtype=int)]
    dataset = build(columns, rows=5, out=tmp_path / "a", processors=[post(only_numbers)], config=TWO)
    assert (dataset.schema["v"], dataset.to_polars()["v"].to_list()) == (pl.Int64, [0, 1, 3, 4])
    with pytest.raises(SchemaConflict, match="column 'v'"):
        build(columns, rows=5, out=tmp_path / "b", processors=[post(lambda frame: frame)], config=TWO)
