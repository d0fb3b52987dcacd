"""What a generator returns, and what is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from engine_helpers import config, grow, seed

from seedbed import BadOutput, Column
from seedbed.engine.failures import error_text
from seedbed.engine.plan import plan_build
from seedbed.engine.source import make_source
from seedbed.engine.worker import cell_value, group_values

if TYPE_CHECKING:
    from trio.testing import MockClock

    from seedbed.engine.tasks import Step


class ArrayLike:
    """What numpy arrays are to the engine."""

    def tolist(self) -> list[int]:
        return [1, 2]


def make_step(**options: Any) -> Step:
    """A column as the engine runs it."""
    kind = options.pop("kind", "full_column")
    column = Column("v", lambda frame: frame, kind=kind, requires=["frame"] if kind == "cell" else ["n"], **options)
    columns = [seed("frame"), seed(), column]
    return plan_build(make_source(columns, config=config(engine="sequential")), rows=1).output.steps[2]


class TestWholeColumns:
    @pytest.mark.parametrize(
        "result",
        [
            [1, 2],
            (1, 2),
            range(1, 3),
            pl.Series([1, 2]),
            pl.DataFrame({"v": [1, 2]}),
            pl.LazyFrame({"v": [1, 2]}),
            pl.DataFrame({"n": [0, 1], "v": [1, 2]}),
            pa.array([1, 2]),
            pa.chunked_array([[1], [2]]),
            pa.table({"v": [1, 2]}),
            {"v": [1, 2]},
            {"v": pl.Series([1, 2])},
            ArrayLike(),
        ],
        ids=lambda result: type(result).__name__,
    )
    def test_any_sequence_will_do(self, result: Any) -> None:
        """Lists, series, arrays, frames and mappings are the same values; a frame may hold the columns it was given."""
        assert group_values(make_step(), result, 2) == [[1, 2]]

    @pytest.mark.parametrize(
        ("result", "text"),
        [
            ([1], "column 'v' returned 1 values of 'v' for 2 rows"),
            ([1, 2, 3], "column 'v' returned 3 values of 'v' for 2 rows"),
            ("ab", "column 'v' must return a sequence of values, one a row, not a value of type str"),
            (7, "column 'v' must return a sequence of values, one a row, not a value of type int"),
            (None, "column 'v' must return a sequence of values, one a row, not a value of type NoneType"),
            ({"w": [1, 2]}, "column 'v' did not return 'v' and returned 'w', which is none of its outputs"),
            (pl.DataFrame({"v": [1, 2], "x": [1, 2]}), "column 'v' returned 'x', which is none of its outputs"),
        ],
    )
    def test_what_does_not_fit_is_named(self, result: Any, text: str) -> None:
        """The error says which column, what was found and what was wanted."""
        with pytest.raises(BadOutput) as raised:
            group_values(make_step(), result, 2)
        assert str(raised.value) == text

    def test_several_outputs(self) -> None:
        """All outputs must be there, side effects may be missing and are null then."""
        step = make_step(outputs=["v", "w"], side_effects=["v__trace"])
        assert group_values(step, {"w": [3, 4], "v": [1, 2]}, 2) == [[1, 2], [3, 4], [None, None]]
        with pytest.raises(BadOutput, match="column 'v' did not return 'w'"):
            group_values(step, {"v": [1, 2]}, 2)
        with pytest.raises(BadOutput, match="must return a frame or mapping of 'v', 'w', 'v__trace', not a value of"):
            group_values(step, [1, 2], 2)
        with pytest.raises(BadOutput, match="returned 1 values of 'w' for 2 rows"):
            group_values(step, {"w": [3], "v": [1, 2]}, 2)


class TestCells:
    def test_one_output_is_the_value_itself(self) -> None:
        """A mapping is a value like any other where there is one output."""
        assert cell_value(make_step(kind="cell"), {"a": 1}) == {"a": 1}

    def test_several_outputs_come_by_name(self) -> None:
        """In the order of the outputs, side effects null where they are missing."""
        step = make_step(kind="cell", outputs=["v", "w"], side_effects=["t"])
        assert cell_value(step, {"w": 2, "v": 1}) == (1, 2, None)
        with pytest.raises(BadOutput, match="column 'v' did not return 'w' and returned 'x', which is none of its"):
            cell_value(step, {"v": 1, "x": 2})
        with pytest.raises(BadOutput, match="must return a mapping of 'v', 'w', 't', not a value of type list"):
            cell_value(step, [1, 2])


@pytest.mark.parametrize("engine", ["concurrent", "sequential"])
async def test_a_bad_output_drops_its_rows_and_no_others(autojump_clock: MockClock, engine: str) -> None:
    """It is a failure like any other: permanent, with its reason."""

    async def pair(n: int) -> dict[str, int]:
        return {"low": n} if n == 1 else {"low": n, "high": n}

    async def whole(frame: pl.DataFrame) -> list[int]:
        return [1] if frame["n"][0] == 4 else frame["n"].to_list()

    grown = await grow(
        [
            seed(),
            Column("pair", pair, outputs=["low", "high"]),
            Column("whole", whole, kind="full_column", requires=["n"]),
        ],
        rows=6,
        config=config(buffer_size=2, engine=engine),
    )
    assert grown.column("n") == [0, 2, 3]
    assert grown.report.drops_by_reason == {
        "whole: BadOutput: column 'whole' returned 1 values of 'whole' for 2 rows": 2,
        "pair: BadOutput: column 'pair' did not return 'high'": 1,
    }


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (BadOutput("x"), "BadOutput: x"),
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError("a\n  b"), "ValueError: a b"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_an_error_is_one_line_in_reports(error: Exception, text: str) -> None:
    """The class, unless it says nothing, and the message without its line breaks."""
    assert error_text(error) == text
