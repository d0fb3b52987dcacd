"""Processors of whole frames: of a row group before or after it is generated, or of the whole dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import attrs
import polars as pl
import pyarrow as pa

from .. import checks
from ..errors import ConfigError
from ..graph import name_problem, nearest
from ..store.values import POLARS_JSON, is_json, json_array, json_series, python_rows
from .dtypes import read_dtype
from .expression import LANGUAGES, compile_sql, requirements
from .fields import field_problems, type_shape
from .spec import ProcessorSpec, check_stage
from .templates import Condition, Template, compile_condition, compile_template, lone_expression

if TYPE_CHECKING:
    from .fields import Shape
    from .spec import Environment


F = TypeVar("F", pl.DataFrame, pl.LazyFrame)
Process = Callable[[F], F]
Structure = Any  # templates in mappings and lists, at any depth
Fill = Callable[[Mapping[str, Any]], Any]  # from a row to a structure with its templates rendered


@attrs.frozen(kw_only=True)
class DropColumns(ProcessorSpec):
    """Drop columns from the dataset."""

    type: ClassVar[str] = "drop_columns"

    columns: tuple[str, ...] = attrs.field(converter=checks.as_names, validator=checks.names)
    """The columns to drop."""

    def __attrs_post_init__(self) -> None:
        self._reject_pre_batch("drop columns")

    def needs(self) -> Iterable[str]:
        return self.columns

    def columns_after(self, columns: Sequence[str]) -> Sequence[str]:
        return [name for name in columns if name not in self.columns]

    def retypes(self) -> Iterable[str]:
        return ()

    def shapes_after(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return shapes

    def to_function(self, environment: Environment) -> Process[Any]:  # noqa: ARG002
        return lambda frame: frame.drop(self.columns)


@attrs.frozen(kw_only=True)
class Filter(ProcessorSpec):
    """Keep the rows for which an expression is true."""

    type: ClassVar[str] = "filter"

    expr: str
    """The condition; a row for which it is not true, or null, is removed."""
    language: str = attrs.field(default="jinja", validator=checks.one_of(*LANGUAGES))
    """The language of the condition."""

    def __attrs_post_init__(self) -> None:
        self.compiled()

    def field_problems(self, shapes: Mapping[str, Shape]) -> list[str]:
        return field_problems(self.compiled(), shapes, where=self.label)

    def retypes(self) -> Iterable[str]:
        return ()

    def shapes_after(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return shapes

    def compiled(self) -> Condition | pl.Expr:
        compile_text = compile_sql if self.language == "sql" else compile_condition
        return compile_text(self.expr, where=self.label)

    def needs(self) -> Iterable[str]:
        return requirements(self.compiled())

    def to_function(self, environment: Environment) -> Process[Any]:  # noqa: ARG002
        compiled = self.compiled()
        expression = compiled if isinstance(compiled, pl.Expr) else _row_wise(compiled)
        return lambda frame: frame.filter(expression)


@attrs.frozen(kw_only=True)
class Deduplicate(ProcessorSpec):
    """Keep the first of rows that are equal."""

    type: ClassVar[str] = "deduplicate"

    stage: Annotated[str, "the name of a stage"] = attrs.field(default="after_generation", validator=check_stage)
    """By default `after_generation`: at the other stages only rows of the same row group are compared."""
    subset: tuple[str, ...] | None = attrs.field(
        default=None, converter=checks.as_names, validator=checks.optional(checks.names)
    )
    """The columns that are compared; by default all."""

    def needs(self) -> Iterable[str]:
        return self.subset or ()

    def retypes(self) -> Iterable[str]:
        return ()

    def shapes_after(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return shapes

    def to_function(self, environment: Environment) -> Process[Any]:  # noqa: ARG002
        return lambda frame: frame.unique(self.subset, keep="first", maintain_order=True)


@attrs.frozen(kw_only=True)
class SchemaTransform(ProcessorSpec):
    """Change types, then names, then add columns from templates."""

    type: ClassVar[str] = "schema_transform"

    cast: Mapping[str, Any] = attrs.field(factory=dict, converter=read_dtype, validator=checks.mapping)
    """New types by column, in the form of `dtype`."""
    rename: Mapping[str, str] = attrs.field(factory=dict, converter=dict)
    """New names by old ones."""
    template: Mapping[str, Structure] = attrs.field(factory=dict, converter=dict)
    """New columns by name: each is a template over the row, or mappings and lists of templates. `{{ score }}` alone
    gives the value itself, not its text. The names in it are the new ones."""
    keep_others: bool = True
    """Keep the columns that `template` does not name."""

    def __attrs_post_init__(self) -> None:
        if self.rename or not self.keep_others:
            self._reject_pre_batch("rename or drop columns")
        if not (self.cast or self.rename or self.template):
            raise ConfigError(f"{self.label}: has neither cast nor rename nor template")
        if not self.keep_others and not self.template:
            raise ConfigError(f"{self.label}: keep_others=False without a template would leave no columns")
        self.compiled()

    def compiled(self) -> tuple[dict[str, Fill], list[Template | Condition]]:
        """The function that fills each column of `template`, and every compiled text in it."""
        texts: list[Template | Condition] = []
        fills = {name: _compile(each, f"{self.label}, template.{name}", texts) for name, each in self.template.items()}
        return fills, texts

    def needs(self) -> Iterable[str]:
        return (*self.cast, *self.rename)

    def names(self) -> Iterable[str]:
        return (*self.needs(), *(name for text in self.compiled()[1] for name in text.requires))

    def problems(self, columns: Sequence[str]) -> list[str]:
        problems = super().problems(columns)
        named = self._renamed(columns)
        twice = sorted({name for name in named if named.count(name) > 1})
        new = (*self.rename.values(), *self.template)
        problems += [f"{self.label}: {problem}" for name in new if (problem := name_problem(str(name)))]
        problems += [f"{self.label}: rename gives two columns the name {name!r}" for name in twice]
        for template in self.compiled()[1]:
            problems += [
                f"{template.where}: unknown column {name!r}{nearest(name, named)}"
                for name in template.requires
                if name not in named
            ]
        if self.stage == "pre_batch":
            problems += [
                f"{self.label}: cannot add column {name!r} at stage pre_batch, which keeps the columns as they are"
                for name in self.template
                if name not in named
            ]
        return problems

    def retypes(self) -> Iterable[str]:
        return (*self.cast, *self.rename, *self.rename.values(), *self.template)

    def field_problems(self, shapes: Mapping[str, Shape]) -> list[str]:
        changed = self._changed(shapes)
        return [each for text in self.compiled()[1] for each in field_problems(text, changed, where=text.where)]

    def shapes_after(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {name: shape for name, shape in self._changed(shapes).items() if name not in self.template}

    def _changed(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """What is known after `cast` and `rename`."""
        cast = {name: type_shape(dtype) for name, dtype in self.cast.items()}
        return {self.rename.get(name, name): shape for name, shape in {**shapes, **cast}.items()}

    def columns_after(self, columns: Sequence[str]) -> Sequence[str]:
        others = self._renamed(columns) if self.keep_others else []
        return [*others, *(name for name in self.template if name not in others)]

    def _renamed(self, columns: Sequence[str]) -> list[str]:
        return [self.rename.get(name, name) for name in columns]

    def to_function(self, environment: Environment) -> Process[Any]:  # noqa: ARG002
        fills, texts = self.compiled()
        requires = tuple(dict.fromkeys(name for each in texts for name in each.requires))

        def transform(frame: Any) -> Any:
            known = frame.lazy().collect_schema()
            casts = [_cast(name, known[name], dtype) for name, dtype in self.cast.items()]
            frame = frame.with_columns(casts).rename(dict(self.rename))
            if not fills:
                return frame
            # The type of a structure of templates is known only when it is computed, so a lazy frame is collected here.
            frame = frame.lazy().collect()
            rows = python_rows(frame.select(requires)) if requires else [{}] * frame.height
            added = pl.DataFrame([_filled(name, list(map(fill, rows))) for name, fill in fills.items()])
            return frame.with_columns(added) if self.keep_others else added

        return transform


def _filled(name: str, values: list[Any]) -> pl.Series:
    """A column of any values: documents if they have no one type."""
    try:
        # By pyarrow: polars drops fields of a struct that its first rows do not have.
        return pl.Series(name, pa.array(values))
    except (pa.ArrowException, TypeError, ValueError):
        return pl.Series(name, json_array(values))


def _cast(name: str, given: pl.DataType, dtype: Any) -> pl.Expr:
    column = pl.col(name)
    if is_json(dtype):
        return column.map_batches(json_series, return_dtype=POLARS_JSON, is_elementwise=True)
    return (column.ext.storage() if is_json(given) else column).cast(dtype)


def _compile(structure: Structure, where: str, texts: list[Template | Condition]) -> Fill:
    """Compile every text of a structure, and append it to `texts`."""
    if isinstance(structure, str):
        if lone_expression(structure) is not None:
            texts.append(condition := compile_condition(structure, where=where))
            return condition.evaluate
        texts.append(template := compile_template(structure, where=where))
        return template.render
    if isinstance(structure, Mapping):
        fills = {name: _compile(each, f"{where}.{name}", texts) for name, each in structure.items()}
        return lambda row: {name: fill(row) for name, fill in fills.items()}
    if isinstance(structure, Sequence):
        items = [_compile(each, f"{where}[{index}]", texts) for index, each in enumerate(structure)]
        return lambda row: [fill(row) for fill in items]
    return lambda _: structure


def _row_wise(condition: Condition) -> pl.Expr:
    """An expression, for lazy frames too, that decides each row."""
    if not condition.requires:
        return pl.lit(condition.decide({}))

    def decide_all(rows: pl.Series) -> pl.Series:
        return pl.Series([condition.decide(row) for row in python_rows(rows.struct.unnest())], dtype=pl.Boolean)

    return pl.struct(condition.requires).map_batches(decide_all, return_dtype=pl.Boolean, is_elementwise=True)
