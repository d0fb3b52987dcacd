"""Exactly N accepted rows: which candidates become rows, what is generated for them, and what a resume continues."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import seedbed as sb
from seedbed.columns.custom import Custom
from seedbed.store import log
from seedbed.store.manifest import MANIFEST_NAME, Decided, Header, Placed, decode_record, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from seedbed.observe.events import Event
    from seedbed.store.manifest import Record

FAST = sb.RunConfig(jitter_seed=1, backoff_base=0.01, backoff_max=0.02, shutdown_error_rate=1.0)


@attrs.define
class World:
    """Columns that count their calls: `score` decides about a row, `text` is for accepted rows."""

    is_good: Callable[[int], bool] = lambda n: n % 3 == 0
    bad: frozenset[tuple[str, int]] = frozenset()
    seconds: Callable[[str, int], float] = lambda _column, _n: 1.0
    calls: Counter[tuple[str, int]] = attrs.Factory(Counter)
    cancelled: list[tuple[str, int]] = attrs.Factory(list)

    async def _cell(self, column: str, n: int) -> None:
        self.calls[column, n] += 1
        try:
            await trio.sleep(self.seconds(column, n))
        except trio.Cancelled:
            self.cancelled.append((column, n))
            raise
        if (column, n) in self.bad:
            raise sb.Permanent(f"bad {n}")

    def columns(self) -> list[Any]:
        async def score(n: int) -> bool:
            await self._cell("score", n)
            return self.is_good(n)

        async def text(n: int) -> str:
            await self._cell("text", n)
            return f"text {n}"

        return [Custom("n", numbers), Custom("score", score), Custom("text", text)]

    def recipe(self, **rules: Any) -> sb.Recipe:
        return sb.Recipe(columns=self.columns(), **{"accept": "score", **rules})

    def called(self, column: str) -> set[int]:
        return {n for name, n in self.calls if name == column}


def numbers(rows: range) -> list[int]:
    """The number of each row."""
    return list(rows)


def run(function: Callable[[], Any]) -> Any:
    """Run in virtual time."""
    return trio.run(function, clock=trio.testing.MockClock(autojump_threshold=0))


def build(recipe: sb.Recipe, rows: int, out: Path, *, config: sb.RunConfig = FAST, **options: Any) -> sb.Dataset:
    """A build in virtual time."""
    return run(lambda: sb.build_async(recipe, rows=rows, out=out, config=config, **options))


def check_counts(report: sb.BuildReport) -> None:
    """The counts add up."""
    unfinished = sum(len(each) for each in report.unfinished)
    left = report.candidates + report.added
    kept = report.written + report.surplus + report.rejected + report.removed
    assert left == kept + len(report.dropped) + unfinished, report


def first(count: int, is_good: Callable[[int], bool] = lambda n: n % 3 == 0) -> list[int]:
    """The numbers of the first accepted candidates."""
    return [n for n in range(100_000) if is_good(n)][:count]


def test_the_dataset_is_the_first_accepted_candidates(tmp_path: Path) -> None:
    """Exactly as many as requested; other columns are generated for accepted rows only, and the counts add up."""
    world = World()
    dataset = build(world.recipe(), 100, tmp_path / "out")
    assert dataset.to_polars()["n"].to_list() == first(100)
    assert pl.read_parquet(tmp_path / "out" / "*.parquet").equals(dataset.to_polars())
    assert all(n % 3 == 0 for n in world.called("text"))
    report = dataset.report
    check_counts(report)
    assert report.rejected == sum(n % 3 != 0 for n in world.called("score"))
    assert report.acceptance_rate == pytest.approx(1 / 3, abs=0.02)
    assert set(world.calls.values()) == {1}
    stored = sb.Dataset.open(tmp_path / "out").report
    assert (stored.candidates, stored.rejected, stored.surplus) == (report.candidates, report.rejected, report.surplus)
    check_counts(stored)
    rejected = dataset.dropped()
    assert rejected["_kind"].unique().to_list() == ["rejected"]
    assert rejected["score"].to_list() == [False] * report.rejected


def test_a_rejected_row_is_left_at_once(tmp_path: Path) -> None:
    """It waits for no other row: a rule that is an expression over a column is decided row by row, too."""
    ends: dict[int, float] = {}
    world = World(seconds=lambda column, n: 100.0 if (column, n) == ("score", 0) else 1.0)

    def hear(event: Event) -> None:
        if type(event).__name__ == "TaskStarted" and event.column == "text":  # type: ignore[attr-defined]
            ends[event.row] = event.time  # type: ignore[attr-defined]

    columns = [*world.columns(), sb.Expression("twice", "n * 2"), sb.Expression("good", "score and twice < 1000")]
    recipe = sb.Recipe(columns=columns, accept="good")
    dataset = build(recipe, 10, tmp_path / "out", readers=[hear])
    assert dataset.to_polars()["n"].to_list() == first(10)
    # The row group has a row whose verdict takes long; what the others need does not wait for it.
    assert ends[3] < 50
    assert ends[0] >= 100


def test_a_row_that_fails_before_the_rule_is_dropped_and_not_rejected(tmp_path: Path) -> None:
    """The failure of a column that decides drops its row; the next candidate takes its place."""
    world = World(bad=frozenset({("score", 3), ("text", 6)}))
    dataset = build(world.recipe(), 30, tmp_path / "out")
    assert dataset.to_polars()["n"].to_list() == [n for n in first(32) if n not in (3, 6)][:30]
    assert {drop.row for drop in dataset.report.dropped} == {3, 6}
    check_counts(dataset.report)


def test_growth_begins_with_the_surplus_and_changes_no_row(tmp_path: Path) -> None:
    """A dataset that grew is the one that was built at once, and files that were there are the same."""
    world = World()
    out = tmp_path / "out"
    build(world.recipe(), 40, out)
    before = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    calls = Counter(world.calls)
    dataset = build(world.recipe(), 100, out, resume=True)
    assert dataset.to_polars()["n"].to_list() == first(100)
    assert all((out / name).read_bytes() == content for name, content in before.items())
    assert all(world.calls[cell] == count for cell, count in calls.items() if cell not in world.cancelled)
    check_counts(dataset.report)


def test_max_candidates_is_an_error_or_a_smaller_dataset(tmp_path: Path) -> None:
    """The error is resumable with more candidates; a partial dataset is complete, and says why it is small."""
    out = tmp_path / "out"
    with pytest.raises(sb.CandidatesExhausted, match=r"30 candidates gave 10 of 20 rows.*max_candidates") as error:
        build(World().recipe(max_candidates=30), 20, out)
    assert error.value.report is not None
    assert error.value.report.written == 10
    assert sb.Dataset.open(out).rows == 10
    partial = build(World().recipe(max_candidates=30, on_exhausted="partial"), 20, out, resume=True)
    assert partial.complete
    assert partial.report.exhausted == "30 candidates gave 10 of 20 rows"
    whole = build(World().recipe(max_candidates=90), 20, out, resume=True)
    assert whole.to_polars()["n"].to_list() == first(20)
    assert whole.complete
    check_counts(whole.report)


def test_a_usage_budget_that_ends_gives_a_partial_dataset(tmp_path: Path) -> None:
    """With on_exhausted: partial the rows that are accepted by then are the dataset; otherwise the build stops."""
    models = {"m": sb.Scripted(answers="yes", input_price=1e6)}
    columns = [Custom("n", numbers), sb.LLMText("answer", model="m", prompt="row {{ n }}")]
    rules: dict[str, Any] = {"accept": "n % 2 == 0"}
    config = attrs.evolve(FAST, max_cost=200.0, buffer_size=16)
    with pytest.raises(sb.BudgetExceeded):
        build(sb.Recipe(models=models, columns=columns, **rules), 1000, tmp_path / "a", config=config)
    recipe = sb.Recipe(models=models, columns=columns, on_exhausted="partial", **rules)
    dataset = build(recipe, 1000, tmp_path / "b", config=config)
    assert dataset.complete
    assert dataset.to_polars()["n"].to_list() == first(dataset.rows, lambda n: n % 2 == 0)
    assert dataset.report.exhausted is not None
    assert "max_cost" in dataset.report.exhausted
    check_counts(dataset.report)


def test_values_of_the_rule_are_true_false_or_null(tmp_path: Path) -> None:
    """Null is a rejection; anything else fails the row, with the value in the message."""

    def verdict(n: int) -> Any:
        return [True, None, "yes", False][n % 4]

    recipe = sb.Recipe(columns=[Custom("n", numbers), Custom("verdict", verdict)], accept="verdict")
    dataset = build(recipe, 8, tmp_path / "out")
    assert dataset.to_polars()["n"].to_list() == first(8, lambda n: n % 4 == 0)
    assert {drop.row % 4 for drop in dataset.report.dropped} == {2}
    assert "'verdict' must be true, false or null, not 'yes'" in dataset.report.dropped_because


def test_a_stateful_column_sees_accepted_rows_only_in_order(tmp_path: Path) -> None:
    """One that the rule does not need is called for accepted rows, in row order; also after growth."""

    class Counted:
        is_stateful = True

        def __init__(self) -> None:
            self.seen: list[int] = []

        def __call__(self, n: int) -> int:
            self.seen.append(n)
            return len(self.seen)

        def get_state(self) -> Any:
            return self.seen

        def set_state(self, state: Any) -> None:
            self.seen = list(state)

    world, counted = World(seconds=lambda _column, n: 1 + n * 7 % 5), Counted()
    recipe = sb.Recipe(columns=[*world.columns(), Custom("count", counted)], accept="score")
    dataset = build(recipe, 40, tmp_path / "out")
    assert dataset.to_polars()["count"].to_list() == list(range(1, 41))
    assert counted.seen == first(len(counted.seen))
    grown = build(recipe, 70, tmp_path / "out", resume=True)
    assert grown.to_polars()["count"].to_list() == list(range(1, 71))


def test_rows_that_processors_remove_do_not_count(tmp_path: Path) -> None:
    """Rows are counted after post-batch processors; after-generation processors see exactly these."""
    seen: list[int] = []

    def halve(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(pl.col("n") % 2 == 0)

    def last(frame: pl.LazyFrame) -> pl.LazyFrame:
        seen.append(frame.collect().height)
        return frame.sort("n", descending=True)

    processors = [
        sb.Processor(stage="post_batch", apply=halve),
        sb.Processor(stage="after_generation", apply=last),
    ]
    out = tmp_path / "out"
    dataset = build(World().recipe(), 30, out, processors=processors)
    assert dataset.to_polars()["n"].to_list() == first(30, lambda n: n % 6 == 0)[::-1]
    assert seen == [30]
    assert dataset.raw().rows == 30
    check_counts(dataset.report)
    grown = build(World().recipe(), 50, out, processors=processors, resume=True)
    assert grown.to_polars()["n"].to_list() == first(50, lambda n: n % 6 == 0)[::-1]
    check_counts(grown.report)


def test_rows_that_pre_batch_processors_add_are_candidates(tmp_path: Path) -> None:
    """The rule is decided for the rows that they return."""

    def twice(frame: pl.DataFrame) -> pl.DataFrame:
        return pl.concat([frame, frame.with_columns(pl.col("n") + 100_000)]).sort(pl.col("n") % 100_000, "n")

    processors = [sb.Processor(stage="pre_batch", apply=twice)]
    dataset = build(World(is_good=lambda n: n % 2 == 0).recipe(), 30, tmp_path / "out", processors=processors)
    assert dataset.to_polars()["n"].to_list() == [n + more for n in range(0, 30, 2) for more in (0, 100_000)]
    check_counts(dataset.report)


def test_a_retried_row_is_surplus_and_nothing_moves(tmp_path: Path) -> None:
    """A candidate that a retry rescues comes after all rows that count, and is used when the dataset grows."""
    out = tmp_path / "out"
    world = World(bad=frozenset({("text", 6), ("score", 9)}))
    before = build(world.recipe(), 20, out).to_polars()
    world.bad = frozenset()
    retried = build(world.recipe(), 20, out, resume=True, retry_dropped=True)
    assert retried.to_polars().equals(before)
    assert retried.report.dropped == ()
    assert retried.report.surplus >= 2
    check_counts(retried.report)
    surplus = retried.report.surplus
    grown = build(world.recipe(), 20 + surplus, out, resume=True)
    assert set(grown.to_polars()["n"].to_list()) >= {6, 9}
    assert grown.to_polars().head(20).equals(before)
    assert world.calls["score", 6] == 1  # only its missing cell was generated


def test_the_rule_and_the_rules_about_duplicates_decide_in_row_order(tmp_path: Path) -> None:
    """Of several rows with one value the first counts, whichever was finished first; also after growth."""
    world = World(is_good=lambda n: n % 2 == 0, seconds=lambda _column, n: 10.0 - n % 10)

    def kind(n: int) -> int:
        return n % 50

    recipe = sb.Recipe(
        columns=[*world.columns(), Custom("kind", kind)], accept="score", unique="kind", on_exhausted="partial"
    )
    out = tmp_path / "out"
    dataset = build(recipe, 10, out)
    assert dataset.to_polars()["n"].to_list() == first(10, lambda n: n % 2 == 0)
    grown = build(recipe, 25, out, resume=True)
    assert grown.to_polars()["n"].to_list() == first(25, lambda n: n % 2 == 0)
    more = build(attrs.evolve(recipe, max_candidates=200), 26, out, resume=True)
    assert (more.rows, more.report.candidates) == (25, 500)  # what was allowed once stays
    assert {drop.column for drop in more.drops if drop.column != "score"} == {"unique"}
    check_counts(more.report)


def test_a_dataset_of_earlier_rules_is_refused(tmp_path: Path) -> None:
    """Another rule, and a column that would have to be added to rows that count, are refused with the reason."""
    out = tmp_path / "out"
    build(World().recipe(), 20, out)
    with pytest.raises(sb.ManifestError, match="accept: 'score' before, 'not score' now"):
        build(World().recipe(accept="not score"), 20, out, resume=True)
    more = sb.Recipe(columns=[*World().columns(), sb.Expression("more", "n + 1")], accept="score")
    with pytest.raises(sb.ManifestError, match="a row that counts never changes"):
        build(more, 20, out, resume=True)


def test_a_preview_generates_so_many_candidates() -> None:
    """Rejected ones are shown with the rule."""
    shown = run_preview(World().recipe(), 6)
    assert shown.to_polars()["n"].to_list() == [0, 3]
    assert [row.removed for row in shown.rows] == [None, "rejected by 'score'", "rejected by 'score'"] * 2
    check_counts(shown.report)


def run_preview(recipe: sb.Recipe, rows: int) -> sb.Preview:
    """A preview; its cells take no time."""
    return sb.preview(
        attrs.evolve(recipe, columns=World(seconds=lambda _column, _n: 0.0).columns()), rows=rows, progress="none"
    )


@settings(max_examples=settings.default.max_examples // 20, deadline=None)
@given(
    salt=st.integers(0, 10_000),
    rate=st.sampled_from([0.1, 0.3, 0.5, 0.9, 1.0]),
    stops=st.lists(st.floats(0, 40), max_size=3),
    how=st.fixed_dictionaries(
        {
            "rows": st.integers(1, 60),
            "size": st.sampled_from([1000, 4]),
            "unique": st.booleans(),
            "grown": st.integers(0, 30),
        }
    ),
)
def test_the_result_does_not_depend_on_timing(salt: int, rate: float, stops: list[float], how: dict[str, Any]) -> None:
    """Whatever latencies and interruptions there are, the dataset is that of one task after the other; it may grow."""
    rows, size, unique, grown = how["rows"], how["size"], how["unique"], how["grown"]

    def chance(*of: object) -> float:
        return hash((salt, *of)) % 9973 / 9973

    def world(*, is_slow: bool) -> World:
        bad = frozenset(
            (column, n) for n in range(400) for column in ("score", "text") if chance(column, n, "bad") < 0.05
        )
        return World(
            is_good=lambda n: chance("good", n) < rate,
            bad=bad,
            seconds=lambda column, n: 0.1 + chance(column, n, "slow") * 5 if is_slow else 0.0,
        )

    rules: dict[str, Any] = {"on_exhausted": "partial", "max_candidates": 400, **({"unique": "text"} if unique else {})}
    config = attrs.evolve(FAST, buffer_size=size)
    with tempfile.TemporaryDirectory() as name:
        sequential = attrs.evolve(config, engine="sequential")
        expected = build(world(is_slow=False).recipe(**rules), rows, Path(name, "calm"), config=sequential)
        made, out = world(is_slow=True), Path(name, "out")
        for seconds in stops:

            async def interrupted(seconds: float = seconds) -> None:
                with trio.move_on_after(seconds):
                    await sb.build_async(made.recipe(**rules), rows=rows, out=out, config=config, resume=True)

            run(interrupted)
        dataset = build(made.recipe(**rules), rows, out, config=config, resume=True)
        assert dataset.to_polars().equals(expected.to_polars())
        check_counts(dataset.report)
        check_counts(sb.Dataset.open(out).report)
        assert made.called("text") <= {n for n in range(400) if made.is_good(n)}
        dataset.verify()
        if grown:
            more = build(made.recipe(**rules), rows + grown, out, config=config, resume=True)
            at_once = build(world(is_slow=False).recipe(**rules), rows + grown, Path(name, "more"), config=config)
            assert more.to_polars().equals(at_once.to_polars())
            assert more.to_polars().head(dataset.rows).equals(dataset.to_polars())
            check_counts(more.report)


def test_the_events_add_up(tmp_path: Path) -> None:
    """Displays learn of each rejected row, of what is accepted and of how many candidates it will take."""
    heard: list[Event] = []
    dataset = build(World().recipe(), 60, tmp_path / "out", readers=[heard.append])
    decided: Iterable[Any] = [each for each in heard if type(each).__name__ == "RowsDecided"]
    *_, last = decided
    assert last.accepted == dataset.rows + dataset.report.surplus
    assert sum(type(each).__name__ == "RowRejected" for each in heard) == dataset.report.rejected
    assert math.isclose(last.rate, 1 / 3, abs_tol=0.05)


def test_damage_costs_no_row_that_counts(tmp_path: Path) -> None:
    """A file of the root is written again from its part; of a damaged part only the surplus is lost."""
    out = tmp_path / "out"
    expected = build(World().recipe(), 40, out).to_polars()
    parts = sorted((out / ".seedbed" / "parts").glob("batch_*.part"))
    files = sorted(out.glob("batch_*.parquet"))
    files[1].write_bytes(b"damaged")
    parts[0].unlink()
    found = sb.Dataset.open(out).damage()
    assert len(found) == 2
    repaired = build(World().recipe(), 40, out, resume=True)
    assert repaired.to_polars().equals(expected)
    repaired.verify()
    check_counts(repaired.report)
    parts[-1].write_bytes(b"")  # its surplus
    again = build(World().recipe(), 40, out, resume=True)
    assert again.to_polars().equals(expected)
    check_counts(again.report)
    grown = build(World().recipe(), 60, out, resume=True)
    assert grown.to_polars().head(40).equals(expected)
    assert grown.rows == 60
    check_counts(grown.report)


def test_near_duplicates_of_vectors_and_stages(tmp_path: Path) -> None:
    """Rules belong to a stage: children come from the rows of it that count."""

    def vector(n: int) -> list[float]:
        return [math.cos(n % 7), math.sin(n % 7)]

    recipe = sb.Recipe(
        stages=[
            sb.Stage(
                "topics",
                rows=7,
                columns=[Custom("n", numbers), Custom("vector", vector)],
                near_duplicates={"of": "vector", "threshold": 0.99},
                accept="n != 0",
            ),
            sb.Stage("questions", from_="topics", each=2, columns=[sb.Expression("question", "'about ' ~ n")]),
        ]
    )
    dataset = run(lambda: sb.build_async(recipe, out=tmp_path / "out", config=FAST))
    topics = dataset.stage("topics").to_polars()["n"].to_list()
    assert topics == [1, 2, 3, 4, 5, 6, 7]
    assert dataset.to_polars()["question"].to_list() == [f"about {n}" for n in topics for _ in range(2)]


def test_a_damaged_decision_or_file_record_costs_nothing(tmp_path: Path) -> None:
    """What later records depend on is in the manifest twice: any one copy may be damaged."""
    out = tmp_path / "out"
    dataset = build(sb.Recipe(columns=World().columns(), accept="score"), 20, out)
    path, content = out / MANIFEST_NAME, (out / MANIFEST_NAME).read_bytes()
    ranges = [each for each in log.scan(content).records if isinstance(decode_record(each.payload), Decided | Placed)]
    assert len(ranges) >= 4
    for each in ranges:
        middle = (each.start + each.end) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        found = sb.Dataset.open(out)
        assert found.to_polars().equals(dataset.to_polars())
        assert len(found.damage()) == 1


def change_records(out: Path, change: Callable[[Record], Record | None]) -> None:
    """Change records of a manifest or remove them, both copies; their checksums are right again afterwards."""
    path = out / MANIFEST_NAME
    found = [decode_record(each.payload) for each in log.scan(path.read_bytes()).records]
    changed = [change(record) for record in found if record is not None]
    path.write_bytes(b"".join(log.frame(1, encode_record(record)) for record in changed if record is not None))


def test_files_after_a_lost_record_are_written_again(tmp_path: Path) -> None:
    """With both copies of a file's record lost the rows before it are left, and a resume brings all of them back."""
    out = tmp_path / "out"
    recipe = sb.Recipe(columns=World().columns(), accept="score")
    config = attrs.evolve(FAST, buffer_size=6)
    dataset = build(recipe, 20, out, config=config)
    change_records(out, lambda each: None if isinstance(each, Placed) and each.number == 2 else each)
    left = sb.Dataset.open(out)
    assert not left.complete
    assert left.to_polars().equals(dataset.to_polars().head(4))
    again = build(recipe, 20, out, config=config, resume=True)
    assert again.complete
    assert again.to_polars().equals(dataset.to_polars())
    assert sb.Dataset.open(out).damage() == ()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda each: None if each.number == 1 else each, id="lost"),
        pytest.param(lambda each: replace(each, stop=2**62), id="rows that its row group does not have"),
        pytest.param(lambda each: replace(each, stop=each.stop + 1), id="one row too many"),
    ],
)
def test_impossible_decisions_are_rejected(tmp_path: Path, change: Callable[[Decided], Decided | None]) -> None:
    """Files refer to decisions by their number: with one lost, or about rows that do not exist, nothing is guessed."""
    out = tmp_path / "out"
    build(sb.Recipe(columns=World().columns(), accept="score"), 8, out, config=attrs.evolve(FAST, buffer_size=6))
    change_records(out, lambda each: change(each) if isinstance(each, Decided) else each)
    with pytest.raises(sb.ManifestError):
        sb.Dataset.open(out)


@pytest.mark.parametrize("name", ["../other", "..", "", "a/b"])
def test_a_stage_is_never_a_folder_elsewhere(tmp_path: Path, name: str) -> None:
    """A manifest that names a stage which would be a folder outside of its dataset is rejected."""
    out = tmp_path / "out"
    build(sb.Recipe(columns=World().columns(), accept="score"), 2, out)
    change_records(out, lambda each: replace(each, stages=("a", name)) if isinstance(each, Header) else each)
    with pytest.raises(sb.ManifestError, match="names a stage"):
        sb.Dataset.open(out)
