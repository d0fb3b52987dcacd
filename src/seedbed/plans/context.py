"""What an op is given besides its inputs and parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .rowset import RowSet, make_column, new_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .expressions import Expression
    from .memo import RequestEndpoints
    from .model import Key
    from .predicates import Predicate
    from .request import ParamValue, Request


class RequestContext:
    """What all nodes of one request share."""

    __slots__ = ("endpoints", "expressions", "keys", "param_values", "predicates", "request")

    def __init__(
        self,
        request: Request,
        endpoints: RequestEndpoints,
        keys: Mapping[int, Key],
        expressions: Mapping[str, Expression],
        predicates: Mapping[str, Predicate],
    ) -> None:
        self.request = request
        self.endpoints = endpoints
        self.keys = keys
        self.param_values: Mapping[int, ParamValue] = request.param_overrides
        self.expressions = expressions
        self.predicates = predicates


class OpContext:
    """What one run of one node is given.

    `deadline` is the instant of trio's clock at which the node's time is over (infinite if it has all the time there
    is); `refs` are the rows of the nodes that its parameters name. What endpoints answer is shared with other nodes of
    the request: read it, and do not change it.
    """

    __slots__ = ("_shared", "deadline", "node_id", "refs")

    def __init__(self, shared: RequestContext, node_id: str, deadline: float, refs: Mapping[str, RowSet]) -> None:
        self._shared = shared
        self.node_id = node_id
        self.deadline = deadline
        self.refs = refs

    @property
    def request(self) -> Request:
        return self._shared.request

    @property
    def keys(self) -> Mapping[int, Key]:
        return self._shared.keys

    @property
    def param_values(self) -> Mapping[int, ParamValue]:
        return self._shared.param_values

    def expression(self, name: str) -> Expression:
        """The compiled expression that a parameter names."""
        return self._shared.expressions[name]

    def predicate(self, name: str) -> Predicate:
        """The compiled predicate that a parameter names."""
        return self._shared.predicates[name]

    def endpoint(self, endpoint_id: str) -> Any:
        """The endpoint of that id; identical reads within the request reach it once."""
        return self._shared.endpoints.get(endpoint_id)

    def new_rows(self, ids: Iterable[int], columns: Mapping[int, Iterable[Any]] | None = None) -> RowSet:
        """Rows of plain Python values, None where null."""
        return new_rows(
            list(ids), {key_id: make_column(self.keys[key_id], values) for key_id, values in (columns or {}).items()}
        )

    def with_values(self, rows: RowSet, key_id: int, values: Iterable[Any]) -> RowSet:
        """The same rows with a column of plain Python values, None where null."""
        column = make_column(self.keys[key_id], values)
        return rows.with_column(key_id, column.values, column.nulls)
