from __future__ import annotations

import inspect
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
import pytest
from grow import grown, made

import seedbed
from seedbed.columns.base import CellContext, Model  # noqa: TC001  their names are evaluated
from seedbed.columns.custom import Custom, column, used_models
from seedbed.columns.spec import Access, Environment
from seedbed.errors import ConfigError, DatasetGenerationError, Retryable
from seedbed.graph import Kind
from seedbed.models.base import ChatAnswer, ChatRequest, Tokens
from seedbed.recipe.recipe import Recipe
from seedbed.runtime.throttle import KeyLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@attrs.frozen(kw_only=True)
class Echo:
    """A model that answers with its prompt."""

    model: str = "echo"
    parameters: dict[str, Any] = attrs.field(factory=dict)
    max_parallel_requests: int = 4
    input_price: float = 1.0
    output_price: float = 1.0
    provider_id: str = "echo"

    def key(self, domain: str) -> str:
        return f"echo/{self.model}/{domain}"

    def limits(self) -> KeyLimits:
        return KeyLimits(max_parallel_requests=self.max_parallel_requests)

    def problems(self) -> list[str]:
        return []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Echo]:
        yield self

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        return ChatAnswer(text=f"{self.model}: {request.messages[-1].content}", tokens=Tokens(input=2, output=3))


ECHOES = {"writer": Echo(), "fast": Echo(model="fast")}


@column
def number(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


@column
async def greeting(number: int, writer: Model) -> str:
    """Send a prompt to a model."""
    return await writer.chat(f"hello {number}")


@column(process=True)
def squared(number: int) -> int:
    """A function that runs in a process."""
    return number**2


def plainly(number: int) -> int:
    """A function that a recipe file names."""
    return number + 100


@column(name="other", models={"writer": "fast"}, dtype=str, timeout=3)
async def decorated(number: int, writer: Model) -> str:
    """A decorated function that a recipe file names."""
    return await writer.chat(str(number))


def test_a_decorated_function_can_be_called() -> None:
    """A decorated function can be called, documented and inspected as before."""

    @column
    def double(number: int, by: int = 2) -> int:
        """Double it."""
        return number * by

    assert double(3) == 6
    assert double(number=3, by=3) == 9
    assert list(inspect.signature(double).parameters) == ["number", "by"]
    assert isinstance(double, Custom)
    assert double.name == "double"


def test_sync_and_async_functions_fill_cells() -> None:
    """Parameters are requirements, and the return value fills the cell."""

    @column
    def double(number: int) -> int:
        return number * 2

    @column(name="sum")
    async def add(number: int, double: int, *, extra: int = 1) -> int:
        return number + double + extra

    frame = grown(Recipe(columns=[number, double, add]), 3)
    assert frame.to_dict(as_series=False) == {"number": [0, 1, 2], "double": [0, 2, 4], "sum": [1, 4, 7]}


def test_parameters_may_be_positional_only() -> None:
    """Values of positional-only parameters are passed by position."""

    @column
    def double(number: int, /) -> int:
        return number * 2

    assert grown(Recipe(columns=[number, double]), 2)["double"].to_list() == [0, 2]


def test_frame_functions_fill_whole_columns() -> None:
    """A function with a parameter for a frame fills a full column from the columns that it requires."""

    @column(requires=["number"], outputs=["low", "high"])
    def split(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select(low=pl.col("number") - 1, high=pl.col("number") + 1)

    columns = made(Recipe(columns=[number, split]))
    assert columns[1].kind is Kind.FULL_COLUMN
    assert grown(Recipe(columns=[number, split]), 2)["high"].to_list() == [1, 2]


def test_parameters_of_type_model_get_models_by_alias() -> None:
    """A parameter of type Model gets the model of its name, or the one in `models`; the first determines the key."""

    @column(models={"second": "fast"})
    async def both(second: Model, greeting: str, writer: Model, context: CellContext) -> str:
        return f"{await second.chat(greeting)}|{await writer.chat('again')}|{context.row}"

    recipe = Recipe(columns=[number, greeting, both], models=ECHOES)
    assert both.aliases() == ("fast", "writer")
    made_ = made(recipe)
    assert [each.key for each in made_] == [None, "echo/echo/chat", "echo/fast/chat"]
    assert made_[2].requires == ("greeting",)
    preview = seedbed.preview(made(recipe, clients=ECHOES), rows=2)
    assert preview.to_polars()["both"].to_list() == [f"fast: echo: hello {row}|echo: again|{row}" for row in (0, 1)]


def test_a_sync_function_calls_its_model() -> None:
    """A sync function calls its model through the context."""

    @column
    def asked(number: int, writer: Model, context: CellContext) -> str:
        return context.run(writer.chat, f"row {number}")

    recipe = Recipe(columns=[number, asked], models=ECHOES)
    assert grown(recipe, 2, clients=ECHOES)["asked"].to_list() == ["echo: row 0", "echo: row 1"]


def test_a_frame_function_calls_its_model() -> None:
    """A function of a frame may have models too."""

    @column(requires=["number"])
    async def asked(frame: pl.DataFrame, writer: Model) -> list[str]:
        return [await writer.chat(str(each)) for each in frame["number"]]

    recipe = Recipe(columns=[number, asked], models=ECHOES)
    assert grown(recipe, 2, clients=ECHOES)["asked"].to_list() == ["echo: 0", "echo: 1"]


def test_decorator_options_reach_the_engine_column() -> None:
    """Everything that the decorator takes reaches the engine's column."""

    @column(
        outputs=["a", "b"],
        side_effects=["a__notes"],
        is_stateful=True,
        timeout=2,
        retry_on=OSError,
        dtype={"a": int},
        key="mine",
        tokens=7,
        requires=["number"],
        skip_when="number > 1",
        skip_policy="skip",
    )
    def two(**row: int) -> dict[str, int]:
        return {"a": row["number"], "b": 0}

    _, made_ = made(Recipe(columns=[number, two]))
    assert made_.outputs == ("a", "b")
    assert made_.side_effects == ("a__notes",)
    assert made_.is_stateful
    assert made_.timeout == 2
    assert made_.retry_on == (OSError,)
    assert made_.dtype == {"a": int}
    assert (made_.key, made_.tokens) == ("mine", 7)
    assert made_.requires == ("number",)
    assert made_.skip is not None
    assert made_.skip_policy == "skip"
    assert grown(Recipe(columns=[number, two]), 3)["a"].to_list() == [0, 1, None]


def test_exceptions_in_retry_on_are_retried() -> None:
    """A cell whose function raises one of `retry_on` gets another attempt."""
    failed: set[int] = set()

    @column(retry_on=[OSError])
    async def flaky(number: int) -> int:
        if number not in failed:
            failed.add(number)
            raise OSError("not yet")
        return number

    @column
    async def flaky_too(flaky: int, context: CellContext) -> int:
        if context.attempt == 1:
            raise Retryable("not yet either")
        return flaky

    config = seedbed.RunConfig(shutdown_error_rate=1.0, backoff_base=0.001)
    columns = made(Recipe(columns=[number, flaky, flaky_too]))
    assert seedbed.preview(columns, rows=2, config=config).to_polars()["flaky_too"].to_list() == [0, 1]


class Counter:
    """Counts on from cell to cell."""

    is_stateful = True

    def __init__(self) -> None:
        self.count = 0

    def generate(self, number: int) -> int:
        self.count += 1
        return self.count * 10 + number


class Asker:
    """Calls a model."""

    async def agenerate(self, number: int, writer: Model) -> str:
        return await writer.chat(str(number))


def test_generator_objects_fill_columns() -> None:
    """An object with generate or agenerate fills a column too, with its state and its models."""
    asker: Any = Asker()
    counter: Any = Counter()
    recipe = Recipe(
        columns=[number, Custom("counted", counter), Custom("asked", asker, models={"writer": "fast"})], models=ECHOES
    )
    assert made(recipe)[1].is_stateful
    assert grown(recipe, 2, clients=ECHOES).rows() == [(0, 10, "fast: 0"), (1, 21, "fast: 1")]
    with pytest.raises(ConfigError, match="function must be a function, or an object with generate or agenerate"):
        Custom("x", Counter)


def test_a_decorated_function_runs_in_a_process() -> None:
    """A decorated function runs in a process, although its name refers to the column."""
    assert grown(Recipe(columns=[number, squared]), 3)["squared"].to_list() == [0, 1, 4]


def test_functions_named_in_a_file_are_imported() -> None:
    """`module:name` is a plain or a decorated function; fields of the file override those of the decorator."""
    recipe = Recipe(
        columns=[
            number,
            Custom("hundred", "test_custom:plainly"),
            Custom("said", "test_custom:decorated", dtype="str", models={"writer": "writer"}, timeout=9),
        ],
        models=ECHOES,
    )
    said = made(recipe)[2]
    assert (said.name, said.timeout, said.key) == ("said", 9, "echo/echo/chat")
    frame = grown(recipe, 1, clients=ECHOES)
    assert frame.rows() == [(0, 100, "echo: 0")]


def test_models_of_functions_named_in_a_file_are_known() -> None:
    """The models that a recipe uses include those of functions that it only names."""
    recipe = Recipe(columns=[number, greeting, Custom("x", "test_custom:decorated")], models=ECHOES)
    models: Any = {**ECHOES, "unused": Echo()}
    environment = Environment(models=models)
    assert used_models(recipe.columns, environment) == {alias: models[alias] for alias in ("writer", "fast")}


def test_a_module_beside_the_recipe_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module beside the recipe is imported, and `sys.path` is unchanged."""
    (tmp_path / "beside_the_recipe.py").write_text("def f(number):\n    return number - 1\n", encoding="utf-8")
    recipe = Recipe(columns=[number, Custom("less", "beside_the_recipe:f")], base=tmp_path)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path.parent)
        assert grown(recipe, 2)["less"].to_list() == [-1, 0]
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            Custom("x", "test_custom:plainly"),
            "column 'x', function: 'test_custom:plainly' is user-defined code, which needs --allow-code",
        ),
        (
            Custom("x", "test_custom:plain"),
            "column 'x', function: 'test_custom' has no 'plain'; did you mean 'plainly'",
        ),
        (Custom("x", "no_such_module:f"), "column 'x', function: 'no_such_module' cannot be imported: ModuleNotFound"),
        (Custom("x", "test_custom:ECHOES"), "column 'x': 'test_custom:ECHOES' is not a function but"),
        (Custom("x", "test_custom:decorated"), "column 'x': model 'fast' is not in models"),
        (Custom("x", plainly, retry_on=["json:dumps"]), "column 'x', retry_on: 'json:dumps' is not an exception class"),
    ],
)
def test_names_that_cannot_be_imported_are_reported(spec: Custom[..., Any], message: str) -> None:
    """A name that cannot or may not be imported is a problem that names the column."""
    access = Access(folder=Path.cwd()) if "--allow-code" in message else None
    with pytest.raises(DatasetGenerationError, match=message):
        made(Recipe(columns=[number, spec], models={"writer": Echo()}), access=access)


def test_invalid_uses_of_the_decorator_are_rejected() -> None:
    """An invalid use of the decorator is rejected when the module is imported."""
    with pytest.raises(ConfigError, match="models names 'wrter', which is not a parameter of type Model"):
        column(models={"wrter": "fast"})(lambda writer: writer)
    with pytest.raises(ConfigError, match=r"column 'number' has a duplicate @seedbed\.column"):
        column(number)
    with pytest.raises(ConfigError, match="decorates a function, not 3"):
        column(3)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="decorates a function, not <class"):
        column(Counter)
    with pytest.raises(ConfigError, match="retry_on must hold exception classes, or their names, not 'OSErr'; did you"):
        Custom("x", plainly, retry_on="OSErr")
    with pytest.raises(ConfigError, match="column 'x': function must be 'module:name', not 'f'"):
        Custom("x", "f")
    with pytest.raises(TypeError, match="names its function"):
        Custom("x", "a:f")()


def test_uncallable_functions_are_reported_together() -> None:
    """Functions that cannot be called for their column are reported all at once."""

    @column
    def frameless(frame: pl.DataFrame) -> list[int]:
        return [0] * frame.height

    @column(requires=["number"])
    def more(frame: pl.DataFrame, number: int) -> list[int]:
        return [number] * frame.height

    @column
    def fixed(number: int, /, writer: Model) -> int:
        return number

    @column(process=True)
    def local(number: int) -> int:
        return number

    @column(process=True)
    def modelled(number: int, writer: Model) -> int:
        return number

    with pytest.raises(DatasetGenerationError) as caught:
        made(Recipe(columns=[number, frameless, more, fixed, local, modelled], models=ECHOES))
    assert caught.value.problems == (
        "columns[1]: column 'frameless': list the columns of its frame with requires=[…]",
        "columns[3]: column 'fixed': with models, parameter 'number' may not be positional-only",
        "columns[4]: column 'local' runs in a process: its function must be defined at the top level of a module",
        "columns[5]: column 'modelled' runs in a process, where its function cannot call a model",
        "column 'more' is called with one argument, its frame, but its function wants frame, number",
    )
