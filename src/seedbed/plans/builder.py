"""Plans written in Python: a function that chains ops, compiled to the JSON format.

::

    @plan
    def top_follows(ctx: PlanContext) -> Node:
        follows = ctx.viewer(endpoint=EP.redis.redis_default).follow(endpoint=EP.redis.redis_default, fanout=20)
        return follows.vm(out_key=Key.final_score, expr=Key.id * P.media_age_penalty_weight.coalesce(0.5)).take(count=3)

Every registered op is a method: `node.take(count=3)` is `node.op("take", count=3)`. `Key`, `P` and `EP` are only names
until a node is created with them: then they are looked up in the registries of the plan, so that a wrong name is an
error on the line that uses it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, overload

import attrs

from ..graph import nearest
from .documents import Code, Problems, Value
from .expressions import TreeReader
from .format import CAPABILITIES, ON_ERROR, SCHEMA_VERSION, parse_plan, plan_text, read_node, read_policy
from .ops import default_ops
from .opspec import Scope
from .registries import Named, default_registries

if TYPE_CHECKING:
    from .format import Plan
    from .ops import OpRegistry
    from .registries import Registries

T = TypeVar("T")

Comparison: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
OnError: TypeAlias = Literal["fail", "empty", "default"]


class _Tree:
    """A tree of the JSON format in which keys and params are `Named`."""

    def __init__(self, op: str, **fields: Any) -> None:
        plain = {name: field.tree if isinstance(field, _Tree) else field for name, field in fields.items()}
        self.tree: dict[str, Any] = {"op": op, **plain}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.tree['op']}>"

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self!r} has no value before the plan runs: write & | ~ in place of and, or, not, "
            "and (a < b) & (b < c) in place of a < b < c"
        )


def _arithmetic(op: str) -> tuple[Callable[[Expr, Operand], Expr], Callable[[Expr, Operand], Expr]]:
    """An operator with the expression on its left, and with it on its right."""
    return lambda left, right: Expr.of(op, left, right), lambda right, left: Expr.of(op, left, right)


def _comparison(cmp: Comparison) -> Callable[[Expr, Operand], Pred]:
    return lambda left, right: Pred.cmp(cmp, left, right)


class Expr(_Tree):
    """An expression: `+`, `-`, `*` and `coalesce` give another one, comparisons give a predicate."""

    @staticmethod
    def of(op: str, a: Operand, b: Operand) -> Expr:
        """An op of two operands."""
        return Expr(op, a=_as_expr(a), b=_as_expr(b))

    def coalesce(self, other: Operand) -> Expr:
        """This where it is not null, else the other."""
        return Expr.of("coalesce", self, other)

    def __neg__(self) -> Expr:
        return Expr("neg", x=self)

    __add__, __radd__ = _arithmetic("add")
    __sub__, __rsub__ = _arithmetic("sub")
    __mul__, __rmul__ = _arithmetic("mul")
    __lt__, __le__ = _comparison("<"), _comparison("<=")
    __gt__, __ge__ = _comparison(">"), _comparison(">=")
    __eq__ = _comparison("==")  # type: ignore[assignment]
    __ne__ = _comparison("!=")  # type: ignore[assignment]
    # A comparison is a predicate, so expressions cannot be keys of a dict.
    __hash__ = None  # type: ignore[assignment]


# What can stand for an expression: a number is itself, None the literal null.
Operand: TypeAlias = Expr | float | None


class KeyRef(Expr):
    """A key: the value of a row in that column."""

    def __init__(self, name: str) -> None:
        self.named = Named("key", name)
        super().__init__("key_ref", key_id=self.named)


class ParamRef(Expr):
    """A param: the value that the request overrides it with, else null."""

    def __init__(self, name: str) -> None:
        self.named = Named("param", name)
        super().__init__("param_ref", param_id=self.named)


class Pred(_Tree):
    """A predicate; `&`, `|` and `~` give another one."""

    @staticmethod
    def const(value: bool) -> Pred:
        return Pred("const_bool", value=value)

    @staticmethod
    def cmp(cmp: Comparison, a: Operand, b: Operand) -> Pred:
        """A comparison; one with a value that is null when the plan runs is false."""
        return Pred("cmp", cmp=cmp, a=_as_expr(a), b=_as_expr(b))

    @staticmethod
    def in_(lhs: Operand, values: Iterable[float] | Iterable[str]) -> Pred:
        """True if a value is one of some numbers or of some strings."""
        return Pred("in", lhs=_as_expr(lhs), list=list(values))

    @staticmethod
    def is_null(x: Operand) -> Pred:
        return Pred("is_null", x=_as_expr(x))

    @staticmethod
    def not_null(x: Operand) -> Pred:
        return Pred("not_null", x=_as_expr(x))

    @staticmethod
    def regex(key: KeyRef, pattern: str | ParamRef, *, flags: Literal["", "i"] = "") -> Pred:
        """True if a string key matches anywhere; the pattern is a constant, or a param of each request."""
        if not isinstance(key, KeyRef):
            raise TypeError(f"a pattern is matched with a key like Key.country, not with {key!r}")
        found: dict[str, Any] = {"kind": "literal", "value": pattern}
        if isinstance(pattern, ParamRef):
            found = {"kind": "param", "param_id": pattern.named}
        return Pred("regex", key_id=key.named, pattern=found, flags=flags)

    def __and__(self, other: Pred) -> Pred:
        return Pred("and", a=self, b=_as_pred(other))

    def __or__(self, other: Pred) -> Pred:
        return Pred("or", a=self, b=_as_pred(other))

    def __invert__(self) -> Pred:
        return Pred("not", x=self)


def _as_expr(value: object) -> Expr:
    if isinstance(value, Expr):
        return value
    if value is None:
        return Expr("const_null")
    if isinstance(value, str):
        raise TypeError(f"{value!r} is a string: compare it by Pred.in_(Key.country, [{value!r}])")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"an expression consists of keys, params, numbers and None, not of {value!r}")
    return Expr("const_number", value=value)


def _as_pred(value: object) -> Pred:
    if not isinstance(value, Pred):
        raise TypeError(f"a predicate is a comparison or the result of a function of Pred, not {value!r}")
    return value


@attrs.frozen
class _Symbols(Generic[T]):
    """What its attributes name, such as `Key.final_score`."""

    _create: Callable[[str], T]

    def __getattr__(self, name: str) -> T:
        # Python looks for special methods, which must be missing.
        if name.startswith("__"):
            raise AttributeError(name)
        return self._create(name)


class _Endpoints:
    """`EP.redis.redis_default` is the endpoint of that kind and name."""

    redis: Final = _Symbols(functools.partial(Named, "redis"))
    http: Final = _Symbols(functools.partial(Named, "http"))


Key: Final = _Symbols(KeyRef)
P: Final = _Symbols(ParamRef)
EP: Final = _Endpoints()


class PlanContext:
    """The argument of a plan function: creates the nodes that need no input, and collects all nodes."""

    def __init__(self, registries: Registries, ops: OpRegistry) -> None:
        self._registries = registries
        self._ops = ops
        # Only `op` changes these, and only with what is valid; a node's id is its position.
        self._nodes: list[dict[str, Any]] = []
        # The trees by their ids, and the ids by kind and text, so that equal trees are written once.
        self._tables: dict[str, dict[str, Any]] = {"expression": {}, "predicate": {}, "ids": {}}

    def __getattr__(self, name: str) -> Callable[..., Node]:
        return functools.partial(self.op, self._method(name))

    def _method(self, name: str) -> str:
        """The op that a method is named after."""
        if name.startswith("_"):
            raise AttributeError(name)
        if self._ops.get(name) is None:
            raise AttributeError(f"no op is named {name!r}{nearest(name, self._ops.names)}")
        return name

    def op(self, name: str, /, *inputs: Node, **params: Any) -> Node:
        """A node of any registered op; params are named as in the JSON format, `expr` and `pred` without their `_id`.

        Raises `InvalidPlan` with everything that is wrong with the node.
        """
        problems, position = Problems(), len(self._nodes)
        path = f"$.nodes[{position}]"
        spec = self._ops.get(name)
        kinds = {} if spec is None else {param: each.kind for param, each in spec.params.items()}
        named: dict[str, Any] = {}
        for param, value in params.items():
            full = param if param in kinds or f"{param}_id" not in kinds else f"{param}_id"
            if full in named:
                message = f"duplicate param: pass either {full.removesuffix('_id')!r} or {full!r}"
                problems.add(Code.DUPLICATE_FIELD, f"{path}.params.{full}", message)
            named[full] = value
        # A node that turns out to be invalid leaves nothing in the tables.
        tables = {kind: table.copy() for kind, table in self._tables.items()}

        def read(param: str, given: Any) -> Any:
            kind = kinds.get(param, "value")
            if kind in ("expression", "predicate"):
                return self._tree_id(kind, given, tables, problems)
            if isinstance(given, KeyRef):
                return given.named
            if isinstance(given, dict):
                return {name: each.named if isinstance(each, KeyRef) else each for name, each in given.items()}
            return self._node_id(Value(given, f"{path}.params.{param}", problems)) if isinstance(given, Node) else given

        node: dict[str, Any] = {
            "node_id": f"n{position}",
            "op": name if spec is None else spec.name,
            "inputs": [self._node_id(Value(each, f"{path}.inputs[{at}]", problems)) for at, each in enumerate(inputs)],
            "params": {param: read(param, value) for param, value in named.items()},
        }
        # The check below would report the same values again.
        problems.raise_invalid_plan()
        scope = Scope(
            registries=self._registries,
            expressions=tables["expression"],
            predicates=tables["predicate"],
            node_ids={each["node_id"]: None for each in self._nodes},
        )
        checked = read_node(Value(node, path, problems), self._ops, scope, CAPABILITIES)
        problems.raise_invalid_plan()
        # Ids in place of names.
        self._nodes.append({**node, "params": {param: checked.params.get(param) for param in named}})
        self._tables = tables
        return Node(self, position)

    def _tree_id(self, kind: str, given: object, tables: dict[str, dict[str, Any]], problems: Problems) -> str | None:
        """The id of an expression or predicate, which is added to its table."""
        tree: _Tree = _as_expr(given) if kind == "expression" else _as_pred(given)
        table, reader = tables[kind], TreeReader(self._registries)
        value = Value(tree.tree, f"$.{kind[:4]}_table.{kind[0]}{len(table)}", problems)
        found = reader.expression(value) if kind == "expression" else reader.predicate(value)
        if found is None:
            return None
        tree_id: str = tables["ids"].setdefault(kind + json.dumps(found.tree), f"{kind[0]}{len(table)}")
        table.setdefault(tree_id, found)
        return tree_id

    def _node_id(self, value: Value) -> str | None:
        node = value.raw
        if not isinstance(node, Node):
            return value.expected("a node")
        if node._context is not self:  # noqa: SLF001  a node is a part of its context
            value.problem(Code.UNKNOWN_NODE, "expected a node of this plan, found one of another")
        return f"n{node._index}"  # noqa: SLF001  as above

    def _document(self, name: str, outputs: object) -> dict[str, Any]:
        """The plan whose function returned these outputs, as JSON values."""
        problems = Problems()
        given = Value([outputs] if isinstance(outputs, Node) else outputs, "$.outputs", problems)
        items = given.items(f"plan {name!r} to return a node or a list of nodes") or []
        output_ids = [self._node_id(each) for each in items]
        if not problems.found:
            self._check_used(output_ids, problems)
        problems.raise_invalid_plan()
        document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "plan_name": name}
        capabilities = sorted({each for node in self._nodes for each in node.get("extensions", ())})
        if capabilities:
            document["capabilities_required"] = capabilities
        return {
            **document,
            "nodes": self._nodes,
            "outputs": output_ids,
            "expr_table": {tree_id: found.tree for tree_id, found in self._tables["expression"].items()},
            "pred_table": {tree_id: found.tree for tree_id, found in self._tables["predicate"].items()},
        }

    def _check_used(self, output_ids: Sequence[str | None], problems: Problems) -> None:
        """A branch that is not returned would read from servers for nothing."""
        needed = set(output_ids)
        # A node is created after all it needs, so one pass from the end sees every node after those that need it.
        for node in reversed(self._nodes):
            spec = self._ops.get(node["op"])
            if node["node_id"] in needed and spec is not None:
                needed.update(node["inputs"], spec.referenced_nodes(node["params"]).values())
        for position, node in enumerate(self._nodes):
            if node["node_id"] not in needed:
                message = f"no output needs this node of op {node['op']!r}: return it or remove it"
                problems.add(Code.UNUSED_NODE, f"$.nodes[{position}]", message)


@attrs.frozen
class Node:
    """The rows of a node; a method creates the node that comes next. Several may follow the same one."""

    _context: PlanContext = attrs.field(repr=False)
    _index: int

    def __getattr__(self, name: str) -> Callable[..., Node]:
        if name.startswith("_"):
            raise AttributeError(name)
        return functools.partial(self.op, self._context._method(name))  # noqa: SLF001  a node is a part of its context

    def op(self, name: str, /, *others: Node, **params: Any) -> Node:
        """A node of any registered op, with this as its first input; params are named as in the JSON format."""
        return self._context.op(name, self, *others, **params)

    def on_error(self, policy: OnError) -> Node:
        """Set what happens to the request if this node fails; returns the same node."""
        problems = Problems()
        value = Value({ON_ERROR: {"policy": policy}}, f"$.nodes[{self._index}].extensions", problems)
        read_policy(value, CAPABILITIES, of_node=True)
        problems.raise_invalid_plan()
        self._context._nodes[self._index]["extensions"] = value.raw  # noqa: SLF001  a node is a part of its context
        return self


PlanFunction: TypeAlias = Callable[[PlanContext], Node | Sequence[Node]]


@attrs.frozen(kw_only=True)
class AuthoredPlan:
    """A plan function; calling it needs no server. Registries and ops are the default ones if not given."""

    name: str
    function: PlanFunction
    registries: Registries | None = None
    ops: OpRegistry | None = None

    def document(self) -> dict[str, Any]:
        """The plan in the JSON format; the same function returns the same document. Raises `InvalidPlan`."""
        registries = default_registries() if self.registries is None else self.registries
        context = PlanContext(registries, default_ops() if self.ops is None else self.ops)
        document = context._document(self.name, self.function(context))  # noqa: SLF001  a part of this module
        parse_plan(document, self.registries, self.ops)
        return document

    def text(self) -> str:
        return plan_text(self.document())

    def plan(self) -> Plan:
        """The plan, validated, as an engine runs it."""
        return parse_plan(self.document(), self.registries, self.ops)


@overload
def plan(function: PlanFunction, /) -> AuthoredPlan: ...
@overload
def plan(
    *, name: str | None = None, registries: Registries | None = None, ops: OpRegistry | None = None
) -> Callable[[PlanFunction], AuthoredPlan]: ...
def plan(function: PlanFunction | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Turn a function into a plan, named after it unless a name is given."""
    if function is None:
        return functools.partial(plan, name=name, **options)
    own_name: str = getattr(function, "__name__", "plan") if name is None else name
    return AuthoredPlan(name=own_name, function=function, **options)
