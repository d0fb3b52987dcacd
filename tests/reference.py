"""Fill the generated parts of the reference pages: `python tests/reference.py`.

A page marks such a part with `<!-- reference: WHAT -->` and `<!-- end of reference -->`; examples in YAML inside it are
written by hand and stay. WHAT is one of

- `types column`: a table of all types of a kind;
- `column category`, `model openai`, `processor filter`: a type of a recipe file, with its fields;
- `fields seedbed.columns.spec.ColumnSpec`: the fields of a base class, which the types do not repeat;
- `errors seedbed.errors.Retryable …`: a table of exceptions;
- `seedbed.build seedbed.Recipe:fields …`: names of the Python API, each under a heading of its own; of a class its
  fields and, without `:fields`, its public methods.

The meaning of a field is the string literal below it in its class. Its type is the text of its validator, as in error
messages, or its annotation. tests/test_reference_pages.py compares the pages.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_overloads, is_typeddict

import attrs
import msgspec

from seedbed.columns.sampler import Numbers
from seedbed.columns.spec import processor_types, spec_types
from seedbed.models import MODEL_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"(<!-- reference: (?P<what>[^\n]+?) -->\n)(?P<content>.*?)(<!-- end of reference -->)", re.DOTALL)
EXAMPLE = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TYPES: Mapping[str, Callable[[], Mapping[str, type]]] = {
    "column": spec_types,
    "model": lambda: MODEL_TYPES,
    "processor": processor_types,
}
ANNOTATED = re.compile(r"Annotated\[.+?, ['\"](.+)['\"]\]")
# How the types of Python are named on pages about recipe files.
WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str | None": "text",
    "Mapping[str, Any]": "a mapping",
    "Mapping[str, str]": "a mapping of texts to texts",
    "Mapping[str, Structure]": "a mapping",
    "Mapping[Any, str]": "a list, or a mapping to texts",
    "tuple[str, ...]": "a list of texts",
    "tuple[ExceptionClass | str, ...]": "a list of `module:name`",
    "Callable[P, R] | str": "`module:name`",
    "str | pl.Expr": "text",
    "float | str": "a number or text",
    "str | Sequence[str] | Mapping[str, str | Sequence[str]] | AnswerFunction": "text, a list, or a mapping",
    "True or False": "true or false",
    "a text of at least one character": "text",
    "None for no limit, or a number above 0": "a number above 0",
}
# A signature of more characters has a line for each parameter.
LINE_LENGTH = 88


@attrs.frozen
class Field:
    """A field of a class, as tables show it."""

    name: str
    kind: str  # its type, in words or as code
    default: str  # what follows the type
    meaning: str
    owner: type  # the class that defines it


def pages() -> list[Path]:
    """The pages that have generated parts."""
    return [path for path in sorted(DOCS.rglob("*.md")) if BLOCK.search(path.read_text(encoding="utf-8"))]


def blocks() -> Iterator[tuple[Path, str, str]]:
    """Each generated part: its page, what it is about, and the heading above it."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            headings = re.findall(r"^#+ (.+)$", text[: found.start()], re.MULTILINE)
            yield path, found["what"], headings[-1]


def render(path: Path) -> str:
    """The content that a page should have."""

    def fill(found: re.Match[str]) -> str:
        examples = [each[0] for each in EXAMPLE.finditer(found["content"])]
        parts = [part for part in _content(found["what"], path, examples) if part]
        return "\n\n".join([found[1].rstrip(), *parts, found[4]])

    return BLOCK.sub(fill, path.read_text(encoding="utf-8"))


def find_type(what: str) -> type | None:
    """The class of `column category` and the like."""
    kind, _, name = what.partition(" ")
    return TYPES[kind]()[name] if kind in TYPES else None


def find_object(path: str) -> Any:
    """The object of a dotted name."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def fields(cls: type, *, in_files: bool) -> list[Field]:
    """The fields that users set, in order; types are named in words on pages about recipe files."""
    return list(_fields(cls, in_files))


def _fields(cls: type, in_files: bool) -> Iterator[Field]:
    meanings = _meanings(cls)
    owners = {name: owner for owner in reversed(cls.__mro__) for name in vars(owner).get("__annotations__", ())}
    if attrs.has(cls):
        for field in attrs.fields(cls):
            if field.init and not field.name.startswith("_"):
                kind = _type_in_words(field) if in_files else _type(field.type)
                default = _default(field.default, in_files)
                yield Field(field.alias, kind, default, meanings.get(field.name, ""), owners[field.name])
    elif issubclass(cls, msgspec.Struct):
        for each in msgspec.structs.fields(cls):
            kind = _type(cls.__annotations__[each.name])
            default = _default(attrs.NOTHING if each.required else each.default, in_files)
            yield Field(each.name, kind, default, meanings.get(each.name, ""), owners[each.name])
    elif is_typeddict(cls):
        for name, annotation in cls.__annotations__.items():
            yield Field(name, _type(annotation.__forward_arg__), "", meanings.get(name, ""), cls)


def _type_in_words(field: attrs.Attribute[Any]) -> str:
    """What the validator of a field expects, or else its annotation in words."""
    validator: Any = getattr(field.validator, "validator", field.validator)  # that of `optional`
    expected = getattr(validator, "expected", None)
    found = str(expected or field.type).removesuffix(" | None")
    if words := ANNOTATED.match(found):
        found = expected = words[1]
    if expected is None and found not in WORDS:
        raise ValueError(
            f'field {field.name!r} has no type in words: annotate it with Annotated[{found}, "what it is"]'
        )
    found = WORDS.get(found, re.sub(r"(?<!{)'([\w:]+)'", r"`\1`", found))
    return f"{found.rstrip(',')}, or `{{column: x}}`" if isinstance(validator, Numbers) else found


def _type(annotation: Any) -> str:
    """An annotation as code, or the words that `Annotated` gives it."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    words = ANNOTATED.match(text)
    return words[1] if words else f"`{text}`"


def _meanings(cls: type) -> dict[str, str]:
    """The string literals below the fields of a class and its bases."""
    found: dict[str, str] = {}
    for source in _sources(cls):
        for statement, after in itertools.pairwise(source.body):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = _one_line(inspect.cleandoc(text))
    return found


def _sources(cls: type) -> Iterator[ast.ClassDef]:
    """The definitions of a class and its bases, the bases first."""
    for each in reversed(cls.__mro__):
        classes = _classes(each.__module__)
        if each.__qualname__ in classes:
            if is_typeddict(each):  # does not inherit from its bases
                bases = [base.id for base in classes[each.__qualname__].bases if isinstance(base, ast.Name)]
                yield from (classes[base] for base in bases if base in classes)
            yield classes[each.__qualname__]


@functools.cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes at the top level of a module, by name."""
    path = getattr(sys.modules[module], "__file__", None) or ""
    if not path.endswith(".py"):
        return {}
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _content(what: str, page: Path, examples: list[str]) -> list[str]:
    """The paragraphs of a part."""
    if (cls := find_type(what)) is not None:
        shared = [link for owner, link in _shared(page).items() if issubclass(cls, owner)]
        *others, last = shared
        also = f"Also has {', '.join(others)} and {last}." if others else f"Also has {last}."
        return [_docstring(cls), *examples, f"In Python: `seedbed.{cls.__name__}`.", _table(_own(cls)), also]
    if what.startswith("types "):
        return [_types(what.removeprefix("types "), page)]
    if what.startswith("errors "):
        return [_errors(what.split()[1:])]
    if what.startswith("fields "):
        return [*examples, _table(_own(find_object(what.removeprefix("fields "))))]
    return [_section(name) for name in what.split()]


def _errors(paths: list[str]) -> str:
    lines = ["| error | is a | meaning |", "|---|---|---|"]
    for cls in map(find_object, paths):
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        lines.append(f"| `{cls.__name__}` | {bases} | {_cell(_one_line(_docstring(cls)))} |")
    return "\n".join(lines)


def _own(cls: type) -> list[Field]:
    """The fields of a class without those that the pages show for its bases."""
    shared = [each for each in _shared_classes() if each is not cls and issubclass(cls, each)]
    return [field for field in fields(cls, in_files=True) if not any(issubclass(each, field.owner) for each in shared)]


@functools.cache
def _shared_classes() -> dict[type, tuple[Path, str]]:
    """The base classes that have a part of their own: its page and heading."""
    return {
        find_object(what.removeprefix("fields ")): (path, heading)
        for path, what, heading in blocks()
        if what.startswith("fields ")
    }


def _shared(page: Path) -> dict[type, str]:
    """The base classes that have a part of their own, each as a link to its heading."""
    return {
        cls: f"the [{heading[0].lower()}{heading[1:]}]({_link(path, heading, page)})"
        for cls, (path, heading) in _shared_classes().items()
    }


def _link(path: Path, heading: str, page: Path) -> str:
    anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
    return f"{'' if path == page else path.name}#{anchor}"


def _types(kind: str, page: Path) -> str:
    """A table of the types of a kind, in the order of docs/index.md."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    found = {
        what: (path, heading) for path, what, heading in sorted(blocks(), key=lambda block: index.find(block[0].name))
    }
    rows = []
    for name, (path, heading) in found.items():
        if (cls := find_type(name)) is not None and name.startswith(f"{kind} "):
            about = _one_line(_docstring(cls).split("\n\n")[0])
            rows.append(f"| [`{heading}`]({_link(path, heading, page)}) | {_cell(about)} |")
    return "\n".join(["| type | |", "|---|---|", *rows])


def _table(rows: Iterable[Field]) -> str:
    """The fields of a class. Raises `ValueError` for one that is not documented."""
    rows = list(rows)
    for row in rows:
        place = f"{row.owner.__module__}.{row.owner.__name__}.{row.name}"
        if not row.meaning:
            raise ValueError(f"{place} is not documented: write its meaning as a string literal below it")
    lines = [f"| `{row.name}` | {_cell(row.kind)}{row.default} | {_cell(row.meaning)} |" for row in rows]
    return "\n".join(["| field | type and default | meaning |", "|---|---|---|", *lines]) if lines else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(value: Any, in_files: bool) -> str:
    """What a table says of a default: nothing of None, and nothing is required of objects that seedbed creates."""
    if value is attrs.NOTHING:
        return ", required" if in_files else ""
    if value is None:
        return ""
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        value = value.factory()
    if in_files:
        with suppress(TypeError):
            return f", default `{json.dumps(value, ensure_ascii=False)}`"
        return f", default `{value}`"
    # The repr of a path depends on the system.
    return f", default `{value!r}`" if type(value).__module__ == "builtins" else f", default `{value}`"


def _docstring(found: Any) -> str:
    """The docstring of an object. Raises `ValueError` if it has none."""
    if not (text := inspect.getdoc(found)):
        name = getattr(found, "__qualname__", None) or found.fget.__qualname__
        raise ValueError(f"{name} is not documented: write its docstring")
    return text


def _section(path: str) -> str:
    """A name of the Python API: its heading, what it is and what it has."""
    path, _, only_fields = path.partition(":")
    found = find_object(path)
    name = path.rpartition(".")[2]
    heading = f"### `{name}`"
    if not isinstance(found, type):
        return "\n\n".join([heading, _signature(name, found), _docstring(found)])
    listed = fields(found, in_files=False)
    found_members = {} if only_fields else members(found)
    return "\n\n".join(
        part
        for part in (
            heading,
            _signature(name, vars(found)["__call__"]) if "__call__" in vars(found) else "",
            _docstring(found),
            _table(listed),
            *(_member(f"{name}.{member}", value) for member, value in found_members.items()),
        )
        if part
    )


def members(cls: type) -> dict[str, Any]:
    """The public methods and properties that a class defines."""
    found = {name: getattr(value, "__func__", value) for name, value in vars(cls).items() if not name.startswith("_")}
    return {name: value for name, value in found.items() if isinstance(value, property) or inspect.isfunction(value)}


def _member(name: str, value: Any) -> str:
    if isinstance(value, property):
        kind = inspect.signature(value.fget).return_annotation  # type: ignore[arg-type]
        return f"```py\n{name}: {kind}\n```\n\n{_docstring(value)}"
    return f"{_signature(name, value)}\n\n{_docstring(value)}"


def _signature(name: str, function: Any) -> str:
    """A function as a block of code; `py` and not `python`, which marks examples that are run."""
    # The last overload of a decorator is the one with its options.
    signature = inspect.signature(next(reversed(get_overloads(function)), function))
    listed = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    parameters: list[str] = []
    for each in listed:
        if each.kind is each.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        default = "" if each.default is each.empty else f" = {_python(each.default)}"
        parameters.append(f"{stars}{each.name}: {each.annotation}{default}")
    original, returns = inspect.unwrap(function), signature.return_annotation
    prefix = "await " if inspect.iscoroutinefunction(original) else ""
    if inspect.isasyncgenfunction(original) or inspect.isgeneratorfunction(original):  # of a context manager
        prefix = "async with " if inspect.isasyncgenfunction(original) else "with "
        returns = returns.partition("[")[2].removesuffix("]")
    end = f") -> {returns}" if returns not in (signature.empty, "None") else ")"
    line = f"{prefix}{name}({', '.join(parameters)}{end}"
    if len(line) > LINE_LENGTH:
        line = f"{prefix}{name}(\n" + "".join(f"    {each},\n" for each in parameters) + end
    return f"```py\n{line}\n```"


def _python(value: object) -> str:
    """A default as Python; that of a function is its name, or … for one that has none."""
    name = getattr(value, "__qualname__", repr(value))
    return "…" if "<lambda>" in name else name


def main() -> None:
    """Write the generated parts of all pages."""
    for path in pages():
        path.write_text(render(path), encoding="utf-8")


if __name__ == "__main__":
    main()
