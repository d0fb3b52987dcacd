"""The words that plans are written with in Python: `Key`, `P`, `EP`, expressions and predicates.

A symbol is only a name until a node is made with it: then it is looked up in the registries of the plan that is being
written, so that a wrong name is an error on the line that uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from ..errors import InvalidPlan
from ..graph.limits import MAX_DEPTH
from .problems import Code, Problems, shown
from .trees import MAX_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .model import Registries

Comparison: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]


@attrs.frozen(kw_only=True)
class Lookup:
    """Where names are looked up; one that is not there is a problem at `path`."""

    registries: Registries
    problems: Problems
    path: str

    def key(self, name: str) -> int:
        """The id of a key."""
        return self._id(name, {key.name: key.id for key in self.registries.keys.values()}, Code.UNKNOWN_KEY, "key")

    def param(self, name: str) -> int:
        """The id of a param."""
        ids = {param.name: param.id for param in self.registries.params.values()}
        return self._id(name, ids, Code.UNKNOWN_PARAM, "param")

    def endpoint(self, kind: str, name: str) -> str:
        """The id of an endpoint."""
        ids = {each.name: each.id for each in self.registries.endpoints.values() if each.kind == kind}
        if name in ids:
            return ids[name]
        hint = self.problems.hint(name, ids)
        self.problems.add(Code.UNKNOWN_ENDPOINT, self.path, f"no {kind} endpoint is named {shown(name)}{hint}")
        return ""

    def _id(self, name: str, ids: Mapping[str, int], code: Code, what: str) -> int:
        if name not in ids:
            self.problems.add(code, self.path, f"no {what} is named {shown(name)}{self.problems.hint(name, ids)}")
        return ids.get(name, 0)


@attrs.frozen(eq=False, repr=False)
class _Tree:
    """An op with its fields, some of which are trees."""

    op: str
    fields: Mapping[str, Any]
    depth: int = attrs.field(init=False)
    size: int = attrs.field(init=False)  # as JSON, where a branch that is used twice is there twice

    @depth.default
    def _depth(self) -> int:
        depth = 1 + max((part.depth for part in self._parts()), default=0)
        if depth > MAX_DEPTH:
            raise InvalidPlan([(Code.TOO_DEEP, "$", f"expected a tree of at most {MAX_DEPTH} levels, found {depth}")])
        return depth

    @size.default
    def _size(self) -> int:
        size = 1 + sum(part.size for part in self._parts())
        if size > MAX_SIZE:
            raise InvalidPlan([(Code.TOO_LARGE, "$", f"expected a tree of at most {MAX_SIZE} ops, found {size}")])
        return size

    def _parts(self) -> list[_Tree]:
        return [field for field in self.fields.values() if isinstance(field, _Tree)]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.op} of {self.size} op{'' if self.size == 1 else 's'}>"

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self!r} has no value before the plan runs: write & | ~ in place of and, or, not, "
            "and (a < b) & (b < c) in place of a < b < c"
        )

    def resolve(self, lookup: Lookup) -> dict[str, Any]:
        """The tree as JSON."""
        return {
            "op": self.op,
            **{name: part.resolve(lookup) if isinstance(part, _Tree) else part for name, part in self.fields.items()},
        }


class Expr(_Tree):
    """An expression: `+`, `-`, `*` and `coalesce` make another one, comparisons make a predicate."""

    def __add__(self, other: Operand) -> Expr:
        return _binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return _binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return _binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return _binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return _binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return _binary("mul", other, self)

    def __neg__(self) -> Expr:
        return Expr("neg", {"x": self})

    def coalesce(self, other: Operand) -> Expr:
        """This where it is not null, else the other."""
        return _binary("coalesce", self, other)

    def __eq__(self, other: Operand) -> Pred:  # type: ignore[override]
        return Pred.cmp("==", self, other)

    def __ne__(self, other: Operand) -> Pred:  # type: ignore[override]
        return Pred.cmp("!=", self, other)

    def __lt__(self, other: Operand) -> Pred:
        return Pred.cmp("<", self, other)

    def __le__(self, other: Operand) -> Pred:
        return Pred.cmp("<=", self, other)

    def __gt__(self, other: Operand) -> Pred:
        return Pred.cmp(">", self, other)

    def __ge__(self, other: Operand) -> Pred:
        return Pred.cmp(">=", self, other)

    # A comparison is a predicate and cannot tell whether two expressions are the same.
    __hash__ = None  # type: ignore[assignment]


# What can stand where an expression is wanted: a number is itself, None the literal null.
Operand: TypeAlias = Expr | float | None


class KeyRef(Expr):
    """A key: the value of a row in that column."""

    def __init__(self, name: str) -> None:
        super().__init__("key_ref", {"name": name})

    def key_id(self, lookup: Lookup) -> int:
        return lookup.key(self.fields["name"])

    def resolve(self, lookup: Lookup) -> dict[str, Any]:
        return {"op": self.op, "key_id": self.key_id(lookup)}


class ParamRef(Expr):
    """A param: what the request overrides it with, else null."""

    def __init__(self, name: str) -> None:
        super().__init__("param_ref", {"name": name})

    def param_id(self, lookup: Lookup) -> int:
        return lookup.param(self.fields["name"])

    def resolve(self, lookup: Lookup) -> dict[str, Any]:
        return {"op": self.op, "param_id": self.param_id(lookup)}


class Pred(_Tree):
    """A predicate; `&`, `|` and `~` make another one."""

    @staticmethod
    def const(value: bool) -> Pred:
        return Pred("const_bool", {"value": value})

    @staticmethod
    def cmp(cmp: Comparison, a: Operand, b: Operand) -> Pred:
        """A comparison; one with a value that is null when the plan runs is false."""
        return Pred("cmp", {"cmp": cmp, "a": as_expr(a), "b": as_expr(b)})

    @staticmethod
    def in_(lhs: Operand, values: Iterable[float] | Iterable[str]) -> Pred:
        """Whether a value is one of some numbers or of some strings."""
        return Pred("in", {"lhs": as_expr(lhs), "list": list(values)})

    @staticmethod
    def is_null(x: Operand) -> Pred:
        return Pred("is_null", {"x": as_expr(x)})

    @staticmethod
    def not_null(x: Operand) -> Pred:
        return Pred("not_null", {"x": as_expr(x)})

    @staticmethod
    def regex(key: KeyRef, pattern: str | ParamRef, *, flags: Literal["", "i"] = "") -> Pred:
        """Whether a string key matches anywhere; the pattern is known now, or comes with each request."""
        return _Regex(key, pattern, flags)

    def __and__(self, other: Pred) -> Pred:
        return Pred("and", {"a": self, "b": as_pred(other)})

    def __or__(self, other: Pred) -> Pred:
        return Pred("or", {"a": self, "b": as_pred(other)})

    def __invert__(self) -> Pred:
        return Pred("not", {"x": self})


class _Regex(Pred):
    def __init__(self, key: KeyRef, pattern: str | ParamRef, flags: str) -> None:
        if not isinstance(key, KeyRef):
            raise TypeError(f"a pattern is matched with a key like Key.country, not with {key!r}")
        super().__init__("regex", {"key": key, "pattern": pattern, "flags": flags})

    def resolve(self, lookup: Lookup) -> dict[str, Any]:
        pattern = self.fields["pattern"]
        if isinstance(pattern, ParamRef):
            pattern = {"kind": "param", "param_id": pattern.param_id(lookup)}
        else:
            pattern = {"kind": "literal", "value": pattern}
        key_id = self.fields["key"].key_id(lookup)
        return {"op": self.op, "key_id": key_id, "pattern": pattern, "flags": self.fields["flags"]}


def as_expr(value: object) -> Expr:
    """An expression of what can stand for one."""
    if isinstance(value, Expr):
        return value
    if value is None:
        return Expr("const_null", {})
    if isinstance(value, str):
        raise TypeError(f"{value!r} is a string: compare it by Pred.in_(Key.country, [{value!r}])")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"an expression is made of keys, params, numbers and None, not of {value!r}")
    return Expr("const_number", {"value": value})


def as_pred(value: object) -> Pred:
    """A predicate, or a sentence on what is none."""
    if not isinstance(value, Pred):
        raise TypeError(f"a predicate is a comparison or made by Pred, not {value!r}")
    return value


def _binary(op: str, a: Operand, b: Operand) -> Expr:
    return Expr(op, {"a": as_expr(a), "b": as_expr(b)})


@attrs.frozen
class EndpointRef:
    """An endpoint, by its kind and name."""

    kind: str
    name: str

    def endpoint_id(self, lookup: Lookup) -> str:
        return lookup.endpoint(self.kind, self.name)


class _Keys:
    """`Key.final_score` is the key of that name."""

    def __getattr__(self, name: str) -> KeyRef:
        return KeyRef(_plain(name))


class _Params:
    """`P.esr_cutoff` is the param of that name."""

    def __getattr__(self, name: str) -> ParamRef:
        return ParamRef(_plain(name))


@attrs.frozen
class _EndpointsOfKind:
    _kind: str

    def __getattr__(self, name: str) -> EndpointRef:
        return EndpointRef(self._kind, _plain(name))


class _Endpoints:
    """`EP.redis.redis_default` is the endpoint of that kind and name."""

    redis = _EndpointsOfKind("redis")
    http = _EndpointsOfKind("http")


def _plain(name: str) -> str:
    # Python asks objects for names of its own, and has to hear that they are not there.
    if name.startswith("__"):
        raise AttributeError(name)
    return name


Key = _Keys()
P = _Params()
EP = _Endpoints()
