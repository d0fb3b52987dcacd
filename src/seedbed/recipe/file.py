"""Recipe files: YAML, TOML or JSON, read into a recipe with every problem at once, each with its line in the file.

The file that is stored with a dataset is written here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from ..checks import is_whole
from ..columns.documents import read_document, yaml_text
from ..columns.spec import Access, Grants, ProcessorSpec, processor_types, spec_types
from ..errors import ConfigError, DatasetGenerationError
from ..graph import closest, nearest
from ..models import MODEL_TYPES, Scripted
from .acceptance import RowRules
from .recipe import Recipe, plain, recipe_fields
from .stages import Stage

if TYPE_CHECKING:
    import os

    from ..columns.documents import Document
    from ..columns.spec import ColumnSpec

T = TypeVar("T", list[Any], dict[str, Any])
_RULES = tuple(field.name for field in attrs.fields(RowRules))
_KEYS = ("name", "seed", "models", "columns", "processors", "stages", "output", *_RULES, "run", "base")
# Most servers implement this API, so a model with an address and no type is one of them.
_DEFAULT_MODEL = "openai"


def load_recipe(
    path: str | os.PathLike[str], *, grants: Grants, run_options: type, content: bytes | None = None
) -> Recipe:
    """Read a recipe file. Raises one `DatasetGenerationError` that lists every problem with its place in the file.

    The recipe may read below its own folder, and what `grants` allows; code that it names as `module:name` is rejected
    unless `grants` allows code. `run_options` is the class that validates the options under `run`. `content` replaces
    the content of the file, which is then not opened.
    """
    path = Path(path)
    # Absolute, because the recipe is stored with its dataset, in another folder.
    access = Access(folder=path.parent.absolute(), grants=grants)
    return _Reader(read_document(path, content), access).read(run_options)


class _Unreadable(ProcessorSpec):
    """In place of a processor whose fields are invalid: the columns after it are not known."""

    type = "unreadable"

    def columns_after(self, columns: Sequence[str]) -> None:  # noqa: ARG002
        return None


class _Reader:
    """Builds a recipe from one document and collects its problems."""

    def __init__(self, document: Document, access: Access) -> None:
        self._document = document
        self._access = access
        self._problems: list[str] = [*document.problems]
        self._column_types: Mapping[str, type[ColumnSpec]] = {}

    def read(self, run_options: type) -> Recipe:
        data = self._document.data
        for key in data:
            if key not in _KEYS:
                self._problem(str(key), f"unknown key {key!r}{nearest(str(key), _KEYS)}")
        # An alias whose fields are invalid is still defined: columns that use it are not a second problem.
        models = {
            alias: self._typed(f"models.{alias}", fields, MODEL_TYPES, "model") or Scripted()
            for alias, fields in self._get("models", dict).items()
        }
        # Once for the file: finding plug-ins reads files of every installed package.
        self._column_types = spec_types()
        stages: list[Stage] = []
        unreadable: dict[int, Mapping[int, str]] = {}
        invalid: set[int] = set()
        columns, unreadable[0], processors = self._columns("", data)
        for index, fields in enumerate(self._get("stages", list)):
            before = len(self._problems)
            stage, unreadable[index] = self._stage(f"stages[{index}]", fields)
            # Problems of its columns alone are reported before those of its own fields.
            if len(self._problems) > before + len(unreadable[index]):
                invalid.add(index)
            stages.append(stage)
        run = self._get("run", dict)
        self._construct("run", run_options, run)
        rules = {}
        for key in _RULES:
            if data.get(key) is None:
                continue
            if (problem := _failure(RowRules, **{key: data[key]})) is None:
                rules[key] = data[key]
            else:
                self._problem(key, str(problem).removeprefix(f"{key}: "))
        seed = data.get("seed", 0)
        if not is_whole(seed):
            self._problem("seed", f"must be a whole number, not {seed!r}")
            seed = 0
        output = data.get("output")
        if output is not None and not stages:
            self._problem("output", "names a stage, and the recipe has no stages")
            output = None
        for key in ("columns", "processors", *_RULES) if stages else ():
            if data.get(key):
                self._problem(key, "in a recipe with stages it is a field of a stage")
        if not columns and not unreadable.get(0) and not stages:
            self._problem("columns", "the recipe has no columns")
        if not columns and not stages:
            raise DatasetGenerationError(self._problems)
        recipe = Recipe(
            columns=() if stages else columns,
            models=models,
            seed=seed,
            processors=() if stages else processors,
            stages=stages,
            output=output,
            run=run,
            name=data.get("name"),
            **({} if stages else rules),
            base=self._access.folder / str(data.get("base", "")),
            access=self._access,
        )
        if self._problems:
            found = recipe.problems(recipe.environment(), unreadable=unreadable, invalid=invalid)
            raise DatasetGenerationError([*self._problems, *map(self._document.placed, found)])
        return recipe

    def _columns(self, path: str, data: Mapping[str, Any]) -> tuple[list[ColumnSpec], dict[int, str], list[Any]]:
        """Columns, the names of those that cannot be created by position, and processors of a recipe or a stage."""
        columns: list[ColumnSpec] = []
        unreadable: dict[int, str] = {}
        for index, fields in enumerate(self._get("columns", list, data, path)):
            if spec := self._column(f"{path}columns[{index}]", fields, self._column_types):
                columns.append(spec)
            else:
                name = fields.get("name") if isinstance(fields, Mapping) else None
                unreadable[index] = name if isinstance(name, str) else f"columns[{index}]"
        of_processors = processor_types() if data.get("processors") else {}
        # A processor that cannot be created keeps its place: others are reported by their position.
        processors: list[Any] = [
            self._typed(f"{path}processors[{index}]", fields, of_processors, "processor") or _Unreadable()
            for index, fields in enumerate(self._get("processors", list, data, path))
        ]
        return columns, unreadable, processors

    def _stage(self, path: str, fields: Any) -> tuple[Stage, dict[int, str]]:
        """A stage, with what of it can be created, and the columns that cannot."""
        if not isinstance(fields, Mapping):
            self._problem(path, f"a stage is a mapping with a name and columns, not {fields!r}")
            return Stage(""), {}
        given = {str(name): value for name, value in fields.items()}
        columns, unreadable, processors = self._columns(f"{path}.", given)
        given = {name: value for name, value in given.items() if name not in ("columns", "processors")}
        given.setdefault("name", "")
        stage = self._construct(path, Stage, given, written={"from_": "from"}) or Stage("")
        # A column in the place of those that cannot be created: the stage is not empty.
        return attrs.evolve(stage, columns=columns, processors=processors), unreadable

    def _column(self, path: str, fields: Any, types: Mapping[str, type[ColumnSpec]]) -> ColumnSpec | None:
        spec: ColumnSpec | None = self._typed(path, fields, types, "column")
        if spec is not None and not self._access.grants.code and (code := spec.code()):
            names = ", ".join(map(repr, code))
            self._problem(path, f"column {spec.name!r} runs user-defined code ({names}), which needs --allow-code")
            return None
        return spec

    def _typed(self, path: str, fields: Any, types: Mapping[str, type], what: str) -> Any:
        if not isinstance(fields, Mapping):
            self._problem(path, f"a {what} is a mapping with a 'type', not {fields!r}")
            return None
        given = {str(name): value for name, value in fields.items()}
        kind = given.pop("type", _DEFAULT_MODEL if what == "model" else None)
        if kind is None:
            written = next((name for name in given if closest(name, ["type"]) is not None), None)
            if written is None:
                self._problem(path, f"the type of the {what} is missing{nearest('', types)}")
            else:
                self._problem(f"{path}.{written}", f"unknown field {written!r}; did you mean 'type'?")
            return None
        if not isinstance(kind, str) or kind not in types:
            self._problem(f"{path}.type", f"unknown {what} type {kind!r}{_hint(str(kind), types)}")
            return None
        return self._construct(path, types[kind], given)

    def _construct(
        self, path: str, cls: type, given: Mapping[str, Any], *, written: Mapping[str, str] | None = None
    ) -> Any:
        """An instance of an attrs class; None, with every problem of its fields reported, if it cannot be created.

        `written` has the names in files of fields that have another one in Python.
        """
        names = written or {}
        fields = {names.get(each.name, str(each.alias)): each for each in attrs.fields(cls) if each.init}
        usable: dict[str, Any] = {}
        for name, value in given.items():
            if name not in fields:
                self._problem(f"{path}.{name}", f"unknown field {name!r}{_hint(name, fields)}")
            elif (problem := _failure(_converter(fields[name]), value)) is None:
                usable[name] = value
            else:
                self._problem(f"{path}.{name}", str(problem))
        missing = [name for name, each in fields.items() if each.default is attrs.NOTHING and name not in given]
        for name in missing:
            self._problem(f"{path}.{name}", "is missing")
        if any(each.default is attrs.NOTHING and name not in usable for name, each in fields.items()):
            return None
        # A class raises its first problem only; without the invalid field it raises the next one.
        while (problem := _failure(cls, **{fields[name].alias: value for name, value in usable.items()})) is not None:
            field = names.get(str(problem.field), problem.field)
            if field not in usable or fields[field].default is attrs.NOTHING:
                self._problem(f"{path}.{field}" if field in usable else path, str(problem))
                return None
            self._problem(f"{path}.{field}", str(problem))
            del usable[field]
        # Without its invalid fields it takes part in the checks of the whole recipe, which is rejected anyway.
        return cls(**{str(fields[name].alias): value for name, value in usable.items()})

    def _get(self, key: str, kind: type[T], data: Mapping[str, Any] | None = None, path: str = "") -> T:
        value = (self._document.data if data is None else data).get(key)
        if value is None or isinstance(value, kind):
            return value or kind()
        self._problem(f"{path}{key}", f"must be a {'list' if kind is list else 'mapping'}, not {value!r}")
        return kind()

    def _problem(self, path: str, message: str) -> None:
        self._problems.append(f"{self._document.place(path)}{path}: {message}")


def _hint(name: str, known: Iterable[str]) -> str:
    """As `nearest`, but `judge` also suggests `llm-judge`, and `expression` suggests `expr`."""
    known = list(known)
    if closest(name, known) is None and len(name) >= _PART:
        contained = [each for each in known if name.replace("_", "-") in each]
        found = contained or [each for each in known if len(each) >= _PART and name.startswith(each)]
        if len(found) == 1:
            return f"; did you mean {found[0]!r}?"
    return nearest(name, known)


# The length from which a part of a name is compared.
_PART = 4


def _converter(field: attrs.Attribute[Any]) -> Callable[[Any], Any]:
    """The converter of a field; one that takes its instance is called by the class only."""
    converter: Any = field.converter
    return converter if callable(converter) and not isinstance(converter, attrs.Converter) else lambda value: value


def _failure(call: Callable[..., Any], *args: Any, **kwargs: Any) -> ConfigError | None:
    """The error that a converter or a class raises for a value."""
    try:
        call(*args, **kwargs)
    except ConfigError as error:
        return error
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, MemoryError) as error:
        # From code that expects other values, such as a converter of names that gets a number.
        return ConfigError(f"{type(error).__name__}: {error}")
    return None


def recipe_data(recipe: Recipe) -> dict[str, Any]:
    """The content of a recipe file that loads as this recipe; functions are named as `module:name`."""
    data = recipe_fields(recipe, determining=False)
    if recipe.run:
        data["run"] = {name: plain(value) for name, value in recipe.run.items()}
    if recipe.base != Path():
        # Relative paths start at the same folder wherever the file is stored.
        data["base"] = str(recipe.base.resolve())
    return data


def recipe_text(recipe: Recipe) -> str:
    """The recipe as a YAML file."""
    return yaml_text(recipe_data(recipe))
