"""Plans written in Python: a function that chains ops, compiled to the JSON format.

::

    @plan
    def top_follows(ctx: PlanContext) -> Node:
        follows = ctx.viewer(endpoint=EP.redis.redis_default).follow(endpoint=EP.redis.redis_default, fanout=20)
        return follows.vm(out_key=Key.final_score, expr=Key.id * P.media_age_penalty_weight.coalesce(0.5)).take(count=3)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

import attrs

from ..errors import InvalidPlan
from .capabilities import ON_ERROR, SUPPORTED, check_extensions
from .format import parse_plan, plan_text
from .opspec import ParamKind, default_ops
from .params import ParamChecker
from .problems import Code, Problems
from .registries import default_registries
from .symbols import (
    EP,
    Comparison,
    EndpointRef,
    Expr,
    Key,
    KeyRef,
    Lookup,
    Operand,
    P,
    ParamRef,
    Pred,
    as_expr,
    as_pred,
)
from .trees import Expression, TreeChecker
from .validate import SCHEMA_VERSION, check_node

if TYPE_CHECKING:
    from .model import Plan, Registries
    from .opspec import OpRegistry

__all__ = [
    "EP",
    "AuthoredPlan",
    "Comparison",
    "EndpointRef",
    "Expr",
    "Key",
    "KeyRef",
    "Node",
    "Operand",
    "P",
    "ParamRef",
    "PlanContext",
    "Pred",
    "plan",
]

Order: TypeAlias = Literal["asc", "desc"]
OnError: TypeAlias = Literal["fail", "empty", "default"]


class PlanContext:
    """What a plan function is given: it makes the nodes that need no input, and remembers all that were made."""

    def __init__(self, registries: Registries, ops: OpRegistry) -> None:
        self._registries = registries
        self._ops = ops
        # Only `op` changes these, and only with what was found right; a node's id is its place.
        self._nodes: list[dict[str, Any]] = []
        self._expressions = _Table[Expression]("e")
        self._predicates = _Table[Mapping[str, Any]]("p")

    def viewer(self, *, endpoint: EndpointRef, trace: str | None = None) -> Node:
        """The user of the request, one row."""
        return self.op("core::viewer", endpoint=endpoint, trace=trace)

    def fixed_source(self, *, row_count: int = 1, trace: str | None = None) -> Node:
        """Rows with the ids 1 to `row_count`."""
        return self.op("test::fixed_source", row_count=row_count, trace=trace)

    def sleep(self, *, duration_ms: int, fail_after_sleep: bool = False, trace: str | None = None) -> Node:
        """No rows, later."""
        return self.op("test::sleep", duration_ms=duration_ms, fail_after_sleep=fail_after_sleep, trace=trace)

    def op(self, name: str, /, *inputs: Node, **params: Any) -> Node:
        """A node of any op that is registered; params are named as in the JSON format.

        What is wrong with it is an `InvalidPlan` on the line that makes it.
        """
        index = len(self._nodes)
        path = f"$.nodes[{index}]"
        problems = Problems()
        spec = self._ops.get(name)
        kinds = {} if spec is None else {param: each.kind for param, each in spec.params.items()}
        draft = _Draft(
            context=self, problems=problems, expressions=self._expressions.copy(), predicates=self._predicates.copy()
        )
        node = {
            "node_id": f"n{index}",
            "op": name if spec is None else spec.name,
            "inputs": [draft.node(each, f"{path}.inputs[{at}]") for at, each in enumerate(inputs)],
            "params": {
                param: draft.param(value, f"{path}.params.{param}", kinds.get(param))
                for param, value in params.items()
                if not (param == "trace" and value is None)
            },
        }
        # Where a name could not be looked up, the check would complain about what stands in for its id.
        if not problems.found:
            checker = ParamChecker(
                registries=self._registries,
                problems=problems,
                trees=TreeChecker(self._registries, problems),
                expressions=draft.expressions.checked,
                predicates=draft.predicates.checked,
                node_ids={each["node_id"]: at for at, each in enumerate(self._nodes)},
            )
            check_node(node, path, self._ops, checker, SUPPORTED)
        if problems.found:
            raise InvalidPlan(problems.found)
        self._nodes.append(node)
        self._expressions, self._predicates = draft.expressions, draft.predicates
        return Node(self, index)

    def _document(self, name: str, outputs: object) -> dict[str, Any]:
        """The plan whose function gave these outputs, as JSON values."""
        problems = Problems()
        draft = _Draft(context=self, problems=problems, expressions=self._expressions, predicates=self._predicates)
        if isinstance(outputs, Node):
            outputs = [outputs]
        given = problems.items(outputs, "$.outputs", f"plan {name!r} to return a node or a list of nodes") or []
        output_ids = [draft.node(each, f"$.outputs[{at}]") for at, each in enumerate(given)]
        if not problems.found:
            self._check_used(output_ids, problems)
        if problems.found:
            raise InvalidPlan(problems.found)
        document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "plan_name": name}
        capabilities = sorted({each for node in self._nodes for each in node.get("extensions", ())})
        if capabilities:
            document["capabilities_required"] = capabilities
        return {
            **document,
            "nodes": self._nodes,
            "outputs": output_ids,
            "expr_table": self._expressions.trees,
            "pred_table": self._predicates.trees,
        }

    def _check_used(self, output_ids: Sequence[str], problems: Problems) -> None:
        """A branch that was made and not returned would ask servers for rows that nobody sees."""
        needed = set(output_ids)
        # A node is made after all it needs, so one pass from the end sees every node behind those that need it.
        for node in reversed(self._nodes):
            if node["node_id"] in needed:
                spec = self._ops.get(node["op"])
                refs = (
                    [] if spec is None else [name for name, each in spec.params.items() if each.kind is ParamKind.NODE]
                )
                needed.update(node["inputs"], (node["params"][name] for name in refs if name in node["params"]))
        for index, node in enumerate(self._nodes):
            if node["node_id"] not in needed:
                message = f"no output needs this node of op {node['op']!r}: return it, or do not make it"
                problems.add(Code.UNUSED_NODE, f"$.nodes[{index}]", message)


@attrs.frozen
class Node:
    """The rows that a node gives; a method makes the node that comes next. Two may be made from the same one."""

    _context: PlanContext = attrs.field(repr=False)
    _index: int

    def follow(self, *, endpoint: EndpointRef, fanout: int, trace: str | None = None) -> Node:
        """Whom each of the users follows, at most `fanout` each."""
        return self.op("core::follow", endpoint=endpoint, fanout=fanout, trace=trace)

    def recommendation(self, *, endpoint: EndpointRef, fanout: int, trace: str | None = None) -> Node:
        """Who is recommended to each of the users, at most `fanout` each."""
        return self.op("core::recommendation", endpoint=endpoint, fanout=fanout, trace=trace)

    def media(self, *, endpoint: EndpointRef, fanout: int, trace: str | None = None) -> Node:
        """The media of each of the users, at most `fanout` each."""
        return self.op("core::media", endpoint=endpoint, fanout=fanout, trace=trace)

    def vm(self, *, out_key: KeyRef, expr: Operand, trace: str | None = None) -> Node:
        """The same rows with a key computed."""
        return self.op("core::vm", out_key=out_key, expr_id=expr, trace=trace)

    def filter(self, *, pred: Pred, trace: str | None = None) -> Node:
        """The rows for which a predicate is true."""
        return self.op("core::filter", pred_id=pred, trace=trace)

    def sort(self, *, by: KeyRef, order: Order = "asc", trace: str | None = None) -> Node:
        """The rows in order of a key, nulls last."""
        return self.op("core::sort", by=by, order=order, trace=trace)

    def take(self, *, count: int, trace: str | None = None) -> Node:
        """The first rows."""
        return self.op("core::take", count=count, trace=trace)

    def concat(self, *, rhs: Node, trace: str | None = None) -> Node:
        """These rows, then those of another node."""
        return self.op("core::concat", rhs=rhs, trace=trace)

    def sleep(self, *, duration_ms: int, fail_after_sleep: bool = False, trace: str | None = None) -> Node:
        """The same rows, later."""
        return self.op("test::sleep", duration_ms=duration_ms, fail_after_sleep=fail_after_sleep, trace=trace)

    def busy_cpu(self, *, busy_wait_ms: int, trace: str | None = None) -> Node:
        """The same rows, after using the CPU."""
        return self.op("test::busy_cpu", busy_wait_ms=busy_wait_ms, trace=trace)

    def op(self, name: str, /, *others: Node, **params: Any) -> Node:
        """A node of any op that is registered, with this as its first input; params are named as in the JSON format."""
        return self._context.op(name, self, *others, **params)

    def on_error(self, policy: OnError) -> Node:
        """Say what becomes of the request if this node fails; gives the same node."""
        path = f"$.nodes[{self._index}].extensions"
        problems = Problems()
        extensions = check_extensions({ON_ERROR: {"policy": policy}}, path, SUPPORTED, problems, of_node=True)
        if problems.found:
            raise InvalidPlan(problems.found)
        self._context._nodes[self._index]["extensions"] = extensions  # noqa: SLF001  a node is a part of its context
        return self


Checked = TypeVar("Checked")


@attrs.define(eq=False)
class _Table(Generic[Checked]):
    """Trees by id; one that is there already is not added again."""

    prefix: str
    trees: dict[str, Mapping[str, Any]] = attrs.field(factory=dict)
    checked: dict[str, Checked | None] = attrs.field(factory=dict)
    _ids: dict[str, str] = attrs.field(factory=dict)

    def add(self, tree: Mapping[str, Any], check: Callable[[object, str], Checked | None], table: str) -> str:
        text = json.dumps(tree, default=repr)  # that JSON cannot say something is left to the check
        if text not in self._ids:
            tree_id = self._ids[text] = f"{self.prefix}{len(self._ids)}"
            self.trees[tree_id] = tree
            self.checked[tree_id] = check(tree, f"$.{table}.{tree_id}")
        return self._ids[text]

    def copy(self) -> _Table[Checked]:
        return _Table(self.prefix, dict(self.trees), dict(self.checked), dict(self._ids))


@attrs.frozen(kw_only=True)
class _Draft:
    """Turns what a node is made from into JSON."""

    context: PlanContext
    problems: Problems
    expressions: _Table[Expression]
    predicates: _Table[Mapping[str, Any]]

    def param(self, value: Any, path: str, kind: ParamKind | None) -> Any:
        """A param as JSON; expressions and predicates go to their tables, unless something is wrong already."""
        registries = self.context._registries  # noqa: SLF001  a draft is a part of its context
        lookup = Lookup(registries=registries, problems=self.problems, path=path)
        trees = TreeChecker(registries, self.problems)
        if kind is ParamKind.EXPRESSION:
            tree = as_expr(value).resolve(lookup)
            return "" if self.problems.found else self.expressions.add(tree, trees.expression, "expr_table")
        if kind is ParamKind.PREDICATE:
            tree = as_pred(value).resolve(lookup)
            return "" if self.problems.found else self.predicates.add(tree, trees.predicate, "pred_table")
        if isinstance(value, KeyRef):
            return value.key_id(lookup)
        if isinstance(value, EndpointRef):
            return value.endpoint_id(lookup)
        return self.node(value, path) if isinstance(value, Node) else value

    def node(self, value: object, path: str) -> str:
        """The id of a node of this plan."""
        if not isinstance(value, Node):
            self.problems.expected("a node", value, path)
            return ""
        if value._context is not self.context:  # noqa: SLF001  as above
            self.problems.add(Code.UNKNOWN_NODE, path, "expected a node of this plan, found one of another")
        return f"n{value._index}"  # noqa: SLF001  as above


PlanFunction: TypeAlias = Callable[[PlanContext], Node | Sequence[Node]]


@attrs.frozen(kw_only=True)
class AuthoredPlan:
    """A plan function; calling it needs no server. Without registries and ops of its own it has the default ones."""

    name: str
    function: PlanFunction
    registries: Registries | None = None
    ops: OpRegistry | None = None

    def document(self) -> dict[str, Any]:
        """The plan in the JSON format; the same function gives the same document. Raises `InvalidPlan`."""
        context = PlanContext(
            default_registries() if self.registries is None else self.registries,
            default_ops() if self.ops is None else self.ops,
        )
        document = context._document(self.name, self.function(context))  # noqa: SLF001  the end of what it began
        parse_plan(document, self.registries, self.ops)
        return document

    def text(self) -> str:
        """The plan as the text of a JSON file."""
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
def plan(
    function: PlanFunction | None = None,
    /,
    *,
    name: str | None = None,
    registries: Registries | None = None,
    ops: OpRegistry | None = None,
) -> AuthoredPlan | Callable[[PlanFunction], AuthoredPlan]:
    """Make a plan of a function, named after it unless a name is given."""

    def author(function: PlanFunction) -> AuthoredPlan:
        own_name = getattr(function, "__name__", "plan") if name is None else name
        return AuthoredPlan(name=own_name, function=function, registries=registries, ops=ops)

    return author if function is None else author(function)
