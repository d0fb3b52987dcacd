"""The check of a node's params against what its op declares, references included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from .opspec import ParamKind
from .problems import Code, Problems, shown, under
from .trees import TreeChecker, ValueKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .model import Registries
    from .opspec import OpSpec, ParamSpec
    from .trees import Expression

VM: Final = "core::vm"


@attrs.frozen(kw_only=True)
class ParamChecker:
    """Everything of one plan that params may refer to. An entry of a table is None if it has problems of its own."""

    registries: Registries
    problems: Problems
    trees: TreeChecker
    expressions: Mapping[str, Expression | None]
    predicates: Mapping[str, Mapping[str, Any] | None]
    node_ids: Mapping[str, int]

    def check(self, value: object, path: str, op: OpSpec) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """The params with their defaults, and the nodes that they refer to."""
        fields = self.problems.fields(
            value,
            path,
            required=[name for name, spec in op.params.items() if spec.required],
            optional=[name for name, spec in op.params.items() if not spec.required],
        )
        if fields is None:
            return {}, ()
        checked: dict[str, Any] = {}
        refs: list[str] = []
        for name, spec in op.params.items():
            if name not in fields:
                if not spec.required:
                    checked[name] = spec.default
                continue
            found = self._value(fields[name], under(path, name), spec)
            checked[name] = found
            if spec.kind is ParamKind.NODE and found is not None:
                refs.append(found)
        if op.name == VM:
            self._check_never_null(checked, path)
        return checked, tuple(refs)

    def node(self, value: object, path: str) -> str | None:
        """A reference to a node of the plan."""
        return self._reference(value, path, self.node_ids, Code.UNKNOWN_NODE, "no node has the id")

    def _value(self, value: object, path: str, spec: ParamSpec) -> Any:
        if value is None and spec.nullable:
            return None
        match spec.kind:
            case ParamKind.STRING:
                return self.problems.text(value, path)
            case ParamKind.INTEGER:
                return self._integer(value, path, spec)
            case ParamKind.NUMBER:
                return self._number(value, path, spec)
            case ParamKind.BOOLEAN:
                return self.problems.boolean(value, path)
            case ParamKind.CHOICE:
                return self.problems.choice(value, path, spec.choices)
            case ParamKind.ENDPOINT:
                return self._endpoint(value, path, spec)
            case ParamKind.EXPRESSION:
                return self._expression(value, path)
            case ParamKind.PREDICATE:
                return self._reference(value, path, self.predicates, Code.UNKNOWN_PRED, "pred_table has no")
            case ParamKind.KEY:
                return self._key(value, path, spec)
            case ParamKind.NODE:
                return self.node(value, path)

    def _integer(self, value: object, path: str, spec: ParamSpec) -> int | None:
        low, high = spec.minimum, spec.maximum
        return self.problems.integer(
            value, path, low=None if low is None else int(low), high=None if high is None else int(high)
        )

    def _number(self, value: object, path: str, spec: ParamSpec) -> float | None:
        number = self.problems.number(value, path)
        if number is None:
            return None
        for bound, outside, word in (
            (spec.minimum, spec.minimum is not None and number < spec.minimum, "at least"),
            (spec.maximum, spec.maximum is not None and number > spec.maximum, "at most"),
        ):
            if outside:
                self.problems.add(
                    Code.INVALID_VALUE, path, f"expected a number of {word} {bound}, found {shown(value)}"
                )
                return None
        return number

    def _endpoint(self, value: object, path: str, spec: ParamSpec) -> str | None:
        endpoints = self.registries.endpoints
        endpoint_id = self._reference(value, path, endpoints, Code.UNKNOWN_ENDPOINT, "no endpoint has the id")
        if endpoint_id is None:
            return None
        kind = endpoints[endpoint_id].kind
        if spec.endpoint_kind is not None and kind != spec.endpoint_kind:
            message = f"expected an endpoint of kind {spec.endpoint_kind!r}, found {endpoint_id!r}, which is {kind!r}"
            self.problems.add(Code.WRONG_ENDPOINT_KIND, path, message)
            return None
        return endpoint_id

    def _expression(self, value: object, path: str) -> str | None:
        name = self._reference(value, path, self.expressions, Code.UNKNOWN_EXPR, "expr_table has no")
        expression = None if name is None else self.expressions[name]
        if expression is not None and expression.kind is ValueKind.STRING:
            message = f"expected an expression that gives a number, found {shown(name)}, which gives a string"
            self.problems.add(Code.TYPE_MISMATCH, path, message)
            return None
        return name

    def _key(self, value: object, path: str, spec: ParamSpec) -> int | None:
        key = self.trees.key(value, path)
        if key is None:
            return None
        if spec.writes and not key.writable:
            self.problems.add(Code.KEY_NOT_WRITABLE, path, f"expected a key that ops may write, found {key.name!r}")
            return None
        if key.type not in spec.key_types:
            allowed = " or ".join(each.value for each in spec.key_types)
            message = f"expected a key of type {allowed}, found {key.name!r}, which is {key.type.value}"
            self.problems.add(Code.WRONG_KEY_TYPE, path, message)
            return None
        return key.id

    def _reference(
        self, value: object, path: str, known: Mapping[str, object], code: Code, complaint: str
    ) -> str | None:
        name = self.problems.text(value, path)
        if name is not None and name not in known:
            self.problems.add(code, path, f"{complaint} {shown(name)}{self.problems.hint(name, known)}")
            return None
        return name

    def _check_never_null(self, checked: Mapping[str, Any], path: str) -> None:
        """What needs no data to fail is refused: an expression that is always null, for a key that never is."""
        key = self.registries.keys.get(checked.get("out_key", 0) or 0)
        expression = self.expressions.get(checked.get("expr_id") or "")
        if key is not None and not key.nullable and expression is not None and expression.always_null:
            message = (
                f"expected a value for {key.name!r}, which is not nullable, found an expression that is always null"
            )
            self.problems.add(Code.TYPE_MISMATCH, f"{path}.expr_id", message)
