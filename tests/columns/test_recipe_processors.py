from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from grow import grown, made

from seedbed import RunConfig, build, preview
from seedbed.columns.custom import column
from seedbed.columns.distributions import Uniform
from seedbed.columns.expression import Expression
from seedbed.columns.processors import Deduplicate, DropColumns, Filter, SchemaTransform
from seedbed.columns.spec import Environment, make_processor
from seedbed.errors import ConfigError, DatasetGenerationError
from seedbed.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from seedbed.columns.spec import ProcessorSpec

FRAME = pl.DataFrame(
    {
        "a": [1, 2, 2, None],
        "b": ["x", "y", "y", "z"],
        "s": [{"n": 1}, {"n": 2}, {"n": 2}, None],
        "l": [[1], [2], [2], []],
    }
)


@column
def number(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


def applied(spec: ProcessorSpec, frame: pl.DataFrame = FRAME) -> pl.DataFrame:
    """Run a processor on a frame and on a lazy one, with equal results."""
    _, _, function = make_processor(spec, Environment())
    result = function(frame)
    assert isinstance(result, pl.DataFrame)
    assert function(frame.lazy()).lazy().collect().equals(result)
    return result


def test_drop_columns_drops_only_the_named_columns() -> None:
    """The named columns are dropped, the others are unchanged."""
    assert applied(DropColumns(columns=["a", "l"])).columns == ["b", "s"]


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        (Filter(expr="a >= 2"), [2, 2]),
        (Filter(expr="a >= 2", language="sql"), [2, 2]),
        (Filter(expr="s.n == 1 or b == 'z'"), [1, None]),
        (Filter(expr="a is none"), [None]),
        (Filter(expr="true"), [1, 2, 2, None]),
        (Filter(expr="{{ 1 in l }}"), [1]),
    ],
)
def test_filter_keeps_rows_where_the_expression_is_true(spec: Filter, kept: list[int | None]) -> None:
    """Null counts as false."""
    assert applied(spec)["a"].to_list() == kept


def test_deduplicate_keeps_the_first_of_equal_rows() -> None:
    """Rows are compared by the subset, nested values included, and stay in order."""
    assert applied(Deduplicate())["a"].to_list() == [1, 2, None]
    assert applied(Deduplicate(subset=["s"]))["b"].to_list() == ["x", "y", "z"]
    assert applied(Deduplicate(subset="b"), FRAME.with_columns(b=pl.lit("w")))["a"].to_list() == [1]


def test_schema_transform_casts_renames_and_adds_in_this_order() -> None:
    """Types change first, then names, then columns of templates are added over the new names."""
    spec = SchemaTransform(
        cast={"a": "float"},
        rename={"b": "letter"},
        template={
            "text": "{{ letter }}={{ a }}",
            "record": {"value": "{{ a }}", "doubled": "{{ a * 2 }}", "list": ["{{ letter }}", "end"], "fixed": 3},
        },
    )
    frame = applied(spec, FRAME.head(2))
    assert frame.columns == ["a", "letter", "s", "l", "text", "record"]
    assert frame.schema["a"] == pl.Float64
    assert frame["text"].to_list() == ["x=1.0", "y=2.0"]
    assert frame["record"][1] == {"value": 2.0, "doubled": 4.0, "list": ["y", "end"], "fixed": 3}


def test_without_keep_others_only_the_template_remains() -> None:
    """`keep_others=False` removes the columns that are not in the template."""
    spec = SchemaTransform(template={"messages": [{"role": "user", "content": "{{ b }}!"}]}, keep_others=False)
    frame = applied(spec, FRAME.head(1))
    assert frame.to_dicts() == [{"messages": [{"role": "user", "content": "x!"}]}]


def test_processors_run_at_their_stages_in_order() -> None:
    """A processor sees the columns that the ones before it return."""
    recipe = Recipe(
        columns=[number, Expression("half", "number / 2")],
        processors=[
            DropColumns(columns=["whole"]),
            Filter(expr="number is even", stage="pre_batch"),
            SchemaTransform(rename={"number": "whole"}, name="naming"),
        ],
    )
    with pytest.raises(DatasetGenerationError, match=r"processors\[0\]: drop_columns: unknown column 'whole'"):
        made(recipe)
    fine = Recipe(columns=recipe.columns, processors=recipe.processors[1:] + recipe.processors[:1])
    assert grown(fine, 4).to_dict(as_series=False) == {"half": [0.0, 1.0]}


def test_processors_after_generation_see_the_whole_dataset(tmp_path: Path) -> None:
    """After generation the rows of all row groups are compared, renamed and filtered, on disk."""
    recipe = Recipe(
        columns=[number, Expression("half", "number // 2")],
        processors=[
            Deduplicate(subset=["half"]),
            Filter(expr="half > 0", stage="after_generation"),
            SchemaTransform(rename={"half": "h"}, template={"t": "h{{ h }}"}, stage="after_generation"),
        ],
    )
    frame = grown(recipe, 7, out=tmp_path / "out", buffer_size=3)
    assert frame.rows() == [(2, 1, "h1"), (4, 2, "h2"), (6, 3, "h3")]


def test_a_post_batch_cast_replaces_the_declared_type(tmp_path: Path) -> None:
    """A column has the type that it was cast to, also where its name had another declared type before."""
    recipe = Recipe(
        columns=[number, Uniform("n", low=0, high=9, decimals=0), Expression("half", "number // 2", dtype=int)],
        processors=[SchemaTransform(cast={"n": str}, rename={"half": "number", "number": "half"}, name="types")],
    )
    dataset = build(recipe, rows=4, out=tmp_path / "out", config=RunConfig(buffer_size=2))
    assert dict(dataset.schema) == {"half": pl.Int64, "n": pl.String, "number": pl.Int64}
    assert dict(preview(recipe, rows=4).frame.schema) == dict(dataset.schema)


def test_stages_have_the_names_of_the_engine() -> None:
    """A processor is passed to the engine with its stage and its label."""
    stages = [
        make_processor(Filter(expr="true", stage=stage, name=name), Environment())[:2]
        for stage, name in (("pre_batch", None), ("post_batch", "mine"), ("after_generation", None))
    ]
    assert stages == [("pre_batch", "filter"), ("post_batch", "mine"), ("after_generation", "filter")]


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (Filter, {"expr": "a >"}, "filter: 'a >' is not an expression"),
        (Filter, {"expr": "a >", "language": "sql"}, "filter: 'a >' is not a polars SQL expression"),
        (Filter, {"expr": "max(a) > 1", "language": "sql"}, "looks at more than its own row"),
        (Filter, {"expr": "a", "language": "x"}, "filter: language must be 'jinja' or 'sql', not 'x'"),
        (Filter, {"expr": "a", "stage": "later"}, "filter: stage must be 'pre_batch', 'post_batch' or 'after_"),
        (Filter, {"expr": "a", "stage": "before_batch"}, "not 'before_batch'; did you mean 'pre_batch'?"),
        (Filter, {"expr": "a", "stage": "after_batch"}, "not 'after_batch'; did you mean 'post_batch'?"),
        (DropColumns, {"columns": "a", "stage": "pre_batch"}, "drop_columns: cannot drop columns at stage pre"),
        (SchemaTransform, {}, "schema_transform: has neither cast nor rename nor template"),
        (SchemaTransform, {"cast": {"a": "nope"}}, "unknown type 'nope'"),
        (SchemaTransform, {"rename": {"a": "b"}, "keep_others": False}, "would leave no columns"),
        (SchemaTransform, {"rename": {"a": "b"}, "stage": "pre_batch"}, "cannot rename or drop columns"),
        (SchemaTransform, {"template": {"x": {"y": ["{{ a"]}}}, r"schema_transform, template.x.y\[0\], line 1: "),
    ],
)
def test_invalid_processors_are_rejected(cls: type[ProcessorSpec], fields: dict[str, object], message: str) -> None:
    """An invalid processor is rejected when its spec is created."""
    with pytest.raises(ConfigError, match=message):
        cls(**fields)  # type: ignore[arg-type]


def problems(processors: Sequence[ProcessorSpec]) -> tuple[str, ...]:
    """The problems that a recipe reports for its processors."""
    with pytest.raises(DatasetGenerationError) as caught:
        made(Recipe(columns=[number, Expression("half", "number / 2")], processors=processors))
    return caught.value.problems


def test_unknown_columns_of_processors_are_reported() -> None:
    """A processor may name only columns that exist at its stage, after the processors before it."""
    assert problems(
        [
            Filter(expr="nmber > 1"),
            Filter(expr="half > 1", stage="pre_batch"),
            SchemaTransform(rename={"half": "number"}),
            Deduplicate(subset=["half"], name="once"),
        ]
    ) == (
        "processors[1]: filter: unknown column 'half' at stage pre_batch (known: 'number')",
        "processors[0]: filter: unknown column 'nmber' at stage post_batch; did you mean 'number'?",
        "processors[2]: schema_transform: rename gives two columns the name 'number'",
        "processors[3]: once: unknown column 'half' at stage after_generation (known: 'number', 'number')",
    )
    assert problems(
        [SchemaTransform(rename={"half": "part"}, template={"x": "{{ half }}"}), DropColumns(columns=["y"])]
    ) == (
        "processors[0]: schema_transform, template.x: unknown column 'half' (known: 'number', 'part')",
        "processors[1]: drop_columns: unknown column 'y' at stage post_batch (known: 'number', 'part', 'x')",
    )
    assert problems([DropColumns(columns=["half", "number"]), Filter(expr="1 == 1")]) == (
        "processors[0]: drop_columns: removes the last column",
    )
    assert problems([SchemaTransform(template={"x": "{{ number }}"}, stage="pre_batch")]) == (
        (
            "processors[0]: schema_transform: cannot add column 'x' at stage pre_batch, "
            "which keeps the columns as they are"
        ),
    )
