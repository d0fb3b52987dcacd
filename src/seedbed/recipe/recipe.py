"""A dataset as a user writes it, and everything that can be known to be wrong with it before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import attrs

from ..errors import ConfigError, DatasetGenerationError
from ..graph import ColumnLike, Kind, check_columns, nearest
from .access import Access, Contact, contacts
from .processors import ProcessorSpec
from .spec import ColumnSpec

C = TypeVar("C", bound=ColumnLike)


class ModelLike(Protocol):
    """What a recipe reads of a model's spec."""

    def problems(self) -> list[str]: ...


def _columns(value: Iterable[ColumnSpec] | ColumnSpec) -> tuple[ColumnSpec, ...]:
    return (value,) if isinstance(value, ColumnSpec) else tuple(value)


def _models(value: Mapping[str, ModelLike]) -> dict[str, ModelLike]:
    return dict(value)


def _processors(value: Iterable[ProcessorSpec]) -> tuple[ProcessorSpec, ...]:
    return tuple(value)


def _run(value: Any) -> dict[str, Any]:
    """Knobs by name; of a `RunConfig` those that differ from their defaults."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    if attrs.has(type(value)):
        fields = attrs.fields(type(value))
        return {each.name: getattr(value, each.name) for each in fields if getattr(value, each.name) != each.default}
    raise ConfigError(f"run must be a mapping of knobs or a RunConfig, not {value!r}")


@attrs.frozen(kw_only=True)
class Recipe:
    """Columns, the models that they use, and what is done to the rows.

    Columns are specs or functions with `@seedbed.column`; they may come in any order. `seed` makes everything that is
    drawn the same again. `run` has knobs of `RunConfig`, which say how it runs and not what it makes. `base` is where
    relative paths begin. `access` is what a recipe from a file may reach; one that is written in Python has none.
    """

    columns: tuple[ColumnSpec, ...] = attrs.field(converter=_columns)
    models: Mapping[str, ModelLike] = attrs.field(factory=dict, converter=_models)
    seed: int = 0
    processors: tuple[ProcessorSpec, ...] = attrs.field(default=(), converter=_processors)
    run: Mapping[str, Any] = attrs.field(default=None, converter=_run)
    name: str | None = None
    base: Path = attrs.field(default=Path(), converter=Path, eq=False)
    access: Access | None = attrs.field(default=None, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Refuse what is no part of a recipe; what is wrong with its parts is found by `problems`."""
        problems = [_stranger(index, each) for index, each in enumerate(self.columns) if not _is(each, ColumnSpec)]
        problems += [
            f"processors[{index}] is {each!r}, which is no processor of a recipe"
            for index, each in enumerate(self.processors)
            if not _is(each, ProcessorSpec)
        ]
        problems += [
            f"models.{alias} is {each!r}, which is no model"
            for alias, each in self.models.items()
            if not callable(getattr(each, "problems", None))
        ]
        if not self.columns:
            problems.append("there are no columns")
        if isinstance(self.seed, bool) or not _is(self.seed, int):
            problems.append(f"seed must be a whole number, not {self.seed!r}")
        if problems:
            raise DatasetGenerationError(problems)

    def resolve(self, make: Callable[[ColumnSpec], C]) -> tuple[C, ...]:
        """The engine's columns, each made of its spec by `make`; raises one error that lists all problems."""
        columns, problems = self._resolve(make)
        problems = [*self._model_problems(), *problems]
        if problems:
            raise DatasetGenerationError(problems)
        return tuple(columns)

    def problems(
        self, make: Callable[[ColumnSpec], ColumnLike], *, lost: Mapping[int, Lost] | None = None
    ) -> list[str]:
        """Everything that is wrong with its columns and processors, a sentence each.

        `lost` are columns that could not even be read, by position: what is said about others must hold without them.
        """
        return self._resolve(make, lost)[1]

    def _model_problems(self) -> list[str]:
        # A model that reaches for what it may not is not asked: it would open the file to find its problems.
        return self.access_problems() or [
            f"models.{alias}: {problem}" for alias, model in self.models.items() for problem in model.problems()
        ]

    def access_problems(self) -> list[str]:
        """What its models reach for and may not, a sentence each; columns check their paths when they are made."""
        return [] if self.access is None else self.access.model_problems(self.models, self.columns)

    def contacts(self) -> list[Contact]:
        """The servers that it contacts: models, remote validation and remote seeds."""
        return contacts(self.models, self.columns)

    def reads_files(self) -> bool:
        """True if it names local files or code, which are looked for below `base`."""
        return any(spec.paths() or spec.code() or getattr(spec, "images", ()) for spec in self.columns)

    def _resolve(
        self, make: Callable[[ColumnSpec], C], lost: Mapping[int, Lost] | None = None
    ) -> tuple[list[C], list[str]]:
        made: list[C] = []
        lost = dict(lost or {})
        problems: list[str] = []
        specs = iter(self.columns)
        for index in range(len(self.columns) + len(lost)):
            if index in lost:
                continue
            spec = next(specs)
            found = self._unknown_aliases(index, spec)
            if not found:
                try:
                    made.append(make(spec))
                    continue
                except DatasetGenerationError as error:
                    found = [f"columns[{index}]: {problem}" for problem in error.problems]
                except ConfigError as error:
                    found = [f"columns[{index}]: {error}"]
                except (RecursionError, MemoryError, ArithmeticError) as error:  # too deep or too large for a library
                    found = [f"columns[{index}]: column {spec.name!r}: {type(error).__name__}: {error}"]
            problems += found
            lost[index] = Lost(name=spec.name)
        problems += [problem for column in made if (problem := getattr(column, "problem", None))]
        problems += self._graph_problems(made, list(lost.values()))
        if not lost:
            problems += self._processor_problems(made)
        return made, problems

    def _unknown_aliases(self, index: int, spec: ColumnSpec) -> list[str]:
        return [
            f"columns[{index}]: column {spec.name!r} uses model {alias!r}, which is not in models"
            f"{nearest(alias, self.models)}"
            for alias in spec.aliases()
            if alias not in self.models
        ]

    def _graph_problems(self, made: Sequence[ColumnLike], lost: Sequence[Lost]) -> list[str]:
        problems = check_columns([*made, *lost])
        if not lost:
            return problems
        # What a lost column would have made is not known, so only what looks like a slip is worth saying.
        return [each for each in problems if "which no column makes" not in each or "did you mean" in each]

    def _processor_problems(self, made: Sequence[ColumnLike]) -> list[str]:
        problems: list[str] = []
        everything = [name for column in made for name in (*column.outputs, *column.side_effects)]
        scratch = [
            name
            for column in made
            if column.kind is Kind.FROM_SCRATCH
            for name in (*column.outputs, *column.side_effects)
        ]
        for stages, columns in ((("before_batch",), scratch), (("after_batch", "after_generation"), everything)):
            seen: Sequence[str] | None = columns
            for stage in stages:
                for index, processor in enumerate(self.processors):
                    if processor.stage == stage and seen is not None:
                        problems += [f"processors[{index}]: {problem}" for problem in processor.problems(seen)]
                        left = processor.columns_after(seen)
                        if seen and left is not None and not left:
                            problems.append(f"processors[{index}]: {processor.label}: no column is left after it")
                        seen = left
        return problems


@attrs.frozen(kw_only=True)
class Lost:
    """Stands in the graph for a column that could not be made, so that others may name it."""

    name: str
    kind: Kind = Kind.CELL
    requires: tuple[str, ...] = ()
    allow_resize: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def side_effects(self) -> tuple[str, ...]:
        return (f"{self.name}__trace", f"{self.name}__reasoning_content")


def _is(value: object, kind: type) -> bool:
    """As isinstance; what users hand in need not be what annotations promise."""
    return isinstance(value, kind)


def _stranger(index: int, value: Any) -> str:
    name = getattr(value, "__name__", None)
    if callable(value) and name is not None and not isinstance(value, type):
        return f"columns[{index}] is the plain function {name!r}; put @seedbed.column above it"
    return f"columns[{index}] is {value!r}, which is no column of a recipe"
