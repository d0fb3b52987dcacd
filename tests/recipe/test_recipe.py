from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from toys import Toy

from seedbed.columns.custom import Custom, column
from seedbed.columns.expression import Expression
from seedbed.columns.processors import DropColumns
from seedbed.engine.config import RunConfig
from seedbed.errors import ConfigError, DatasetGenerationError
from seedbed.recipe.recipe import Recipe

if TYPE_CHECKING:
    from seedbed.columns.base import Column, Model


@column
def number(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


def resolved(recipe: Recipe) -> tuple[Column, ...]:
    """The engine's columns of a recipe."""
    environment = recipe.environment()
    return recipe.resolve(environment)


def test_columns_may_be_in_any_order() -> None:
    """Resolved columns have the order of the recipe."""
    recipe = Recipe(columns=[Expression("b", "number + 1"), number])
    assert [each.name for each in resolved(recipe)] == ["b", "number"]


def test_all_problems_are_in_one_error() -> None:
    """All problems that can be found before a run are in one error."""

    @column
    def answer(question: str, writr: Model) -> str:
        return question

    recipe = Recipe(
        models={"writer": Toy(model="a", missing="TOY_KEY")},
        columns=[
            number,
            answer,
            Expression("question", "{{ nmber }}?", skip_when="numbr == 1"),
            Expression("x", "y + 1"),
            Expression("y", "x + 1"),
            Expression("number", "1"),
            Custom("z", "module:function"),
        ],
    )
    with pytest.raises(DatasetGenerationError) as caught:
        resolved(recipe)
    assert caught.value.problems == (
        "models.writer: TOY_KEY is not in the environment",
        "columns[1]: column 'answer': model 'writr' is not in models; did you mean 'writer'?",
        "columns[6]: column 'z', function: 'module' cannot be imported: ModuleNotFoundError: No module named 'module'",
        "duplicate column 'number'",
        "column 'question' requires 'nmber', which no column generates; did you mean 'number'?",
        "column 'question' requires 'numbr', which no column generates; did you mean 'number'?",
        "circular dependency between columns: x → y → x",
    )


def test_an_invalid_column_still_provides_its_name() -> None:
    """A column that requires an invalid column is not reported as a problem."""
    recipe = Recipe(columns=[Custom("z", "module:function"), Expression("a", "z"), Expression("b", "z__trace")])
    with pytest.raises(DatasetGenerationError) as caught:
        resolved(recipe)
    assert len(caught.value.problems) == 1


def test_an_unknown_column_without_a_similar_name_lists_the_known_ones() -> None:
    """An unknown column that resembles none is reported with the known ones."""
    with pytest.raises(
        DatasetGenerationError, match=r"requires 'zzz', which no column generates \(known: 'number', 'a'\)"
    ):
        resolved(Recipe(columns=[number, Expression("a", "zzz")]))


def test_invalid_parts_of_a_recipe_are_rejected_together() -> None:
    """Everything that is neither column, processor nor model is rejected in one error."""

    def plain() -> None: ...

    with pytest.raises(DatasetGenerationError) as caught:
        Recipe(
            columns=[number, plain, 3],  # type: ignore[list-item]
            processors=["x"],  # type: ignore[list-item]
            models={"a": "gpt"},  # type: ignore[dict-item]
            seed="7",  # type: ignore[arg-type]
        )
    assert caught.value.problems == (
        "columns[1] is the plain function 'plain'; decorate it with @seedbed.column",
        "columns[2] is 3, not a column of a recipe",
        "processors[0] is 'x', not a processor of a recipe",
        "models.a is 'gpt', not a model",
        "seed must be a whole number, not '7'",
    )
    with pytest.raises(DatasetGenerationError, match="the recipe has no columns"):
        Recipe(columns=[])


def test_run_options_are_a_mapping_or_a_config() -> None:
    """Run options are a mapping, or a RunConfig of which only non-default fields are stored."""
    assert Recipe(columns=[number], run=RunConfig(buffer_size=10)).run == {"buffer_size": 10}
    assert Recipe(columns=[number], run={"buffer_size": 10}).run == {"buffer_size": 10}
    with pytest.raises(ConfigError, match="run must be a mapping of options or a RunConfig, not 3"):
        Recipe(columns=[number], run=3)


def test_a_recipe_is_immutable() -> None:
    """A recipe is frozen, and later changes of the collections passed to it do not affect it."""
    models = {"a": Toy(model="m")}
    recipe = Recipe(columns=[number], models=models, processors=[DropColumns(columns="number")])
    models.clear()
    assert list(recipe.models) == ["a"]
    with pytest.raises(AttributeError):
        recipe.seed = 3  # type: ignore[misc]
