"""Answers that a validation judges: the model repairs what is not valid, and a cell that stays invalid fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from chatting import Script
from validation_server import serving

import seedbed as sb
from seedbed.columns.spec import Environment, make_column
from seedbed.engine.source import load_recipe
from seedbed.errors import ConfigError, DatasetGenerationError, Interrupted, Retryable
from seedbed.graph import build_graph
from seedbed.recipe.file import recipe_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from seedbed.columns.spec import ColumnSpec

TABLES = "CREATE TABLE orders (id INT, total INT)"


def fenced(code: str, language: str = "sql") -> str:
    """An answer with code."""
    return f"```{language}\n{code}\n```"


def query(**fields: Any) -> sb.LLMCode:
    """A column of SQL."""
    given = {"repair_with": "valid", **fields}
    return sb.LLMCode("query", model="writer", language="sql", prompt="Query {{ topic }}.", **given)


def valid(**fields: Any) -> sb.Validation:
    """The validation of that column."""
    return sb.Validation("valid", **{"of": "query", "kind": "sql", "ddl": TABLES, **fields})


def recipe(*columns: ColumnSpec, answers: Callable[..., Any], **run: Any) -> sb.Recipe:
    """A recipe with a topic and a scripted model."""
    return sb.Recipe(
        seed=1,
        models={"writer": sb.Scripted(answers=answers)},
        columns=[sb.Category("topic", values=["orders"]), *columns],
        run={"backoff_base": 0.001, **run},
    )


def test_an_invalid_answer_is_repaired_with_the_error_of_the_validation() -> None:
    """The model gets its answer and the error of DuckDB; the cell has the answer that is valid."""
    script = Script(fenced("SELECT price FROM orders"), fenced("SELECT total FROM orders"))
    dataset = sb.preview(recipe(query(), valid(), answers=script), rows=1)
    assert dataset.to_polars()["query"].to_list() == ["SELECT total FROM orders"]
    assert dataset.to_polars()["valid"].to_list() == [{"is_valid": True, "error": None, "messages": []}]
    (_, question), (_, answer), (_, correction) = script.said()
    assert question.startswith("Query orders.")
    assert answer == fenced("SELECT price FROM orders")
    assert 'it is not valid: Binder Error: Referenced column "price" not found' in correction
    assert "Answer again with one fenced code block of sql" in correction


async def dropped(built: sb.Recipe) -> str:
    """The reason why the only row of a recipe was dropped."""
    async with sb.open_build(built, rows=1) as build:
        with pytest.raises(sb.AllRowsDropped):
            await build.wait()
    (drop,) = build.report.dropped
    return drop.reason


async def test_a_cell_that_stays_invalid_fails_with_the_last_error() -> None:
    """After `max_repairs`, with the error and the answer in the drop reason."""
    script = Script(*(fenced(f"SELECT x{number} FROM orders") for number in range(9)))
    reason = await dropped(recipe(query(max_repairs=3), valid(), answers=script, shutdown_error_rate=1.0))
    assert len(script.requests) == 4
    assert "the answer does not fit after 3 repairs: it is not valid: Binder Error" in reason
    assert '"x3" not found' in reason


def test_python_is_repaired_with_every_error_of_ruff() -> None:
    """The lines of all errors are in one correction; warnings need no repair."""
    script = Script(fenced("a = b\nc = d", "python"), fenced("import os\nb = 1", "python"))
    code = sb.LLMCode("code", model="writer", language="python", prompt="Hi", repair_with={"kind": "python"})
    frame = sb.preview(recipe(code, answers=script), rows=1).to_polars()
    assert frame["code"].to_list() == ["import os\nb = 1"]
    assert "it is not valid: line 1: Undefined name `b`; line 2: Undefined name `d`" in script.said()[-1][1]


def test_a_function_judges_text_and_reads_other_columns() -> None:
    """The column waits for them; several columns are given in the order of `of`."""

    def names_topic(text: str, topic: str, limit: int) -> None:
        assert topic in text, f"it does not mention {topic} ({limit})"

    script = Script("something else", "all about orders")
    text = sb.LLMText("text", model="writer", prompt="Hi", repair_with="fits")
    fits = sb.Validation("fits", of=["text", "topic", "limit"], kind="callable", function=names_topic)
    limit = sb.Expression("limit", "topic | length")
    built = recipe(text, fits, limit, answers=script)
    assert sb.preview(built, rows=1).to_polars()["text"].to_list() == ["all about orders"]
    assert "it does not mention orders (6)" in script.said()[-1][1]
    columns = {column.name: column for column in built.resolve(built.environment())}
    assert columns["text"].requires == ("topic", "limit")


def test_a_structured_value_is_judged_as_a_whole() -> None:
    """By a schema that the provider is not given, or a function."""
    script = Script('{"low": 3, "high": 1}', '{"low": 1, "high": 3}')
    number = {"type": "integer"}
    pair = sb.LLMStructured(
        "pair",
        model="writer",
        prompt="Hi",
        schema={"type": "object", "properties": {"low": number, "high": number}},
        repair_with="ordered",
    )
    ordered = sb.Validation(
        "ordered", of="pair", kind="callable", function=lambda pair: pair["low"] <= pair["high"] or "low is above high"
    )
    frame = sb.preview(recipe(pair, ordered, answers=script), rows=1).to_polars()
    assert frame["pair"].to_list() == [{"low": 1, "high": 3}]
    assert "it is not valid: low is above high" in script.said()[-1][1]


def test_tables_and_dialect_of_the_row_are_used() -> None:
    """They become requirements of the repaired column."""
    script = Script(fenced("SELECT a FROM `t`"), fenced("SELECT `b` FROM `t`"))
    tables = sb.Expression("tables", "CREATE TABLE `t` (b INT) {{ '' }}")
    dialect = sb.Category("dialect", values=["mysql"])
    judge = valid(ddl={"column": "tables"}, dialect={"column": "dialect"})
    frame = sb.preview(recipe(query(), judge, tables, dialect, answers=script), rows=1).to_polars()
    assert frame["query"].to_list() == ["SELECT `b` FROM `t`"]


async def test_unusable_tables_are_no_reason_to_ask_again() -> None:
    """The cell fails with the name of the field, after one call."""
    script = Script(fenced("SELECT 1"))
    reason = await dropped(recipe(query(), valid(ddl="{{ topic }}"), answers=script, shutdown_error_rate=1.0))
    assert "column 'valid': ddl: 'orders' is not a statement" in reason
    assert len(script.requests) == 1


def test_a_server_judges_each_answer() -> None:
    """Its calls are counted and have its own throttle key."""
    asked: list[Any] = []

    def answer(body: Any, _: Any) -> tuple[int, dict[str, str], bytes]:
        asked.append(body)
        error = None if "total" in body["query"] else "there is no such column"
        return 200, {}, json.dumps({"is_valid": error is None, "error": error}).encode()

    script = Script(fenced("SELECT price"), fenced("SELECT total"))
    with serving(answer) as url:
        judge = sb.Validation("valid", of=["query", "topic"], kind="remote", url=url)
        dataset = sb.preview(recipe(query(), judge, answers=script), rows=1)
    assert dataset.to_polars()["query"].to_list() == ["SELECT total"]
    assert [each["query"] for each in asked] == ["SELECT price", "SELECT total", "SELECT total"]
    assert all(each["topic"] == "orders" for each in asked)
    assert "it is not valid: there is no such column" in script.said()[-1][1]
    assert dataset.report is not None
    assert dataset.report.usage["query"].calls == 4


def test_a_skipped_validation_judges_nothing() -> None:
    """Where `skip_when` of the validation is true, every answer is accepted."""
    script = Script(fenced("SELECT nothing FROM nowhere"))
    judge = valid(skip_when="topic == 'orders' and query")
    frame = sb.preview(recipe(query(), judge, answers=script), rows=1).to_polars()
    assert frame["query"].to_list() == ["SELECT nothing FROM nowhere"]
    assert frame["valid"].to_list() == [None]


@attrs.define(eq=False)
class Interrupting:
    """Answers with a wrong query first; the run stops at the first request for a repair."""

    stop: Callable[[], None] | None = None
    asked: list[str] = attrs.field(factory=list)

    def __call__(self, request: Any) -> str:
        if len(request.messages) == 1:
            self.asked.append("question")
            return fenced("SELECT price FROM orders")
        if self.stop is not None:
            self.stop()
            raise Retryable("stopped")
        self.asked.append("repair")
        return fenced("SELECT total FROM orders")


async def test_a_resume_asks_for_the_repair_only(tmp_path: Path) -> None:
    """The answer that was not valid is stored, judged again and not paid for again."""
    first, second = Interrupting(), Interrupting()

    def stop() -> None:
        build.stop()
        build.stop()

    first.stop = stop
    with pytest.raises(Interrupted):
        async with sb.open_build(recipe(query(), valid(), answers=first), rows=1, out=tmp_path / "out") as build:
            await build.wait()
    dataset = await sb.build_async(recipe(query(), valid(), answers=second), rows=1, out=tmp_path / "out", resume=True)
    assert dataset.to_polars()["query"].to_list() == ["SELECT total FROM orders"]
    assert (first.asked, second.asked) == (["question"], ["repair"])


PROBLEMS = [
    ([query()], "column 'query': repair_with: unknown column 'valid'"),
    ([query(repair_with="vald"), valid()], "repair_with: unknown column 'vald'; did you mean 'valid'?"),
    ([query(repair_with="topic")], "repair_with: 'topic' is a column of type category, not a validation"),
    ([query(), valid(of="topic")], "repair_with: 'valid' validates 'topic', not 'query'"),
    (
        [query(), valid(ddl={"column": "plan"}), sb.Expression("plan", "CREATE TABLE t (a INT) -- {{ query }}")],
        "query → plan → query; 'query' is repaired with 'valid' and requires what that reads",
    ),
]


@pytest.mark.parametrize(("columns", "problem"), PROBLEMS, ids=[problem[-30:] for _, problem in PROBLEMS])
def test_what_cannot_repair_is_a_problem_before_the_run(columns: list[ColumnSpec], problem: str) -> None:
    """The message names the column, the validation and what does not fit."""
    built = recipe(*columns, answers=Script(""))
    with pytest.raises(DatasetGenerationError) as caught:
        built.resolve(built.environment())
    assert any(problem in each for each in caught.value.problems), caught.value.problems


def test_the_graph_shows_what_repairs() -> None:
    """As a dotted arrow; it is no dependency."""
    built = recipe(query(), valid(), answers=Script(""))
    graph = build_graph(built.resolve(built.environment()))
    assert graph.mermaid().splitlines()[-1] == "    n2 -. repairs .-> n1"
    assert graph.upstream("query") == ("topic",)


def test_a_validation_with_an_invalid_field_is_one_problem(tmp_path: Path) -> None:
    """The column that it repairs is not a second one."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "models: {writer: {type: scripted}}\n"
        "columns:\n"
        "- {name: query, type: llm-code, model: writer, language: sql, prompt: Hi, repair_with: valid}\n"
        "- {name: valid, type: validation, of: query, kind: sqll}\n"
    )
    with pytest.raises(DatasetGenerationError) as caught:
        load_recipe(path)
    assert len(caught.value.problems) == 1
    assert "kind must be" in caught.value.problems[0]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (3, "repair_with must be the name of a validation column, or a mapping such as"),
        ({"kind": "remote", "url": "http://x"}, "repair_with is a mapping with kind python or sql, not 'remote'; for"),
        ({"kind": "sql", "dialec": "x"}, "repair_with: unknown field 'dialec'; did you mean 'dialect'?"),
        ({"kind": "sql", "lint": True}, "repair_with: lint is for kind python, and the kind is sql"),
    ],
)
def test_an_invalid_mapping_is_rejected(given: Any, problem: str) -> None:
    """With the fields that are allowed."""
    with pytest.raises(ConfigError) as caught:
        query(repair_with=given)
    assert str(caught.value).startswith(f"column 'query': {problem}")
    column = query(repair_with={"kind": "sql", "dialect": "nonsense"})
    with pytest.raises(ConfigError, match="column 'query': repair_with: sqlglot has no dialect 'nonsense'"):
        make_column(column, Environment(models={"writer": sb.Scripted()}))


def test_repairs_are_stored_with_the_recipe(tmp_path: Path) -> None:
    """A name and a mapping are read back as they were."""
    given = {"kind": "sql", "dialect": {"column": "topic"}, "ddl": TABLES}
    built = sb.Recipe(
        models={"writer": sb.Scripted()},
        columns=[
            sb.Category("topic", values=["duckdb"]),
            query(repair_with=given),
            sb.LLMText("other", model="writer", prompt="Hi", repair_with="valid"),
            valid(of="other"),
        ],
    )
    (tmp_path / "recipe.yaml").write_text(recipe_text(built))
    assert load_recipe(tmp_path / "recipe.yaml").columns == built.columns


def test_a_simulation_does_not_judge_placeholders() -> None:
    """Its note says that repairs are not simulated."""
    found = sb.simulate(recipe(query(), valid(), answers=Script(fenced("SELECT 1"))), rows=3, seeds=1)
    assert any("column 'query': repairs are not simulated" in note for note in found.base.notes)
