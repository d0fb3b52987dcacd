"""Jinja2 templates and expressions over the values of a row, in a sandbox, and the columns that they need.

Only the columns that a template names are visible to it, a name that is not there is an error, and nothing in it is
random: what it gives depends on the row alone. What a rendering may cost is bounded (see `bounds`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import jinja2
from jinja2 import meta, nodes
from jinja2.parser import Parser

from ..errors import ConfigError, Permanent
from .bounds import BoundedContext, BoundedEnvironment, check_depth

if TYPE_CHECKING:
    from types import TracebackType


# What reads other templates; there are none.
_ELSEWHERE = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from … import",
    nodes.Extends: "extends",
}
# Longer texts are refused: parsing takes about a second for each megabyte.
_MAX_LENGTH = 1_000_000


class _Environment(BoundedEnvironment):
    """Fields of a struct come before the methods of a dict: `quality.items` is the field of that name."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


class _NullEnvironment(_Environment):
    """For expressions: a field of a null is null, so that `quality.clarity is none` can be asked."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return None if obj is None else super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return None if obj is None else super().getitem(obj, argument)


def _to_json(value: Any, indent: int | None = None) -> str:
    """As Jinja2's own filter, but for prompts: `<` stays `<`."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)


def _environment(cls: type[_Environment]) -> _Environment:
    environment = cls(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.globals = {name: environment.globals[name] for name in ("range", "dict", "namespace")}
    del environment.filters["random"]
    environment.filters["tojson"] = _to_json
    environment.meter()
    return environment


_TEMPLATES = _environment(_Environment)
_EXPRESSIONS = _environment(_NullEnvironment)
_GLOBALS = dict(_TEMPLATES.globals)
_TEXTS = frozenset({str})


def _context(compiled: jinja2.Template, given: Mapping[str, Any]) -> BoundedContext:
    """The context of one rendering: `Template.new_context` would copy a ChainMap in Python each time."""
    return BoundedContext(compiled.environment, {**_GLOBALS, **given}, None, compiled.blocks)


@attrs.frozen(kw_only=True)
class SkipRule:
    """When a cell is skipped: the columns that decide it, and the decision from their values."""

    requires: tuple[str, ...]
    decide: Callable[[Mapping[str, Any]], bool]


@attrs.frozen(eq=False)
class Template:
    """A compiled template. `where` begins the messages of its errors; `requires` are the columns that it names."""

    text: str
    where: str
    requires: tuple[str, ...]
    _compiled: jinja2.Template = attrs.field(repr=False)
    _format: str | None = attrs.field(repr=False)

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for a row, given the values of at least the columns that it requires. Raises `Permanent`."""
        try:
            given = {name: values[name] for name in self.requires}
            if self._format is not None and _TEXTS.issuperset(map(type, given.values())):
                # Most prompts insert texts and do nothing else: no context, no steps to count (overhead benchmark).
                return self._format % given
            context = _context(self._compiled, given)
            try:
                return "".join(self._compiled.root_render_func(context))
            except Exception:  # noqa: BLE001  raised again
                _TEMPLATES.handle_exception()  # with the lines of the template
        except Exception as error:
            raise Permanent(_failure(self.where, error, _line(error.__traceback__))) from error


@attrs.frozen(kw_only=True, eq=False)
class Condition:
    """A compiled expression, such as `quality.clarity >= 4`."""

    text: str
    where: str
    requires: tuple[str, ...]
    _compiled: jinja2.Template = attrs.field(repr=False)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """What it gives for a row. Raises `Permanent`; but what cannot be computed of a null is null."""
        given = {name: values[name] for name in self.requires}
        try:
            context = _context(self._compiled, given)
            for _ in self._compiled.root_render_func(context):
                pass
            result = context.vars["result"]
            if isinstance(result, jinja2.Undefined):
                str(result)  # raises with the reason: undefined values are strict
        except Exception as error:
            # That it takes too long is not for want of a value.
            if not isinstance(error, OverflowError) and any(map(_holds_null, given.values())):
                return None
            raise Permanent(_failure(f"{self.where}: {self.text!r}", error)) from error
        return result

    def decide(self, values: Mapping[str, Any]) -> bool:
        """Whether it is true of a row; null is not."""
        return bool(self.evaluate(values))


def is_template(text: str) -> bool:
    """Whether a text has anything in it to fill in."""
    return "{{" in text or "{%" in text


def compile_template(text: str, *, where: str) -> Template:
    """Compile a template; `where` is what messages begin with: "column 'answer', prompt". Raises `ConfigError`."""
    if not isinstance(text, str):
        raise ConfigError(f"{where}: a template is text, not {text!r}")
    try:
        return Template(text, where, *_template(text))
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{where}, line {error.lineno}: {error.message}") from error
    except _UNCOMPILABLE as error:
        raise ConfigError(f"{where}: the template cannot be compiled: {_reason(error)}") from error


def compile_condition(text: str, *, where: str) -> Condition:
    """Compile an expression, which may stand in `{{ }}`; `where` is what messages begin with. Raises `ConfigError`."""
    if not isinstance(text, str):
        raise ConfigError(f"{where}: an expression is text, not {text!r}")
    try:
        requires, compiled = _expression(lone_expression(text) or text)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{where}: {_excerpt(text)!r} is not an expression: {error.message}") from error
    except _UNCOMPILABLE as error:
        raise ConfigError(f"{where}: {_excerpt(text)!r} cannot be compiled: {_reason(error)}") from error
    return Condition(text=text, where=where, requires=requires, compiled=compiled)


# What Python's own compiler and parser raise for code that is too deep or too large for them.
_UNCOMPILABLE = (RecursionError, MemoryError, SyntaxError, ValueError, OverflowError)


def _reason(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError | MemoryError) else str(error)


def _excerpt(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


def _check_length(text: str) -> None:
    if len(text) > _MAX_LENGTH:
        raise jinja2.TemplateSyntaxError(f"it has {len(text)} characters, {_MAX_LENGTH} are allowed", 1)


def lone_expression(text: str) -> str | None:
    """The expression of a template that is nothing else, as in `{{ score + 1 }}`."""
    inner = text.strip()
    if not (inner.startswith("{{") and inner.endswith("}}")):
        return None
    # A sign right at the braces is about white space; one after a space is part of the expression.
    inner = inner[2:-2].removeprefix("-").removeprefix("+").removesuffix("-").removesuffix("+").strip()
    return None if "{{" in inner or "}}" in inner or "{%" in inner else inner


@functools.lru_cache(maxsize=1024)
def _template(text: str) -> tuple[tuple[str, ...], jinja2.Template, str | None]:
    _check_length(text)
    tree = _TEMPLATES.parse(text)
    check_depth(tree)
    for node in tree.find_all(tuple(_ELSEWHERE)):
        raise jinja2.TemplateSyntaxError(f"{_ELSEWHERE[type(node)]!r} has no other template to read", node.lineno)
    names = _names(tree)
    form = _format(tree, names)
    return names, _TEMPLATES.build(tree), form


def _format(tree: nodes.Template, requires: tuple[str, ...]) -> str | None:
    """The template as a format of Python, if it inserts columns and does nothing else."""
    found = ""
    for part in (part for node in tree.body for part in (node.nodes if isinstance(node, nodes.Output) else (node,))):
        if isinstance(part, nodes.TemplateData):
            found += part.data.replace("%", "%%")
        elif isinstance(part, nodes.Name) and part.name in requires:
            found += f"%({part.name})s"
        else:
            return None
    return found


@functools.lru_cache(maxsize=1024)
def _expression(text: str) -> tuple[tuple[str, ...], jinja2.Template]:
    _check_length(text)
    parser = Parser(_EXPRESSIONS, text, state="variable")
    expression = parser.parse_expression()
    if not parser.stream.eos:
        raise jinja2.TemplateSyntaxError("chunk after expression", parser.stream.current.lineno)
    tree = nodes.Template([nodes.Output([expression], lineno=1)], lineno=1)
    tree.set_environment(_EXPRESSIONS)
    check_depth(tree)
    names = _names(tree)
    tree.body = [nodes.Assign(nodes.Name("result", "store"), expression, lineno=1)]
    return names, _EXPRESSIONS.build(tree)


def _names(tree: nodes.Template) -> tuple[str, ...]:
    undeclared = meta.find_undeclared_variables(tree) - set(_TEMPLATES.globals)
    return tuple(dict.fromkeys(node.name for node in tree.find_all(nodes.Name) if node.name in undeclared))


def _failure(where: str, error: Exception, line: int | None = None) -> str:
    at = where if line is None else f"{where}, line {line}"
    if isinstance(error, KeyError) and line is None and error.args:
        return f"{at}: there is no column {error.args[0]!r}"
    reason = str(error) if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"
    return f"{at}: {reason}"


def _line(traceback: TracebackType | None) -> int | None:
    """The line of the template at which an error rose; Jinja2 puts it into the traceback."""
    lines = [frame.tb_lineno for frame in _frames(traceback) if frame.tb_frame.f_code.co_filename == "<template>"]
    return lines[-1] if lines else None


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _holds_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_null, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return any(map(_holds_null, value))
    return value is None
