"""Requests and responses of plans."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from ..errors import InvalidRequest
from .documents import Code, Problems, read_document, shown
from .registries import ID
from .rowset import SLICE_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .documents import Source, Value
    from .registries import Key, ParamValue, Registries
    from .rowset import RowSet

_MAX_USER_ID: Final = 2**32 - 1
_DECIMAL = re.compile(r"0|[1-9][0-9]*")


@attrs.frozen(kw_only=True)
class Request:
    """A valid request. `param_overrides` are by param id, of their param's type; params not in it are null."""

    user_id: int
    request_id: str | None = None
    param_overrides: Mapping[int, ParamValue] = attrs.field(factory=dict)


def parse_request(data: Source, registries: Registries) -> Request:
    """Read a request, or raise one `InvalidRequest` with everything that is wrong with it."""
    problems = Problems()
    fields = read_document(data, problems).fields("user_id", optional=["request_id", "param_overrides"])
    user_id, request_id = _user_id(fields["user_id"]), fields["request_id"].text()
    overrides: dict[int, ParamValue] = {}
    given = fields["param_overrides"].entries()
    by_name = {param.name: param for param in registries.params.values()} if given else {}
    for name, value in given.items():
        param = by_name.get(name)
        if param is None:
            value.problem(Code.UNKNOWN_PARAM, f"no param is named {shown(name)}{problems.hint(name, by_name)}")
        elif value.raw is not None:
            overrides[param.id] = param.type.read(value)
        elif param.nullable:
            overrides[param.id] = None
        else:
            value.problem(Code.WRONG_TYPE, f"expected a {param.type.value}, found null")
    if user_id is None or problems.found:
        raise InvalidRequest(problems.found)
    return Request(user_id=user_id, request_id=request_id, param_overrides=overrides)


def _user_id(value: Value) -> int | None:
    found = value.raw
    if not isinstance(found, str):
        return value.integer(0, _MAX_USER_ID)
    # Ten digits hold every allowed id, and Python raises for thousands.
    if len(found) <= 10 and _DECIMAL.fullmatch(found) and int(found) <= _MAX_USER_ID:
        return int(found)
    message = f"expected an integer from 0 to {_MAX_USER_ID} or its decimal string, found {shown(found)}"
    return value.problem(Code.INVALID_VALUE, message)


@attrs.frozen(kw_only=True)
class NodeTrace:
    """One run of a node; times are milliseconds since the request arrived."""

    node: str
    op: str
    label: str | None  # the node's param `trace`
    where: str  # loop, inline or thread
    segment: int  # nodes with the same number ran as one
    start_ms: float  # when its inputs were available
    end_ms: float
    rows_in: int  # of its first input
    rows_out: int


@attrs.frozen(kw_only=True)
class ReadTrace:
    """Commands that a node sent together to an endpoint; times are milliseconds since the request arrived."""

    endpoint: str
    command: str
    keys: int
    start_ms: float
    end_ms: float


@attrs.frozen(kw_only=True)
class Trace:
    """Where and when nodes ran; `critical_path` are the nodes that the response waited for, first to last."""

    total_ms: float
    queued_ms: float
    nodes: tuple[NodeTrace, ...]  # in the order they ended
    reads: tuple[ReadTrace, ...]  # in the order they ended
    critical_path: tuple[str, ...]


@attrs.frozen(kw_only=True)
class RequestEnd:
    """A request that has ended, for metrics and traces of other systems."""

    plan: str
    code: str  # OK, or that of the error
    error: Exception | None
    request_id: str | None
    parent: str | None  # the W3C traceparent that the caller gave
    seconds: float  # since it arrived
    trace: Trace | None  # None if it was not started


@attrs.frozen(kw_only=True)
class Degraded:
    """A node that failed and whose policy let the request continue."""

    node: str
    policy: str
    code: str
    message: str


@attrs.frozen(kw_only=True)
class Coverage:
    """The nodes that failed, and those that had not finished at the deadline."""

    degraded: tuple[Degraded, ...] = ()
    unfinished: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.degraded and not self.unfinished


@attrs.frozen(kw_only=True)
class Response:
    """A response: `rows`, and the same as `candidates`, one object per row."""

    request_id: str
    engine_request_id: str
    rows: RowSet
    candidates: list[dict[str, Any]]
    trace: Trace | None = None
    coverage: Coverage | None = None

    def to_dict(self) -> dict[str, Any]:
        names = ("request_id", "engine_request_id", "candidates")
        document: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.trace is not None:
            document["trace"] = attrs.asdict(self.trace)
        if self.coverage is not None:
            document["coverage"] = {**attrs.asdict(self.coverage), "complete": self.coverage.complete}
        return document


async def build_candidates(
    rows: RowSet, keys: Mapping[int, Key], may_continue: Callable[[], bool]
) -> list[dict[str, Any]] | None:
    """One object per row: its id, and its other columns by the names of their keys. None if it may not continue."""
    candidates: list[dict[str, Any]] = []
    for start in range(0, len(rows), SLICE_ROWS):
        if start:
            await trio.lowlevel.checkpoint()
            if not may_continue():
                return None
        candidates += _candidates(rows[start : start + SLICE_ROWS], keys)
    return candidates if may_continue() else None


def _candidates(rows: RowSet, keys: Mapping[int, Key]) -> list[dict[str, Any]]:
    ids = rows.ids().tolist()
    columns = {keys[key_id].name: rows.to_list(keys[key_id]) for key_id in rows.columns if key_id != ID}
    if not columns:
        return [{"id": row_id, "fields": {}} for row_id in ids]
    return [
        {"id": row_id, "fields": dict(zip(columns, row, strict=True))}
        for row_id, row in zip(ids, zip(*columns.values(), strict=True), strict=True)
    ]
