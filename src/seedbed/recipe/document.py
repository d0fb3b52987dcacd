"""YAML, TOML and JSON files: the same values from each, and where in the file they stand."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from ..errors import ConfigError
from ..graph.limits import MAX_DEPTH, parse_toml

if TYPE_CHECKING:
    from pathlib import Path

# A recipe of this size takes seconds to read; data belongs into seed files.
MAX_BYTES = 4_000_000
MAX_VALUES = 100_000
_SURROGATE = re.compile("[\ud800-\udfff]")


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


def read_document(path: Path, content: bytes | None = None) -> Document:
    """Read a file, or `content` in place of it, by its suffix. Raises `ConfigError` if it cannot be read or parsed."""
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
        if content is None:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: a recipe has at most {MAX_BYTES} bytes; put data into seed files")
        text = content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: a recipe is UTF-8, found {error.object[error.start]:#04x}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        document = reader(text, str(path))
    except RecursionError:
        raise ConfigError(f"{path}: it is nested more than {MAX_DEPTH} levels deep") from None
    if not isinstance(document.data, Mapping):
        raise ConfigError(f"{path}: a recipe is a mapping with 'columns', not {type(document.data).__name__}")
    _check_values(document)
    return document


def _check_values(document: Document) -> None:
    """Refuse what is too deep or too much, and text that no file and no request can hold."""
    count = 0
    open_parts: list[Iterator[tuple[str, Any]]] = [iter([("", document.data)])]
    while open_parts:
        path, value = next(open_parts[-1], (None, None))
        if path is None:
            open_parts.pop()
            continue
        count += 1
        if count > MAX_VALUES:
            raise ConfigError(
                f"{document.place(path)}a recipe has at most {MAX_VALUES} values; put data into seed files"
            )
        if len(open_parts) > MAX_DEPTH:
            raise ConfigError(f"{document.place(path)}it is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, Mapping | list):
            open_parts.append(_children(path, value))
        for text in (path, value):
            if isinstance(text, str) and (found := _SURROGATE.search(text)):
                place = document.place(path) + path.encode("ascii", "backslashreplace").decode()
                raise ConfigError(f"{place}: {found[0]!r} is half of a character, which no text can be stored with")


def _children(path: str, value: Mapping[Any, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return ((f"{path}.{key}" if path else str(key), each) for key, each in value.items())
    return ((f"{path}[{index}]", each) for index, each in enumerate(value))


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: `no` and `12:30` are text and not false and 750, as in JSON; dates are text too."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  this is how yaml spells it

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._values = 0
        # How many values each anchor stands for; None while its node is being read.
        self._anchored: dict[str, int | None] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse depth, and aliases that would expand without end, before anything follows them."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark, anchor = event.start_mark, event.anchor
        if isinstance(event, yaml.AliasEvent):
            held = self._anchored.get(anchor, 0)
            if held is None:
                raise ComposerError(None, None, f"the alias {anchor!r} stands in the value that it names", mark)
            self._count(held, mark)
            return super().compose_node(parent, index)
        before = self._values
        self._count(1, mark)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ComposerError(None, None, f"it is nested more than {MAX_DEPTH} levels deep", mark)
        if anchor is not None:
            self._anchored[anchor] = None
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None:
            self._anchored[anchor] = self._values - before
        return node

    def _count(self, values: int, mark: yaml.Mark) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            message = f"a recipe has at most {MAX_VALUES} keys and values, aliases expanded; put data into seed files"
            raise ComposerError(None, None, message, mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(None, None, f"this is no {kind}: {str(error)[:200]}", node.start_mark) from error


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
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            # Merge keys are resolved in the nodes, so their lines are taken first.
            lines, problems = _marks(node, file)
            data: Any = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = "" if mark is None else f":{mark.line + 1}"
        raise ConfigError(f"{file}{at}: {error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{file}:{line}: the character {error.character:#04x} is not allowed in YAML") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: {error}") from error
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
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError(f"{file}: {error}") from error
    try:
        # Nearly all JSON is YAML as well, and YAML tells its lines.
        lines, problems = _marks(yaml.compose(text, Loader=_Loader), file)
    except yaml.YAMLError:
        lines, problems = {}, []
    return Document(data=data, file=file, lines=lines, problems=tuple(problems))


def _read_toml(text: str, file: str) -> Document:
    try:
        data = parse_toml(text)
    except ValueError as error:  # TOML's own error, and a number of thousands of digits
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
