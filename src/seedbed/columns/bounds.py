"""Limits on the cost of rendering a template: one that never ends fails its row and not the run.

A rendering runs on the event loop, where no timeout and no Ctrl-C can reach it. So it counts its own steps: rounds of
loops, calls, and the items of whatever an operation reads or produces (64 characters or bits are one item). Costs are
counted before the work is done. They depend on the template and the row alone, never on the speed of the machine.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ..checks import MAX_DEPTH

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

    Nothing is computed while a template is compiled: a check of a recipe must end whatever its templates do.
    """

    context_class = BoundedContext
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, finalize=_weigh, **options)

    def meter(self) -> None:
        """Make the filters and tests that the environment has now count their steps."""
        metered = {name: _metered(name, function) for name, function in self.filters.items() if name not in _FREE}
        self.filters |= metered | {"_each": _each, "_weigh": _weigh, "_concat": _concat, "_spend": _spend}
        tests: Mapping[str, Any] = self.tests
        self.tests = {name: _metered(name, function) for name, function in tests.items()}

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


def check_depth(tree: nodes.Node) -> None:
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
    kind = type(value)
    if kind is str:
        if len(value) > _CHARACTERS:
            context.spend(len(value) // _CHARACTERS)
    elif kind not in _FLAT:
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
