"""YAML, TOML and JSON files: the same values from each, and where in the file they stand."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import yaml

from ..errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@attrs.frozen(kw_only=True)
class Document:
    """What a file holds. `problems` are those of the file as such; `lines` has the line of each path that is known."""

    data: Mapping[str, Any]
    file: str = ""
    lines: Mapping[str, int] = attrs.field(factory=dict, repr=False)
    problems: tuple[str, ...] = ()

    def place(self, path: str) -> str:
        """The beginning of a message about a path such as `columns[3].prompt`: the file and the nearest known line."""
        while path and path not in self.lines:
            path = re.sub(r"(\.[^.\[\]]*|\[\d+\]|^[^.\[]*)$", "", path)
        line = f":{self.lines[path]}" if path else ""
        return f"{self.file}{line}: " if self.file else ""

    def placed(self, problem: str) -> str:
        """A problem that begins with a path, or with the column that it is about, with its place in front."""
        path = problem.partition(": ")[0]
        if path not in self.lines:
            columns = self.data.get("columns")
            for index, column in enumerate(columns if isinstance(columns, list) else ()):
                if isinstance(column, Mapping) and problem.startswith(f"column {column.get('name')!r}"):
                    path = f"columns[{index}]"
        return f"{self.place(path)}{problem}" if path in self.lines else problem


def read_document(path: Path, text: str | None = None) -> Document:
    """Read a file, or `text` in place of it, by its suffix. Raises `ConfigError` if it cannot be read or parsed."""
    readers: dict[str, Callable[[str, str], Document]] = {
        ".yaml": _read_yaml,
        ".yml": _read_yaml,
        ".toml": _read_toml,
        ".json": _read_json,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"{path}: a recipe file ends in {', '.join(readers)}, not {path.suffix!r}")
    try:
        text = path.read_text(encoding="utf-8") if text is None else text
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    document = reader(text, str(path))
    if not isinstance(document.data, Mapping):
        raise ConfigError(f"{path}: a recipe is a mapping with 'columns', not {type(document.data).__name__}")
    return document


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: `no` and `12:30` are text and not false and 750, as in JSON; dates are text too."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  this is how yaml spells it


_NUMBER = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", rf"{_NUMBER}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
)


def add_scalars(cls: type[yaml.SafeLoader | yaml.SafeDumper]) -> None:
    """Let a loader read, or a dumper quote, what YAML 1.2 takes for something else than text."""
    for tag, pattern, first in _SCALARS:
        cls.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})\Z"), first)


add_scalars(_Loader)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


def _read_yaml(text: str, file: str) -> Document:
    try:
        node = yaml.compose(text, Loader=_Loader)
        loader = _Loader(text)
        try:
            data = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = "" if mark is None else f":{mark.line + 1}"
        raise ConfigError(f"{file}{at}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: {error}") from error
    lines, problems = _marks(node, file)
    return Document(data=data, file=file, lines=lines, problems=tuple(problems))


def _marks(root: yaml.Node | None, file: str) -> tuple[dict[str, int], list[str]]:
    """The line of every path, and keys that a mapping has twice, of which YAML would keep the last in silence."""
    lines: dict[str, int] = {}
    problems: list[str] = []

    visited: set[int] = set()

    def walk(node: yaml.Node, path: str) -> None:
        lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in visited:  # an alias: where it was first is place enough, and it may stand in itself
            return
        visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                name = str(key.value)
                inner = f"{path}.{name}" if path else name
                if name in seen:
                    problems.append(f"{file}:{key.start_mark.line + 1}: {inner}: the key is there twice")
                seen.add(name)
                lines[inner] = key.start_mark.line + 1
                walk(value, inner)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                walk(value, f"{path}[{index}]")

    if root is not None:
        walk(root, "")
    return lines, problems


def _read_json(text: str, file: str) -> Document:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}:{error.lineno}: {error.msg}") from error
    try:
        # Nearly all JSON is YAML as well, and YAML tells its lines.
        lines, problems = _marks(yaml.compose(text, Loader=_Loader), file)
    except yaml.YAMLError:
        lines, problems = {}, []
    return Document(data=data, file=file, lines=lines, problems=tuple(problems))


def _read_toml(text: str, file: str) -> Document:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {error}") from error
    # Its parser tells no lines, but the headers of tables are easily found.
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\[\s*([\w-]+)\s*\]\]", line):
            name = header[1]
            lines[f"{name}[{counts.get(name, 0)}]"] = number
            counts[name] = counts.get(name, 0) + 1
        elif header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            lines[header[1]] = number
    return Document(data=_without_dates(data), file=file, lines=lines)


def _without_dates(value: Any) -> Any:
    """Dates as text, as the other formats have them."""
    if isinstance(value, dict):
        return {name: _without_dates(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_dates(each) for each in value]
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else value
