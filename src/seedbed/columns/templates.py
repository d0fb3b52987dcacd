"""Jinja2 templates and expressions over the values of a row, in a sandbox, and the columns that they require.

A template sees only the columns that it names, an unknown name is an error, and nothing in it is random: its result
depends on the row alone. The cost of a rendering is bounded (see `bounds`).
"""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import jinja2
from jinja2 import meta, nodes
from jinja2.parser import Parser

from ..errors import ConfigError, Permanent
from .bounds import BoundedContext, BoundedEnvironment, check_depth

# Statements that read other templates; none exist.
_ELSEWHERE = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from … import",
    nodes.Extends: "extends",
}
# Longer texts are rejected: parsing takes about a second for each megabyte.
_MAX_LENGTH = 1_000_000


class _Environment(BoundedEnvironment):
    """Fields of a struct come before the methods of a dict: `quality.items` is the field of that name."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


class _NullEnvironment(_Environment):
    """For expressions: a field of a null is null, so that `quality.clarity is none` is valid."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return None if obj is None else super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return None if obj is None else super().getitem(obj, argument)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Jinja2's filter for prompts, which does not escape HTML."""
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


@attrs.frozen(kw_only=True)
class SkipRule:
    """When a cell is skipped: the columns that decide it, and the decision from their values."""

    requires: tuple[str, ...]
    decide: Callable[[Mapping[str, Any]], bool]


@attrs.frozen(eq=False)
class _Compiled:
    text: str
    # Messages start with this: "column 'answer', prompt".
    where: str
    # The columns that it names.
    requires: tuple[str, ...]
    _compiled: jinja2.Template = attrs.field(repr=False)
    # The same as a format of Python, if it inserts columns and does nothing else.
    _format: str | None = attrs.field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Jinja2's compiled code cannot be pickled: it is compiled again."""
        compile_text = compile_condition if isinstance(self, Condition) else compile_template
        return functools.partial(compile_text, self.text, where=self.where), ()

    def _context(self, given: Mapping[str, Any]) -> BoundedContext:
        """The context of one rendering: `Template.new_context` would copy a ChainMap in Python each time."""
        return BoundedContext(self._compiled.environment, {**_GLOBALS, **given}, None, self._compiled.blocks)


class Template(_Compiled):
    """A compiled template."""

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for a row, given the values of at least the columns that it requires. Raises `Permanent`."""
        try:
            given = {name: values[name] for name in self.requires}
            if self._format is not None and _TEXTS.issuperset(map(type, given.values())):
                # Most prompts: no context, and no steps to count (overhead benchmark).
                return self._format % given
            context = self._context(given)
            try:
                return "".join(self._compiled.root_render_func(context))
            except Exception:  # noqa: BLE001  raised again
                _TEMPLATES.handle_exception()  # with the lines of the template
        except Exception as error:
            # Jinja2 puts the lines of the template into the traceback.
            steps = traceback.walk_tb(error.__traceback__)
            lines = [line for frame, line in steps if frame.f_code.co_filename == "<template>"]
            at = f"{self.where}, line {lines[-1]}" if lines else self.where
            if isinstance(error, KeyError) and not lines and error.args:
                raise Permanent(f"{at}: unknown column {error.args[0]!r}") from error
            raise Permanent(f"{at}: {_reason(error)}") from error


class Condition(_Compiled):
    """A compiled expression, such as `quality.clarity >= 4`."""

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Its value for a row. Raises `Permanent`; but an operation that has no result for a null gives null."""
        given = {name: values[name] for name in self.requires}
        try:
            context = self._context(given)
            for _ in self._compiled.root_render_func(context):
                pass
            result = context.vars["result"]
            if isinstance(result, jinja2.Undefined):
                str(result)  # raises with the reason: undefined values are strict
        except Exception as error:
            # A null does not explain that it takes too long.
            if not isinstance(error, OverflowError) and any(map(_holds_null, given.values())):
                return None
            raise Permanent(f"{self.where}: {self.text!r}: {_reason(error)}") from error
        return result

    def decide(self, values: Mapping[str, Any]) -> bool:
        """True if it is true of a row; null is not."""
        return bool(self.evaluate(values))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"


def compile_template(text: str, *, where: str) -> Template:
    """Compile a template; messages start with `where`, as in "column 'answer', prompt". Raises `ConfigError`."""
    return Template(text, where, *_compile(text, where, is_expression=False))


def compile_condition(text: str, *, where: str) -> Condition:
    """Compile an expression, which may stand in `{{ }}`; messages start with `where`. Raises `ConfigError`."""
    return Condition(text, where, *_compile(text, where, is_expression=True))


def _compile(text: str, where: str, *, is_expression: bool) -> tuple[tuple[str, ...], jinja2.Template, str | None]:
    if not isinstance(text, str):
        raise ConfigError(f"{where}: {'an expression' if is_expression else 'a template'} is text, not {text!r}")
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    try:
        if len(text) > _MAX_LENGTH:
            raise ConfigError(f"{where}: {len(text)} characters, {_MAX_LENGTH} are allowed")
        return _expression(lone_expression(text) or text) if is_expression else _template(text)
    except jinja2.TemplateSyntaxError as error:
        place = f": {shown!r} is not an expression" if is_expression else f", line {error.lineno}"
        raise ConfigError(f"{where}{place}: {error.message}") from error
    # What Python's own compiler and parser raise for code that is too deep or too large for them.
    except (RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError | MemoryError) else str(error)
        raise ConfigError(f"{where}: {shown!r} cannot be compiled: {reason}") from error


def is_template(text: str) -> bool:
    """True if a text has anything to fill in."""
    return "{{" in text or "{%" in text


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
    tree = _TEMPLATES.parse(text)
    check_depth(tree)
    for node in tree.find_all(tuple(_ELSEWHERE)):
        raise jinja2.TemplateSyntaxError(f"{_ELSEWHERE[type(node)]!r} has no other template to read", node.lineno)
    names = _names(tree)
    form = _format(tree, names)
    return names, _TEMPLATES.build(tree), form


def _format(tree: nodes.Template, requires: tuple[str, ...]) -> str | None:
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
def _expression(text: str) -> tuple[tuple[str, ...], jinja2.Template, None]:
    parser = Parser(_EXPRESSIONS, text, state="variable")
    expression = parser.parse_expression()
    if not parser.stream.eos:
        raise jinja2.TemplateSyntaxError("chunk after expression", parser.stream.current.lineno)
    tree = nodes.Template([nodes.Output([expression], lineno=1)], lineno=1)
    tree.set_environment(_EXPRESSIONS)
    check_depth(tree)
    names = _names(tree)
    tree.body = [nodes.Assign(nodes.Name("result", "store"), expression, lineno=1)]
    return names, _EXPRESSIONS.build(tree), None


def _names(tree: nodes.Template) -> tuple[str, ...]:
    undeclared = meta.find_undeclared_variables(tree) - set(_TEMPLATES.globals)
    return tuple(dict.fromkeys(node.name for node in tree.find_all(nodes.Name) if node.name in undeclared))


def _holds_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_null, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return any(map(_holds_null, value))
    return value is None
