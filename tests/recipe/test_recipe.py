from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vocabularies import Toy

from seedbed.engine.config import RunConfig
from seedbed.errors import ConfigError, DatasetGenerationError
from seedbed.generators.custom import column
from seedbed.generators.registry import make_column, planning_environment
from seedbed.recipe.custom import Custom
from seedbed.recipe.expression import Expression
from seedbed.recipe.processors import DropColumns
from seedbed.recipe.recipe import Recipe

if TYPE_CHECKING:
    from seedbed.generators import Column
    from seedbed.models.model import Model


@column
def number(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


def resolved(recipe: Recipe) -> tuple[Column, ...]:
    """Make a recipe's columns."""
    environment = planning_environment(recipe)
    return recipe.resolve(lambda spec: make_column(spec, environment))


def test_columns_in_any_order() -> None:
    """Columns may come in any order and are made in the order that they have."""
    recipe = Recipe(columns=[Expression("b", "number + 1"), number])
    assert [each.name for each in resolved(recipe)] == ["b", "number"]


def test_all_problems_at_once() -> None:
    """Everything that can be known before a run is told in one error."""

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
        "columns[1]: column 'answer' uses model 'writr', which is not in models; did you mean 'writer'?",
        "columns[6]: column 'z' runs code of its own ('module:function'), which is allowed only with --allow-code",
        "column 'number' is there twice",
        "column 'question' requires 'nmber', which no column makes; did you mean 'number'?",
        "column 'question' requires 'numbr', which no column makes; did you mean 'number'?",
        "the columns need each other in a circle: 'x' → 'y' → 'x'",
    )


def test_a_column_that_cannot_be_made_is_still_a_name() -> None:
    """Columns that need one that cannot be made are not blamed for it."""
    recipe = Recipe(columns=[Custom("z", "module:function"), Expression("a", "z"), Expression("b", "z__trace")])
    with pytest.raises(DatasetGenerationError) as caught:
        resolved(recipe)
    assert len(caught.value.problems) == 1


def test_unknown_columns_without_a_near_name() -> None:
    """A column that is nothing like any is told with those that there are."""
    with pytest.raises(DatasetGenerationError, match=r"requires 'zzz', which no column makes \(known: 'number', 'a'\)"):
        resolved(Recipe(columns=[number, Expression("a", "zzz")]))


def test_what_is_no_part_of_a_recipe() -> None:
    """What is neither column nor processor nor model is refused at once, all of it."""

    def plain() -> None: ...

    with pytest.raises(DatasetGenerationError) as caught:
        Recipe(
            columns=[number, plain, 3],  # type: ignore[list-item]
            processors=["x"],  # type: ignore[list-item]
            models={"a": "gpt"},  # type: ignore[dict-item]
            seed="7",  # type: ignore[arg-type]
        )
    assert caught.value.problems == (
        "columns[1] is the plain function 'plain'; put @seedbed.column above it",
        "columns[2] is 3, which is no column of a recipe",
        "processors[0] is 'x', which is no processor of a recipe",
        "models.a is 'gpt', which is no model",
        "seed must be a whole number, not '7'",
    )
    with pytest.raises(DatasetGenerationError, match="there are no columns"):
        Recipe(columns=[])


def test_knobs() -> None:
    """The knobs of a run are a mapping, or a RunConfig of which only what was changed is kept."""
    assert Recipe(columns=[number], run=RunConfig(buffer_size=10)).run == {"buffer_size": 10}
    assert Recipe(columns=[number], run={"buffer_size": 10}).run == {"buffer_size": 10}
    with pytest.raises(ConfigError, match="run must be a mapping of knobs or a RunConfig, not 3"):
        Recipe(columns=[number], run=3)


def test_it_is_a_value() -> None:
    """A recipe cannot be changed, and does not see what becomes of what it was made of."""
    models = {"a": Toy(model="m")}
    recipe = Recipe(columns=[number], models=models, processors=[DropColumns(columns="number")])
    models.clear()
    assert list(recipe.models) == ["a"]
    with pytest.raises(AttributeError):
        recipe.seed = 3  # type: ignore[misc]
