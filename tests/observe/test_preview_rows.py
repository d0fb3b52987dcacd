"""The rows of a preview: streamed as they finish, with what removed them and the prompts of their cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import seedbed as sb
from seedbed.observe.preview import PreviewRow, positions_before
from seedbed.testing import virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


def number(rows: range) -> list[int]:
    """The number of each row."""
    return list(rows)


NUMBER = sb.Column("number", number, kind="from_scratch")


def recipe(*processors: Any, **options: Any) -> sb.Recipe:
    """A text of a scripted model about each number."""
    columns = [
        sb.Uniform("number", low=0, high=9, decimals=0),
        sb.LLMText("text", model="writer", prompt="About {{ number }}.", system="Be brief.", **options),
    ]
    return sb.Recipe(seed=3, models={"writer": sb.Scripted()}, columns=columns, processors=processors)


def test_rows_come_as_they_finish() -> None:
    """The last row is the first to be finished; each is handed out at that instant."""

    async def slow(number: int) -> int:
        await trio.sleep(10 - number)
        return number

    seen: list[tuple[int | None, float]] = []
    with virtual_time():
        shown = sb.preview(
            [NUMBER, sb.Column("slow", slow)], rows=3, on_row=lambda row: seen.append((row.number, trio.current_time()))
        )
    begin = seen[0][1] - 8.0
    assert [(row, round(time - begin)) for row, time in seen] == [(2, 8), (1, 9), (0, 10)]
    assert [row.number for row in shown.rows] == [0, 1, 2]
    assert shown.rows[2].values == {"number": 2, "slow": 2}


def test_a_dropped_row_has_its_reason_and_what_was_generated() -> None:
    """The values so far are shown with the error."""

    async def fails(number: int) -> int:
        if number == 1:
            raise sb.Permanent("no ones")
        return number

    seen: list[PreviewRow] = []
    shown = sb.preview([NUMBER, sb.Column("other", fails)], rows=3, on_row=seen.append)
    (row,) = (row for row in seen if row.removed is not None)
    assert (row.number, row.removed) == (1, "dropped by 'other': no ones")
    assert row.values["number"] == 1
    assert shown.to_polars().height == 2


def test_rows_that_processors_remove_are_marked() -> None:
    """Post-batch and after-generation processors remove rows that were finished; the report counts them."""
    processors = [sb.Filter(expr="number != 2"), sb.Filter(expr="number != 1", stage="after_generation")]
    seen: list[PreviewRow] = []
    shown = sb.preview(recipe(*processors), rows=8, on_row=seen.append)
    removed = [row for row in shown.rows if row.removed is not None]
    assert {row.values["number"] for row in removed} <= {1, 2}
    assert removed
    assert [row for row in seen if row.removed] == sorted(
        removed, key=lambda row: (row.values["number"] == 1, row.number)
    )
    left = [row.values["number"] for row in shown.rows if row.removed is None]
    assert shown.to_polars()["number"].to_list() == left
    assert (shown.report.written, shown.report.removed) == (len(left), 8 - len(left))


def test_rows_removed_before_generation_have_no_number() -> None:
    """They have the values that the pre-batch processor saw, and no call was made for them."""
    shown = sb.preview(recipe(sb.Filter(expr="number < 5", stage="pre_batch")), rows=8, show_prompts=True)
    removed = [row for row in shown.rows if row.number is None]
    assert {row.removed for row in removed} == {"removed by 'filter'"}
    assert all(float(str(row.values["number"])) >= 5 for row in removed)
    assert all(row.values.keys() == {"number"} and not row.prompts for row in removed)
    assert len(shown.rows) == 8


def test_prompts_are_shown_when_asked() -> None:
    """Each row has the messages of its calls."""
    row = sb.preview(recipe(), rows=1, show_prompts=True).rows[0]
    (prompt,) = row.prompts
    assert (prompt.column, prompt.model) == ("text", "writer")
    assert prompt.messages == (("system", "Be brief."), ("user", f"About {row.values['number']}."))
    assert sb.preview(recipe(), rows=1).rows[0].prompts == ()


def test_a_repaired_answer_is_one_conversation() -> None:
    """A repair continues the conversation of the first call: it is shown once, whole."""

    async def ask(model: sb.Model) -> str:
        first = [sb.Message(role="user", content="one")]
        await model.chat(first)
        await model.chat([*first, sb.Message(role="user", content="again")])
        return await model.chat("two")

    columns = [sb.Custom("text", ask, models={"model": "writer"})]
    shown = sb.preview(sb.Recipe(models={"writer": sb.Scripted()}, columns=columns), rows=1, show_prompts=True)
    assert [[content for _, content in each.messages] for each in shown.rows[0].prompts] == [["one", "again"], ["two"]]


def test_an_error_of_on_row_stops_the_preview() -> None:
    """It is the caller's code: its error is reported."""

    def fails(row: PreviewRow) -> None:
        raise ZeroDivisionError(row.number)

    with pytest.raises(sb.BuildStopped, match="ZeroDivisionError"):
        sb.preview([NUMBER], rows=1, on_row=fails)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans())), st.randoms())
def test_removed_rows_are_found(rows: list[tuple[int, bool]], random: Random) -> None:
    """Whatever a processor removes, in whatever order it returns the others: they are what was there before."""
    before = pl.DataFrame({"a": [value for value, _ in rows]}, schema={"a": pl.Int64})
    left = [value for value, stays in rows if stays]
    random.shuffle(left)
    found = positions_before(before, pl.DataFrame({"a": left}, schema={"a": pl.Int64}))
    assert found is not None
    assert len(set(found)) == len(left)
    assert [rows[at][0] for at in found] == left


BEFORE = pl.DataFrame({"a": [3, 1, 2, 1], "b": ["x", "y", "z", "y"], "c": [0.5, None, float("nan"), None]})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda frame: frame.filter(pl.col("a") != 1), [0, 2]),
        (lambda frame: frame.filter(pl.col("c").is_nan()), [2]),
        (lambda frame: frame.unique(maintain_order=True), [0, 1, 2]),
        (lambda frame: frame.sort("a", descending=True).head(2), [0, 2]),
        (lambda frame: frame.filter(pl.col("a") > 1).with_columns(pl.col("b").str.to_uppercase(), d=1), [0, 2]),
        (lambda frame: frame.with_columns(a=0, b=pl.lit(""), c=0.0), [0, 1, 2, 3]),
        (lambda frame: frame.select(d=1), None),
        (lambda frame: frame.clear(), []),
        (lambda frame: frame.select("b").rename({"b": "e"}).head(2), None),
        (lambda frame: pl.concat([frame, frame]), None),
        (lambda frame: frame.with_columns(a=7, b=pl.lit("y")).head(1).drop("c"), None),
    ],
)
def test_rows_are_recognized_by_what_a_processor_left_as_it_was(
    change: Callable[[pl.DataFrame], pl.DataFrame], found: list[int] | None
) -> None:
    """Rows that cannot be told apart by that are not guessed."""
    assert positions_before(BEFORE, change(BEFORE)) == found


def test_rows_that_look_alike_and_differ_elsewhere_are_not_guessed() -> None:
    """Which of two rows with the same unchanged values is gone cannot be known."""
    before = pl.DataFrame({"a": [1, 1], "b": ["x", "y"]})
    assert positions_before(before, pl.DataFrame({"a": [1], "b": ["Y"]})) is None


def test_a_function_that_cleans_and_removes_marks_its_rows() -> None:
    """Also in a preview of many rows, and for the processor after it."""

    def clean(frame: pl.DataFrame) -> pl.DataFrame:
        return (
            frame.filter(pl.col("number") % 2 == 0).sort("number", descending=True).with_columns(text=pl.lit("clean"))
        )

    processors = [
        sb.Processor(stage="post_batch", apply=clean),
        sb.Processor(stage="post_batch", apply=lambda frame: frame.head(100), name="first"),
    ]
    columns = [NUMBER, sb.Column("text", lambda number: f"text {number}")]
    shown = sb.preview(columns, rows=3_000, processors=processors)
    assert all(row.removed == "removed by 'clean'" for row in shown.rows if row.values["number"] % 2)
    left = [row.values["number"] for row in shown.rows if row.removed is None]
    assert sorted(left, reverse=True) == shown.frame["number"].to_list()
    assert len(left) == 100
