"""What is done to whole frames: before a row group's columns are made, after it, or after generation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from ..errors import ConfigError
from ..graph import name_problem, nearest
from .dtypes import read_dtype
from .expression import LANGUAGES, compile_sql, row_by_row
from .templates import Condition, Template, compile_condition, compile_template, lone_expression

# The stages as a recipe names them; the values are the engine's.
STAGES = {"before_batch": "pre_batch", "after_batch": "post_batch", "after_generation": "after_generation"}

Structure = Any  # templates in mappings and lists, as deep as one likes


def _columns(value: Iterable[str] | str) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _optional_columns(value: Iterable[str] | str | None) -> tuple[str, ...] | None:
    return None if value is None else _columns(value)


def _copy(value: Mapping[str, Any]) -> dict[str, Any]:
    return dict(value)


def _casts(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: read_dtype(dtype) for name, dtype in value.items()}


def _stage(spec: ProcessorSpec, _: object, value: Any) -> None:
    if value not in STAGES:
        allowed = ", ".join(repr(each) for each in STAGES)
        raise ConfigError(f"{spec.label}: stage must be one of {allowed}, not {value!r}")


@attrs.frozen(kw_only=True)
class ProcessorSpec:
    """Base of the frozen specs of processors. `type` is the name in a recipe file."""

    type: ClassVar[str]

    stage: str = attrs.field(default="after_batch", validator=_stage)
    name: str | None = None

    @property
    def label(self) -> str:
        """Its name, or its type."""
        return self.name or self.type

    @property
    def engine_stage(self) -> str:
        """What the engine calls its stage."""
        return STAGES[self.stage]

    def needs(self) -> Iterable[str]:
        """The columns that must be there."""
        return ()

    def columns_after(self, columns: Sequence[str]) -> Sequence[str] | None:
        """The columns that there are after it; None where that cannot be said."""
        return columns

    def problems(self, columns: Sequence[str]) -> list[str]:
        """What is wrong with it where these are the columns."""
        return [
            f"{self.label}: there is no column {name!r} at stage {self.stage}{nearest(name, columns)}"
            for name in dict.fromkeys(self.needs())
            if name not in columns
        ]

    def _keep_before_batch(self, what: str) -> None:
        if self.stage == "before_batch":
            raise ConfigError(
                f"{self.label}: cannot {what} at stage before_batch, where other columns still need them; "
                "use after_batch or after_generation"
            )


@attrs.frozen(kw_only=True)
class DropColumns(ProcessorSpec):
    """Leave columns out of the dataset."""

    type: ClassVar[str] = "drop_columns"

    columns: tuple[str, ...] = attrs.field(converter=_columns)

    def __attrs_post_init__(self) -> None:
        self._keep_before_batch("drop columns")

    def needs(self) -> Iterable[str]:
        return self.columns

    def columns_after(self, columns: Sequence[str]) -> Sequence[str]:
        return [name for name in columns if name not in self.columns]


@attrs.frozen(kw_only=True)
class Filter(ProcessorSpec):
    """Keep the rows for which `expr` is true; null is not. In Jinja2's language, or `language="sql"`."""

    type: ClassVar[str] = "filter"

    expr: str
    language: str = "jinja"

    def __attrs_post_init__(self) -> None:
        if self.language not in LANGUAGES:
            allowed = " or ".join(repr(each) for each in LANGUAGES)
            raise ConfigError(f"{self.label}: language must be {allowed}, not {self.language!r}")
        if self.language == "sql":
            if not row_by_row(compile_sql(self.expr, where=self.label)):
                raise ConfigError(f"{self.label}: {self.expr!r} looks at more than its own row")
        else:
            self.condition()

    def condition(self) -> Condition:
        """The compiled expression, if it is Jinja2's."""
        return compile_condition(self.expr, where=self.label)

    def needs(self) -> Iterable[str]:
        if self.language == "sql":
            return compile_sql(self.expr, where=self.label).meta.root_names()
        return self.condition().requires


@attrs.frozen(kw_only=True)
class Deduplicate(ProcessorSpec):
    """Keep the first of rows that are equal in the columns of `subset` (in all if not given).

    Before or after a batch only the rows of one row group are compared, so by default it runs after generation.
    """

    type: ClassVar[str] = "deduplicate"

    stage: str = attrs.field(default="after_generation", validator=_stage)
    subset: tuple[str, ...] | None = attrs.field(default=None, converter=_optional_columns)

    def needs(self) -> Iterable[str]:
        return self.subset or ()


@attrs.frozen(kw_only=True)
class SchemaTransform(ProcessorSpec):
    """Change types, then names, then add columns.

    `cast` has types by column, `rename` new names by old ones. `template` has new columns by name: each is a Jinja2
    template over the row, or mappings and lists of templates; `{{ score }}` alone gives the value itself, not its
    text. The names in it are the new ones. With `keep_others=False` only the columns of `template` remain.
    """

    type: ClassVar[str] = "schema_transform"

    cast: Mapping[str, Any] = attrs.field(factory=dict, converter=_casts)
    rename: Mapping[str, str] = attrs.field(factory=dict, converter=_copy)
    template: Mapping[str, Structure] = attrs.field(factory=dict, converter=_copy)
    keep_others: bool = True

    def __attrs_post_init__(self) -> None:
        if self.rename or not self.keep_others:
            self._keep_before_batch("rename or leave out columns")
        if not (self.cast or self.rename or self.template):
            raise ConfigError(f"{self.label}: has neither cast nor rename nor template")
        if not self.keep_others and not self.template:
            raise ConfigError(f"{self.label}: keep_others=False without a template would leave no columns")
        self.compiled()

    def compiled(self) -> dict[str, Structure]:
        """`template` with every text compiled."""
        return {name: _compile(each, f"{self.label}, template.{name}") for name, each in self.template.items()}

    def templates(self) -> Iterator[Template | Condition]:
        """Every compiled text of `template`."""
        for each in self.compiled().values():
            yield from _leaves(each)

    def needs(self) -> Iterable[str]:
        return (*self.cast, *self.rename)

    def problems(self, columns: Sequence[str]) -> list[str]:
        problems = super().problems(columns)
        named = self._renamed(columns)
        twice = sorted({name for name in named if named.count(name) > 1})
        made = (*self.rename.values(), *self.template)
        problems += [f"{self.label}: {problem}" for name in made if (problem := name_problem(str(name)))]
        problems += [f"{self.label}: rename gives two columns the name {name!r}" for name in twice]
        for template in self.templates():
            problems += [
                f"{template.where}: there is no column {name!r}{nearest(name, named)}"
                for name in template.requires
                if name not in named
            ]
        if self.stage == "before_batch":
            problems += [
                f"{self.label}: cannot add column {name!r} at stage before_batch, which keeps the columns as they are"
                for name in self.template
                if name not in named
            ]
        return problems

    def columns_after(self, columns: Sequence[str]) -> Sequence[str]:
        others = self._renamed(columns) if self.keep_others else []
        return [*others, *(name for name in self.template if name not in others)]

    def _renamed(self, columns: Sequence[str]) -> list[str]:
        return [self.rename.get(name, name) for name in columns]


def _compile(structure: Structure, where: str) -> Structure:
    if isinstance(structure, str):
        if lone_expression(structure) is not None:
            return compile_condition(structure, where=where)
        return compile_template(structure, where=where)
    if isinstance(structure, Mapping):
        return {name: _compile(each, f"{where}.{name}") for name, each in structure.items()}
    if isinstance(structure, Sequence):
        return [_compile(each, f"{where}[{index}]") for index, each in enumerate(structure)]
    return structure


def _leaves(structure: Structure) -> Iterator[Template | Condition]:
    if isinstance(structure, Template | Condition):
        yield structure
    elif isinstance(structure, dict | list):
        for each in structure.values() if isinstance(structure, dict) else structure:
            yield from _leaves(each)
