"""Which columns run in a simulation, and the placeholders of those that do not."""

from __future__ import annotations

import datetime
import decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from recipes import model

import seedbed as sb
from seedbed.columns.spec import processor_types, spec_types
from seedbed.simulation.calls import of_type
from seedbed.simulation.stage import _is_built_in
from seedbed.store.schema import declared_type

if TYPE_CHECKING:
    from collections.abc import Callable

simulate = partial(sb.simulate, seeds=1, overhead=0.0)
TOPIC = sb.Category("topic", values=["tea", "bread", "rain"])
SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}, "points": {"type": "array", "items": {"type": "string"}}},
    "required": ["mood", "points"],
}


def recipe(*columns: Any, **options: Any) -> sb.Recipe:
    """Columns over a topic, with two models."""
    return sb.Recipe(models={"writer": model(), "other": model("other")}, columns=[TOPIC, *columns], **options)


def calls_of(found: sb.Simulation) -> dict[str, float]:
    """How many calls each column makes."""
    return {each.column: each.calls.mean for each in found.base.columns}


def test_every_kind_of_model_column_is_simulated() -> None:
    """Texts, code, structured values, judges, vectors and pictures have values that what comes after them can use."""
    found = simulate(
        recipe(
            sb.LLMText("text", model="writer", prompt="About {{ topic }}.", trace=True, reasoning=True),
            sb.LLMCode("python", model="writer", language="python", prompt="Code for {{ topic }}."),
            sb.LLMCode("rust", model="writer", language="rust", prompt="Code for {{ topic }}."),
            sb.LLMStructured("facts", model="writer", prompt="Facts of {{ text }}.", schema=SCHEMA),
            sb.Judge("quality", model="other", of="text", scores={"clarity": "1 to 5"}),
            sb.Embedding("vector", model="other", of="text"),
            sb.Image("picture", model="other", prompt="Draw {{ facts.mood }}."),
            sb.Expression("good", "quality.clarity >= 3 and facts.mood == 'good'"),
            sb.Validation("valid", of="python", kind="python", lint=False),
            sb.Expression("checked", "valid.is_valid"),
        ),
        rows=120,
    )
    assert found.base.written.mean == 120
    assert found.base.notes == ()
    assert calls_of(found) == dict.fromkeys(("text", "python", "rust", "facts", "quality", "vector", "picture"), 120)
    assert {use.models for use in found.base.keys} == {("writer",), ("other",)}


def test_functions_are_not_run() -> None:
    """A user-defined function is replaced by a placeholder of its return type, with a note."""
    ran: list[str] = []

    @sb.column
    def number(topic: str) -> int:
        ran.append(topic)
        return 1

    @sb.column(requires=["topic"])
    def whole(frame: pl.DataFrame) -> list[str]:
        ran.append("whole")
        return ["x"] * frame.height

    found = simulate(recipe(number, whole, sb.Expression("twice", "number * 2")), rows=10)
    assert not ran
    assert found.base.written.mean == 10
    assert [note.split(":")[0] for note in found.base.notes] == [
        "column 'number' is user-defined",
        "column 'whole' is user-defined",
    ]


def test_functions_named_by_run_code_are_run() -> None:
    """`run_code` runs a function for real; its calls are simulated and counted as it makes them."""
    answers: list[str] = []

    @sb.column
    async def talk(topic: str, writer: sb.Model, other: sb.Model) -> str:
        first = await writer.chat(f"About {topic}")
        answers.append(await other.chat(first))
        return answers[-1]

    found = simulate(
        recipe(talk), rows=8, run_code=["talk"], calls={"writer": {"latency": 1.0}, "other": {"latency": 3}}
    )
    assert len(answers) == 8
    assert {(each.column, each.model, each.calls.mean) for each in found.base.columns} == {
        ("talk", "writer", 8),
        ("talk", "other", 8),
    }
    # Two waves of four: what waits for the other model holds nothing of the first.
    assert found.seconds == pytest.approx(7.0, abs=0.1)


def test_sync_functions_that_run_call_through_the_bridge() -> None:
    """A sync function in its thread has simulated models too."""

    @sb.column
    def talk(topic: str, writer: sb.Model) -> str:
        return writer.sync.chat(f"About {topic}")

    found = simulate(recipe(talk), rows=4, run_code=["talk"], calls={"writer": {"latency": 2.0}})
    assert found.seconds == pytest.approx(2.0, abs=0.1)
    assert calls_of(found) == {"talk": 4}


def test_a_function_with_models_makes_a_call_of_each() -> None:
    """The number of its calls is not known: one each, or that of its profile."""

    @sb.column
    async def talk(topic: str, writer: sb.Model, other: sb.Model) -> str:
        raise AssertionError("it must not run")

    found = simulate(recipe(talk), rows=10)
    assert {(each.model, each.calls.mean) for each in found.base.columns} == {("writer", 10), ("other", 10)}
    found = simulate(recipe(talk), rows=200, calls={"talk": {"calls": 1.5}})
    assert found.base.total.calls.mean == pytest.approx(600, abs=60)


def test_several_calls_a_cell() -> None:
    """Repairs are calls: a cell that makes two on average takes twice as long."""
    text = sb.LLMText("text", model="writer", prompt="About {{ topic }}.")
    found = simulate(recipe(text), rows=400, calls={"text": {"calls": 2, "latency": 1.0}})
    # The first cells run their generator, and simulated answers need no repair.
    assert found.base.total.calls.mean == pytest.approx(800, abs=60)
    assert found.seconds == pytest.approx(200, rel=0.1)


def test_expressions_that_placeholders_do_not_fit_cost_no_row() -> None:
    """A failure on placeholders gives nulls and a note, not dropped rows."""

    @sb.column
    def thing(topic: str) -> dict[str, int]:
        raise AssertionError("it must not run")

    found = simulate(recipe(thing, sb.Expression("deep", "thing.a.b + 1")), rows=5)
    assert found.base.written.mean == 5
    assert any("column 'deep' is null where placeholders do not fit it" in note for note in found.base.notes)


def test_real_values_decide_what_is_skipped() -> None:
    """A rule over values that are drawn for real skips what it will skip."""
    text = sb.LLMText("text", model="writer", prompt="About {{ topic }}.", skip_when="topic == 'tea'")
    found = simulate(recipe(text), rows=300)
    rows = sb.preview(sb.Recipe(columns=[TOPIC]), rows=300).to_polars()
    assert calls_of(found)["text"] == rows.filter(pl.col("topic") != "tea").height
    assert found.base.notes == ()


def test_a_share_of_skipped_cells_can_be_given() -> None:
    """A rule over placeholders is noted, and can be replaced by a share."""
    columns = (
        sb.LLMText("text", model="writer", prompt="About {{ topic }}."),
        sb.LLMText("more", model="writer", prompt="More of {{ text }}.", skip_when="text"),
    )
    found = simulate(recipe(*columns), rows=20)
    assert found.base.notes == ("skip_when of column 'more' reads placeholders; set the share that it skips",)
    found = simulate(recipe(*columns), rows=400, calls={"more": {"skipped": 0.25}})
    assert calls_of(found)["more"] == pytest.approx(300, abs=40)
    assert found.base.notes == ()


def test_recipe_processors_before_a_batch_are_run() -> None:
    """Rows that a filter removes before the calls have none; processors after the calls are not run."""
    found = simulate(
        recipe(
            sb.LLMText("text", model="writer", prompt="About {{ topic }}."),
            processors=[
                sb.Filter(expr="topic != 'tea'", stage="pre_batch"),
                sb.Filter(expr="text == 'never'", stage="post_batch"),
            ],
        ),
        rows=300,
    )
    rows = sb.preview(sb.Recipe(columns=[TOPIC]), rows=300).to_polars().filter(pl.col("topic") != "tea").height
    assert calls_of(found)["text"] == rows
    assert found.base.written.mean == rows
    assert any("is not run: it follows the calls" in note for note in found.base.notes)


def test_user_defined_processors_are_not_run() -> None:
    """Unless `run_code` names them."""

    def half(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.head(frame.height // 2)

    text = sb.LLMText("text", model="writer", prompt="About {{ topic }}.")
    mine = [sb.Processor(stage="pre_batch", apply=half)]
    assert calls_of(simulate(recipe(text), rows=20, processors=mine)) == {"text": 20}
    assert calls_of(simulate(recipe(text), rows=20, processors=mine, run_code=["half"])) == {"text": 10}


def test_equal_prompts_are_sent_once_where_prompts_are_real() -> None:
    """With dedupe three topics make three calls, however many rows there are."""
    text = sb.LLMText("text", model="writer", prompt="About {{ topic }}.", dedupe=True)
    assert calls_of(simulate(recipe(text), rows=200)) == {"text": 3}
    more = sb.LLMText("more", model="writer", prompt="More of {{ text }}.", dedupe=True)
    found = simulate(recipe(text, more), rows=200)
    assert calls_of(found)["more"] == pytest.approx(200, abs=60)
    assert found.base.notes == ("column 'more': dedupe is not simulated where prompts contain placeholders",)


def test_a_remote_validation_is_a_call_that_is_not_made() -> None:
    """Its server is a key like any other, and its verdicts are placeholders."""
    check = sb.Validation("check", of="topic", kind="remote", url="http://127.0.0.1:9/check")
    found = simulate(recipe(check, sb.Expression("fine", "check.is_valid")), rows=12, calls={"check": {"latency": 1.0}})
    assert found.base.written.mean == 12
    assert found.base.keys[0].name == "127.0.0.1:9/validation"
    assert found.seconds > 0.9


def test_a_user_defined_check_is_not_run() -> None:
    """Its verdicts are placeholders, with a note."""

    def check(topic: str) -> bool:
        raise AssertionError("it must not run")

    column = sb.Validation("check", of="topic", kind="callable", function=check)
    found = simulate(recipe(column, sb.Expression("fine", "check.is_valid")), rows=3)
    assert found.base.written.mean == 3
    assert found.base.notes[0].startswith("column 'check' is user-defined: it is not run, takes no time")


def test_stateful_columns_run_in_order() -> None:
    """A stateful function's cells go one by one, so its time is the sum of them."""

    @sb.column(is_stateful=True)
    def number(topic: str) -> int:
        raise AssertionError("it must not run")

    found = simulate(recipe(number), rows=5, calls={"number": {"latency": 1.0}})
    assert found.seconds == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize(
    ("annotation", "expression"),
    [
        (str, "value + '!'"),
        (int, "value + 1"),
        (float, "value * 2.5"),
        (bool, "not value"),
        (list[str], "value[0]"),
        (int | None, "value + 1"),
    ],
)
def test_placeholders_have_the_type_that_a_function_returns(annotation: Any, expression: str) -> None:
    """What reads the placeholder works on it as on the real value."""

    def value(topic: str) -> Any:
        raise AssertionError("it must not run")

    value.__annotations__["return"] = annotation
    made: Callable[..., Any] = sb.column(value)
    found = simulate(recipe(made, sb.Expression("next", expression)), rows=2)
    assert found.base.written.mean == 2
    assert not any("'next'" in note for note in found.base.notes)


def test_placeholders_of_declared_types() -> None:
    """A declared type is what a placeholder has, with or without annotations."""
    struct = pl.Struct({"when": pl.Date, "tags": pl.List(pl.String), "count": pl.Int32, "at": pl.Datetime("us", "UTC")})
    assert of_type(declared_type(struct)) == {
        "when": datetime.date(2024, 1, 1),
        "tags": ["placeholder"],
        "count": 1,
        "at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    }
    others = [pl.Boolean, pl.Binary, pl.Float32, pl.Decimal(10, 2), pl.Duration, pl.Time]
    expected = [True, b"placeholder", 1.0, decimal.Decimal(1), datetime.timedelta(seconds=1), datetime.time()]
    assert [of_type(declared_type(each)) for each in others] == expected


def test_exactly_the_built_in_specs_are_trusted() -> None:
    """Columns and processors of seedbed run as they are; a package with a similar name is user code."""
    built_in = [*spec_types().values(), *processor_types().values()]
    assert len(built_in) > 20
    assert all(_is_built_in(kind) for kind in built_in)
    for module in ("seedbed.columns_extra", "seedbed_columns.text", "seedbed.columnsx.text", "plugin.seedbed.columns."):
        assert not _is_built_in(type("Mine", (), {"__module__": module}))
