"""From a recipe file (YAML, TOML or JSON) to a recipe, with everything that is wrong in it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import ConfigError, DatasetGenerationError
from ..graph import nearest
from .access import Access, Grants
from .document import Document, read_document
from .recipe import Lost, Recipe

if TYPE_CHECKING:
    import os

    from ..graph import ColumnLike
    from .processors import ProcessorSpec
    from .spec import ColumnSpec

_KEYS = ("name", "seed", "models", "columns", "processors", "run", "base")


# Most endpoints speak this API, so a model that has an address and no type is one of them.
DEFAULT_MODEL = "openai"


@attrs.frozen(kw_only=True)
class Vocabulary:
    """What a recipe may be written with: spec classes by type name, and the class of the knobs of a run.

    `make` gives what makes the engine's columns of a recipe. With it, problems of the graph are found beside those of
    the file; without it they are found later, by `Recipe.resolve`.
    """

    columns: Mapping[str, type]
    models: Mapping[str, type] = attrs.field(factory=dict)
    processors: Mapping[str, type] = attrs.field(factory=dict)
    run: type | None = None
    make: Callable[[Recipe], Callable[[ColumnSpec], ColumnLike]] | None = None


def load_recipe(
    path: str | os.PathLike[str],
    known: Vocabulary,
    *,
    allow_code: bool = False,
    grants: Grants | None = None,
    content: bytes | None = None,
) -> Recipe:
    """Read a recipe file. Raises one `DatasetGenerationError` that lists every problem with its place in the file.

    Code that the file names as `module:name` is refused unless `allow_code` is set. It may read below its own folder,
    and what `grants` allow besides. With `content`, what the file holds, it is not opened.
    """
    path = Path(path)
    # Absolute, because the recipe is stored with its dataset, in another folder.
    folder = path.parent.absolute()
    grants = grants or Grants(code=allow_code)
    access = Access(folder=folder, grants=grants)
    return read_recipe(read_document(path, content), known, base=folder, allow_code=grants.code, access=access)


def read_recipe(
    document: Document, known: Vocabulary, *, base: Path, allow_code: bool = False, access: Access | None = None
) -> Recipe:
    """Make a recipe of what was read from a file; relative paths begin at `base`."""
    return _Reader(document, known, allow_code).read(base, access)


class _Reader:
    """Goes through one document and collects what is wrong with it."""

    def __init__(self, document: Document, known: Vocabulary, allow_code: bool) -> None:
        self._document = document
        self._known = known
        self._allow_code = allow_code
        self._problems: list[str] = [*document.problems]

    def read(self, base: Path, access: Access | None) -> Recipe:
        data = self._document.data
        for key in data:
            if key not in _KEYS:
                self._problem(str(key), f"there is no key {key!r}{nearest(str(key), _KEYS)}")
        models: dict[str, Any] = {}
        for alias, fields in self._mapping(data, "models").items():
            model = self._typed(f"models.{alias}", fields, self._known.models, "model")
            # The alias of a model that cannot be read is known all the same.
            models[alias] = _Unread() if model is None else model
        columns: list[ColumnSpec] = []
        lost: dict[int, Lost] = {}
        for index, fields in enumerate(self._sequence(data, "columns")):
            spec = self._column(f"columns[{index}]", fields)
            if spec is None:
                lost[index] = _lost(fields, index)
            else:
                columns.append(spec)
        processors: list[ProcessorSpec] = []
        for index, fields in enumerate(self._sequence(data, "processors")):
            processor = self._typed(f"processors[{index}]", fields, self._known.processors, "processor")
            if processor is not None:
                processors.append(processor)
        run = self._mapping(data, "run")
        if self._known.run is not None:
            self._construct("run", self._known.run, run)
        seed = data.get("seed", 0)
        if isinstance(seed, bool) or not isinstance(seed, int):
            self._problem("seed", f"must be a whole number, not {seed!r}")
            seed = 0
        if not columns and not lost:
            self._problem("columns", "there are no columns")
        if not columns:
            raise DatasetGenerationError(self._problems)
        recipe = Recipe(
            columns=columns,
            models=models,
            seed=seed,
            processors=processors,
            run=run,
            name=data.get("name"),
            base=base / str(data.get("base", "")),
            access=access,
        )
        if self._problems and self._known.make is not None:
            self._problems += map(self._document.placed, recipe.problems(self._known.make(recipe), lost=lost))
        if self._problems:
            raise DatasetGenerationError(self._problems)
        return recipe

    def _column(self, path: str, fields: Any) -> ColumnSpec | None:
        spec: ColumnSpec | None = self._typed(path, fields, self._known.columns, "column")
        if spec is not None and not self._allow_code and (code := spec.code()):
            names = ", ".join(repr(each) for each in code)
            self._problem(
                path, f"column {spec.name!r} runs code of its own ({names}), which is allowed only with --allow-code"
            )
            return None
        return spec

    def _typed(self, path: str, fields: Any, types: Mapping[str, type], what: str) -> Any:
        if not isinstance(fields, Mapping):
            self._problem(path, f"a {what} is a mapping with a 'type', not {fields!r}")
            return None
        given = {str(name): value for name, value in fields.items()}
        kind = given.pop("type", None)
        if kind is None and what == "model" and DEFAULT_MODEL in types:
            kind = DEFAULT_MODEL
        if kind is None:
            self._problem(path, f"the type of the {what} is missing{nearest('', types)}")
            return None
        if not isinstance(kind, str) or kind not in types:
            self._problem(f"{path}.type", f"there is no {what} of type {kind!r}{nearest(str(kind), types)}")
            return None
        return self._construct(path, types[kind], given)

    def _construct(self, path: str, cls: type, given: Mapping[str, Any]) -> Any:
        """An instance of an attrs class, or None with every problem of its fields told."""
        fields = {each.alias: each for each in attrs.fields(cls) if each.init}
        before = len(self._problems)
        for name in given:
            if name not in fields:
                self._problem(f"{path}.{name}", f"there is no field {name!r}{nearest(name, fields)}")
        usable = {name: value for name, value in given.items() if name in fields}
        missing = [name for name, each in fields.items() if each.default is attrs.NOTHING and name not in usable]
        for name in missing:
            self._problem(f"{path}.{name}", "is missing")
        if missing:
            return None
        optional = [name for name in usable if fields[name].default is not attrs.NOTHING]
        for where, problem in _refusals(cls, usable, optional):
            self._problem(path if where is None else f"{path}.{where}", problem)
        return None if len(self._problems) > before else cls(**usable)

    def _mapping(self, data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = data.get(key)
        if value is None or isinstance(value, Mapping):
            return value or {}
        self._problem(key, f"must be a mapping, not {value!r}")
        return {}

    def _sequence(self, data: Mapping[str, Any], key: str) -> list[Any]:
        value = data.get(key)
        if value is None or isinstance(value, list):
            return value or []
        self._problem(key, f"must be a list, not {value!r}")
        return []

    def _problem(self, path: str, message: str) -> None:
        self._problems.append(f"{self._document.place(path)}{path}: {message}")


def _refusals(cls: type, given: Mapping[str, Any], optional: list[str]) -> Iterator[tuple[str | None, str]]:
    """What a class says against these fields, with the field it is about where leaving that out changes the answer.

    A class stops at its first complaint; leaving out what it was about brings the next one to light.
    """
    left = dict(given)
    complaint = _refusal(cls, left)
    while complaint is not None:
        culprit = _culprit(cls, left, optional, complaint)
        yield culprit, complaint
        if culprit is None:
            return
        del left[culprit]
        complaint = _refusal(cls, left)


def _culprit(cls: type, given: Mapping[str, Any], optional: list[str], complaint: str) -> str | None:
    for name in optional:
        if name in given and _refusal(cls, {other: given[other] for other in given if other != name}) != complaint:
            return name
    return None


def _refusal(cls: type, given: Mapping[str, Any]) -> str | None:
    try:
        cls(**given)
    except ConfigError as error:
        return str(error)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, MemoryError) as error:
        # A converter met what it was not made for, such as a number where names were expected.
        return f"{type(error).__name__}: {error}"
    return None


def _lost(fields: Any, index: int) -> Lost:
    name = fields.get("name") if isinstance(fields, Mapping) else None
    return Lost(name=name if isinstance(name, str) else f"columns[{index}]")


class _Unread:
    """Stands for a model whose fields are wrong."""

    parameters: Mapping[str, Any] = {}
    max_parallel_requests = 1

    def problems(self) -> list[str]:
        return []

    def key(self, domain: str) -> str:
        """No throttle has it: a recipe with this in it is never run."""
        return f"unread {domain}"
