"""Documents that users write, in YAML, TOML or JSON: read within limits, with the line of each part.

They may come from someone else: recipes, and the schema files that these name.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from ..checks import MAX_DEPTH, parse_toml
from ..errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

# A file of this size takes seconds to read; data belongs into seed files.
MAX_BYTES = 4_000_000
MAX_VALUES = 100_000
_TOO_MANY = f"a file has at most {MAX_VALUES} keys and values, aliases expanded; put data into seed files"
_SURROGATE = re.compile("[\ud800-\udfff]")


@attrs.frozen(kw_only=True)
class Document:
    """The content of a file. `problems` are those of the file itself; `lines` has the line of each known path."""

    data: Mapping[str, Any]
    file: str = ""
    lines: Mapping[str, int] = attrs.field(factory=dict, repr=False)
    problems: tuple[str, ...] = ()

    def place(self, path: str) -> str:
        """The start of a message about a path such as `columns[3].prompt`: the file and the nearest known line."""
        while path and path not in self.lines:
            path = re.sub(r"(\.[^.\[\]]*|\[\d+\]|^[^.\[]*)$", "", path)
        line = f":{self.lines[path]}" if path else ""
        return f"{self.file}{line}: " if self.file else ""

    def placed(self, problem: str) -> str:
        """A problem that starts with a path, or with the name of a column, with its place in front."""
        path = problem.partition(": ")[0]
        if path not in self.lines:
            columns = self.data.get("columns")
            for index, column in enumerate(columns if isinstance(columns, list) else ()):
                if isinstance(column, Mapping) and problem.startswith(f"column {column.get('name')!r}"):
                    path = f"columns[{index}]"
        return f"{self.place(path)}{problem}" if path in self.lines else problem


def read_document(
    path: Path, content: bytes | None = None, *, expected: str = "a recipe is a mapping with 'columns'"
) -> Document:
    """Read a file, or `content` in place of it, by its suffix. Raises `ConfigError` if it cannot be read or parsed.

    `expected` is the start of the message if it is not a mapping.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"{path}: a recipe file ends in {', '.join(_READERS)}, not {path.suffix!r}")
    try:
        if content is None:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: a file has at most {MAX_BYTES} bytes; put data into seed files")
        text = content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        data, lines, duplicates = reader(text)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: the text must be UTF-8, found {error.object[error.start]:#04x}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path}: nested more than {MAX_DEPTH} levels deep") from None
    except yaml.MarkedYAMLError as error:
        at = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise ConfigError(f"{path}{at}: {error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{path}:{line}: the character {error.character:#04x} is not allowed in YAML") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: {error.msg}") from error
    except (yaml.YAMLError, ValueError) as error:  # errors of TOML, and a number of thousands of digits
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path}: {expected}, not {type(data).__name__}")
    problems = tuple(f"{path}:{line}: {name}: duplicate key" for name, line in duplicates)
    document = Document(data=data, file=str(path), lines=lines, problems=problems)
    _check_values(document)
    return document


def _check_values(document: Document) -> None:
    """Reject documents that are too deep or too large, and text that cannot be encoded."""
    count = 0

    def check(path: str, value: Any, depth: int) -> None:
        nonlocal count
        count += 1 + (len(value) if isinstance(value, Mapping) else 0)
        if count > MAX_VALUES:
            raise ConfigError(f"{document.place(path)}{_TOO_MANY}")
        if depth > MAX_DEPTH:
            raise ConfigError(f"{document.place(path)}nested more than {MAX_DEPTH} levels deep")
        for text in (path, value):
            if isinstance(text, str) and (found := _SURROGATE.search(text)):
                place = document.place(path) + path.encode("ascii", "backslashreplace").decode()
                raise ConfigError(f"{place}: {found[0]!r} is a lone surrogate, which cannot be encoded")
        if isinstance(value, Mapping):
            for key, each in value.items():
                check(f"{path}.{key}" if path else str(key), each, depth + 1)
        elif isinstance(value, list):
            for index, each in enumerate(value):
                check(f"{path}[{index}]", each, depth + 1)

    check("", document.data, 1)


class _Loader(yaml.SafeLoader):
    """The scalars of YAML 1.2: `no` and `12:30` are text and not false and 750, as in JSON; dates are text too."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  this is how yaml spells it

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._values = 0
        self._values_of: dict[str, int] = {}  # by anchor

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Stop at too many values, aliases expanded, before anything expands them."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        is_alias = isinstance(event, yaml.AliasEvent)
        before = self._values
        self._values += self._values_of.get(event.anchor, 1) if is_alias else 1
        if self._values > MAX_VALUES:
            raise ComposerError(None, None, _TOO_MANY, event.start_mark)
        node = super().compose_node(parent, index)
        if event.anchor is not None and not is_alias:
            self._values_of[event.anchor] = self._values - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(None, None, f"not a valid {kind}: {str(error)[:200]}", node.start_mark) from error


_NUMBER = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", rf"{_NUMBER}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
)


def _add_scalars(cls: type[yaml.SafeLoader | yaml.SafeDumper]) -> None:
    """Make a loader read, or a dumper quote, the scalars that are not text in YAML 1.2."""
    for tag, pattern, first in _SCALARS:
        cls.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})\Z"), first)


_add_scalars(_Loader)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


# The content of a file, the line of each known path, and path and line of each duplicate key.
Parsed = tuple[Any, dict[str, int], list[tuple[str, int]]]


def _read_yaml(text: str) -> Parsed:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        # Merge keys are resolved in the nodes, so their lines are taken first.
        lines, duplicates = _marks(node)
        return None if node is None else loader.construct_document(node), lines, duplicates
    finally:
        loader.dispose()


def _marks(root: yaml.Node | None) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """The line of every path, and duplicate keys, of which YAML would silently use the last."""
    lines: dict[str, int] = {}
    duplicates: list[tuple[str, int]] = []
    visited: set[int] = set()

    def walk(node: yaml.Node, path: str) -> None:
        lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in visited:  # an alias: the line of its anchor is enough, and it may be recursive
            return
        visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                inner = f"{path}.{name}" if path else name
                if name in seen:
                    duplicates.append((inner, line))
                seen.add(name)
                lines[inner] = line
                walk(value, inner)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                walk(value, f"{path}[{index}]")

    if root is not None:
        walk(root, "")
    return lines, duplicates


def _read_json(text: str) -> Parsed:
    data = json.loads(text)
    try:
        # Nearly all JSON is YAML as well, whose parser gives lines.
        return data, *_marks(yaml.compose(text, Loader=_Loader))
    except yaml.YAMLError:
        return data, {}, []


def _read_toml(text: str) -> Parsed:
    data = parse_toml(text)
    # The parser gives no lines, but the headers of tables are easily found.
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\[\s*([\w-]+)\s*\]\]", line):
            name = header[1]
            lines[f"{name}[{counts.get(name, 0)}]"] = number
            counts[name] = counts.get(name, 0) + 1
        elif header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            lines[header[1]] = number
    return _without_dates(data), lines, []


def _without_dates(value: Any) -> Any:
    """Dates as text, as the other formats have them."""
    if isinstance(value, dict):
        return {name: _without_dates(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_dates(each) for each in value]
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else value


_READERS = {".yaml": _read_yaml, ".yml": _read_yaml, ".toml": _read_toml, ".json": _read_json}


def yaml_text(data: Any) -> str:
    """The data as a YAML document that `read_document` reads."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and never an alias."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    # Invisible characters, such as the line ends that only YAML knows, are read back only if they are escaped.
    is_visible = value.replace("\n", "").isprintable()
    style = ("|" if "\n" in value else None) if is_visible else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
_add_scalars(_Dumper)
