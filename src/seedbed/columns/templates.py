"""Jinja2 templates and expressions over the values of a row, in a sandbox, and the columns that they require.

A template sees only the columns that it names, an unknown name is an error, and nothing in it is random: its result
depends on the row alone.

Its cost is bounded, so that a rendering that never ends fails its row and not the run: it runs on the event loop, where
no timeout and no Ctrl-C can reach it. It counts its own steps: rounds of loops, calls, and the items of whatever an
operation reads or produces (64 characters or bits are one item). Costs are counted before the work is done. They
depend on the template and the row alone, never on the speed of the machine.
"""

from __future__ import annotations

import functools
import json
import re
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import jinja2
from jinja2 import meta, nodes
from jinja2.parser import Parser
from jinja2.runtime import Context, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ..checks import MAX_DEPTH
from ..errors import ConfigError, Permanent
from ..graph import nearest

MAX_STEPS = 1_000_000
# What one operation of a template may produce: characters, items or bits.
_LONGEST = 1_000_000
_CHARACTERS = 64
# A call takes as long as this many rounds of a loop.
_CALL = 5
_FLAT = frozenset({int, float, bool, type(None)})
_SMALL = frozenset({float, bool, type(None)})
_NESTED = (list, tuple, set, frozenset, Mapping)
# Filters that read no more than the first item of their input.
_FREE = frozenset({"default", "d", "length", "count", "first", "last", "attr"})


class BoundedContext(Context):
    """The names of one rendering and its remaining steps, which contexts of its blocks share."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.left = [MAX_STEPS]  # a list, because contexts share it

    def spend(self, steps: int) -> None:
        self.left[0] -= steps
        if self.left[0] < 0:
            raise OverflowError(f"the template takes more than {MAX_STEPS} steps")

    def weigh(self, *values: Any) -> None:
        """Spend the cost of reading all of these values."""
        for value in values:
            kind = type(value)
            if kind is str:  # nearly every value is text or a number
                if len(value) > _CHARACTERS:
                    self.spend(len(value) // _CHARACTERS)
            elif kind not in _SMALL:
                self.spend(weight(value, self.left[0]))

    def derived(self, locals: dict[str, Any] | None = None) -> Context:  # noqa: A002  as jinja2 has it
        context = super().derived(locals)
        assert isinstance(context, BoundedContext)
        context.left = self.left
        return context


def weight(value: Any, most: int) -> int:
    """The number of items in a value, nested ones included; counting stops just above `most`.

    Raises `OverflowError` for a value nested so deep that C code which recurses into it could exhaust the stack.
    """
    total = 1
    open_parts: list[Iterator[Any]] = [iter((value,))]
    while open_parts and total <= most:
        for part in open_parts[-1]:
            if isinstance(part, str | bytes):
                total += len(part) // _CHARACTERS
            elif isinstance(part, int):
                total += part.bit_length() // _CHARACTERS
            elif isinstance(part, range):
                total += len(part)
            elif isinstance(part, _NESTED):
                total += len(part)
                inner = [*part.keys(), *part.values()] if isinstance(part, Mapping) else part
                if total <= most and not _FLAT.issuperset(map(type, inner)):
                    open_parts.append(iter(inner))
                    break
            if total > most:
                break
        else:
            open_parts.pop()
        if len(open_parts) > MAX_DEPTH:
            raise OverflowError(f"a value of more than {MAX_DEPTH} levels")
    return total


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Counts the steps of everything that a template can repeat or enlarge.

    Nothing is computed while a template is compiled: a check of a recipe must end whatever its templates do. Fields of
    a struct come before the methods of a dict: `quality.items` is the field of that name.
    """

    context_class = BoundedContext
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(optimized=False, finalize=_weigh, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        del self.filters["random"]
        self.filters["tojson"] = _to_json
        metered = {name: _metered(name, function) for name, function in self.filters.items() if name not in _FREE}
        self.filters |= metered | {"_each": _each, "_weigh": _weigh, "_concat": _concat, "_spend": _spend}
        tests: Mapping[str, Any] = self.tests
        self.tests = {name: _metered(name, function) for name, function in tests.items()}

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length(), right.bit_length()
            if operator == "**" and bits[0] * right > _LONGEST:
                raise OverflowError(f"a power of more than {_LONGEST} bits")
            if sum(bits) > _LONGEST:
                raise OverflowError(f"a number of more than {_LONGEST} bits")
            factor = bits[0] * max(right, 0) if operator == "**" else bits[1]
            context.spend(1 + bits[0] * factor // _CHARACTERS**2)
        elif not (isinstance(left, float) or isinstance(right, float)):
            if operator == "*":
                for part, times in ((left, right), (right, left)):
                    if isinstance(part, Sequence) and isinstance(times, int):
                        if len(part) * times > _LONGEST:
                            raise OverflowError(f"a repetition of more than {_LONGEST} items")
                        context.spend(max(times, 0))
            if operator == "%" and isinstance(left, str | bytes):
                _spend_format(context, left, (right,))
            context.weigh(left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, PYI063  as jinja2 has it
        given = [*args, *(value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars"))]
        __context.spend(_CALL)
        __context.weigh(*given)
        # The sandbox wraps str.format; the wrapper refers to the method.
        method = getattr(__obj, "__wrapped__", __obj)
        if isinstance(method, types.BuiltinMethodType) and not isinstance(method.__self__, types.ModuleType):
            __context.weigh(method.__self__)
            if method.__name__ in _GROWING:
                _spend_growth(__context, method.__name__, method.__self__, given)
        result = super().call(__context, __obj, *args, **kwargs)
        __context.weigh(result)
        return result

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            weight(argument, _LONGEST)  # a lookup hashes it, which recurses on the C stack
        return super().getitem(obj, argument)

    def build(self, tree: nodes.Template) -> jinja2.Template:
        """Compile a parsed template, with the steps of its loops, macros, comparisons and joins counted."""
        bounded = _Bounder().visit(tree)
        bounded.set_environment(self)
        return jinja2.Template.from_code(self, self.compile(bounded), {})


def _check_depth(tree: nodes.Node) -> None:
    """Reject a parsed template that is nested so deep that compiling it could exhaust the stack."""
    level: list[nodes.Node] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return
    line = getattr(level[0], "lineno", 1)
    raise jinja2.TemplateSyntaxError(f"it is nested more than {MAX_DEPTH} levels deep", line)


class _Bounder(NodeTransformer):
    """Inserts calls that count steps into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  as jinja2 has it
        self.generic_visit(node)
        node.iter = _filter(node.iter, "_each", nodes.Const(_cost(node)))
        # A recursive loop enters its body again without passing through its own `in`.
        return self._begin(node) if node.recursive else node

    def _begin(self, node: Any) -> nodes.Node:
        first = nodes.ExprStmt(_filter(nodes.Const(_cost(node)), "_spend"), lineno=node.lineno)
        node.body = [first, *node.body]
        return node  # type: ignore[no-any-return]

    def _visit_body(self, node: Any) -> nodes.Node:
        return self._begin(self.generic_visit(node))

    visit_Macro = visit_CallBlock = visit_Block = _visit_body  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  as jinja2 has it
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "_concat")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802  as jinja2 has it
        self.generic_visit(node)
        operands = [node.expr, *(each.expr for each in node.ops)]
        # Comparing a value with a short constant, or looking for it among some, is one step whatever the value is.
        looked_at = operands if node.ops[0].op in _ORDERS else operands[1:]
        if len(operands) > 2 or not any(map(_is_short, looked_at)):
            node.expr = _filter(node.expr, "_weigh")
            for each in node.ops:
                each.expr = _filter(each.expr, "_weigh")
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802  as jinja2 has it
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _filter(node.key, "_weigh")
        return node


_ORDERS = frozenset({"eq", "ne", "lt", "lteq", "gt", "gteq"})


def _is_short(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Const):
        return not isinstance(node.value, str) or len(node.value) <= 1000
    return isinstance(node, nodes.List | nodes.Tuple) and len(node.items) <= 100 and all(map(_is_short, node.items))


def _filter(node: Any, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno or 1)


def _cost(node: nodes.Node) -> int:
    """The steps of one round of a body: its own text is produced each time."""
    return 1 + sum(len(part.data) for part in node.find_all(nodes.TemplateData)) // _CHARACTERS


@jinja2.pass_context
def _weigh(context: BoundedContext, value: Any) -> Any:
    """Spend the cost of reading a value; also called for each `{{ }}`, before the value becomes text."""
    if type(value) is not int:  # Python limits the digits of its text
        context.weigh(value)
    return value


@jinja2.pass_context
def _each(context: BoundedContext, items: Any, cost: int = 1) -> Any:
    """The items of a loop: their cost is spent at once if their number is known, else item by item."""
    if not isinstance(items, Iterator) and hasattr(items, "__len__"):
        context.spend(cost * len(items))
        return items
    return _counted(context, items, cost)


def _counted(context: BoundedContext, items: Iterable[Any], cost: int) -> Iterator[Any]:
    for item in items:
        context.spend(cost)
        yield item


@jinja2.pass_context
def _concat(context: BoundedContext, parts: list[Any]) -> str:
    context.weigh(parts)
    return str_join(parts)  # nothing is escaped


@jinja2.pass_context
def _spend(context: BoundedContext, steps: Any) -> None:
    context.weigh(steps)
    context.spend(max(steps, 1))


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that counts its steps."""
    # What jinja2 would pass before the value: "context", "eval_context" or "environment".
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)
    grows = name in _GROWING
    gathers = name in ("join", "sum")

    @jinja2.pass_context
    def metered(context: BoundedContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        if type(value) is not str and isinstance(value, Iterator):
            value = _counted(context, value, 1)
            if gathers:
                value = list(value)
        context.weigh(value, *args, *kwargs.values())
        if grows:
            _spend_growth(context, name, value, [*args, *kwargs.values()])
        if passed is None:
            result = function(value, *args, **kwargs)
        else:
            first = context if passed == "context" else getattr(context, _PASSED[passed])
            result = function(first, value, *args, **kwargs)
        if type(result) is not str and isinstance(result, Iterator):
            return _counted(context, result, 1)
        context.weigh(result)
        return result

    return metered


_COPIED = 10_000  # characters that are copied in one step
_PASSED = {"eval_context": "eval_ctx", "environment": "environment"}
_GROWING = frozenset(
    {
        *("slice", "batch", "round", "to_bytes", "center", "ljust", "rjust", "zfill", "indent", "expandtabs", "tojson"),
        *("wordwrap", "urlize", "replace", "join", "sum", "translate", "format", "format_map", "strftime"),
    }
)


def _spend_growth(context: BoundedContext, name: str, value: Any, given: Sequence[Any]) -> None:
    """Spend the size of the output of a filter or method of text where that exceeds the size of its input."""
    numbers = sum(abs(each) for each in given if isinstance(each, int))
    texts = sum(len(each) for each in given if isinstance(each, str | bytes))
    length = len(value) if hasattr(value, "__len__") else 1
    match name:
        case "slice" | "batch" | "round" | "to_bytes":
            context.spend(numbers)
        case "center" | "ljust" | "rjust" | "zfill":
            context.spend(numbers // _CHARACTERS)
        case "indent" | "expandtabs" | "tojson":
            context.spend((numbers + texts) * length // _CHARACTERS)
        case "replace" if len(given) >= 2:
            old, new = (str(each) for each in given[:2])
            context.spend(str(value).count(old) * len(new) // _CHARACTERS)
        case "join" if isinstance(value, str | bytes) and given:  # the method of the separator, not the filter
            context.spend(length * weight(given[0], context.left[0]) // _CHARACTERS)
        case "wordwrap" | "urlize" | "join":
            context.spend(texts * length // _CHARACTERS)
            if name == "wordwrap":
                # Of a word that is longer than a line, all that is left is copied for each line.
                width = next((each for each in given if type(each) is int and each > 0), 79)
                longest = max(map(len, str(value).split()), default=0)
                context.spend(longest * longest // width // _COPIED)
        case "sum" if any(isinstance(each, Sequence) for each in given):
            context.spend(length * weight(value, context.left[0]))
        case "translate":
            context.spend(length * weight(list(given), context.left[0]))
        case "format" | "format_map" | "strftime":
            _spend_format(context, value if isinstance(value, str | bytes) else str(given[:1]), given)


_COMPUTED_WIDTH = re.compile(r"%[-+ #0]*\*|%[^a-zA-Z%]*\.\*|\{[^{}]*\{")


def _spend_format(context: BoundedContext, text: str | bytes, given: Sequence[Any]) -> None:
    text = text.decode("latin-1") if isinstance(text, bytes) else text
    if _COMPUTED_WIDTH.search(text.replace("{{", "").replace("%%", "")):
        raise OverflowError("a width that does not stand in the format itself")
    widths = sum(int(digits[:12]) for digits in re.findall(r"[0-9]+", text))
    fields = text.count("{") + text.count("%")
    context.spend(widths // _CHARACTERS + fields * weight(list(given), context.left[0]) // _CHARACTERS)


# Statements that read other templates; none exist.
_ELSEWHERE = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from … import",
    nodes.Extends: "extends",
}
# Longer texts are rejected: parsing takes about a second for each megabyte.
_MAX_LENGTH = 1_000_000


class _NullEnvironment(BoundedEnvironment):
    """For expressions: a field of a null is null, so that `quality.clarity is none` is valid."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return None if obj is None else super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return None if obj is None else super().getitem(obj, argument)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Jinja2's filter for prompts, which does not escape HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)


_TEMPLATES = BoundedEnvironment()
_EXPRESSIONS = _NullEnvironment()
# Functions of Python, and the filters that do the same.
_FILTERS_LIKE = {"len": "length", "str": "string", "sorted": "sort"}
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


def syntax_tree(compiled: Template | Condition) -> nodes.Template:
    """The parsed text of a compiled template or expression."""
    if isinstance(compiled, Template):
        return _TEMPLATES.parse(compiled.text)
    expression = Parser(
        _EXPRESSIONS, lone_expression(compiled.text) or compiled.text, state="variable"
    ).parse_expression()
    return nodes.Template([nodes.Output([expression], lineno=1)], lineno=1)


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
    _check_depth(tree)
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
    _check_depth(tree)
    names = _names(tree)
    tree.body = [nodes.Assign(nodes.Name("result", "store"), expression, lineno=1)]
    return names, _EXPRESSIONS.build(tree), None


def _names(tree: nodes.Template) -> tuple[str, ...]:
    undeclared = meta.find_undeclared_variables(tree) - set(_TEMPLATES.globals)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in undeclared:  # no column is a function
            raise jinja2.TemplateSyntaxError(_unknown_function(call.node.name, call.args), call.lineno)
    return tuple(dict.fromkeys(node.name for node in tree.find_all(nodes.Name) if node.name in undeclared))


def _unknown_function(name: str, arguments: list[nodes.Expr]) -> str:
    known = _FILTERS_LIKE.get(name, name)
    if known not in _TEMPLATES.filters:
        return f"unknown function {name!r}{nearest(name, _TEMPLATES.globals)}"
    value = arguments[0].name if arguments and isinstance(arguments[0], nodes.Name) else "value"
    return f"unknown function {name!r}; {known} is a filter: {value} | {known}"


def _holds_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_null, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return any(map(_holds_null, value))
    return value is None
