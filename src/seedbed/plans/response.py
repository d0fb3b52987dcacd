"""What a request is answered with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import trio

from .rowset import ID
from .slices import SLICE_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .model import Key
    from .rowset import RowSet


@attrs.frozen(kw_only=True)
class NodeTrace:
    """One run of a node; times are milliseconds since the request arrived."""

    node: str
    op: str
    label: str | None  # the node's parameter `trace`
    where: str  # loop, inline or thread
    segment: int  # nodes with the same number ran as one
    start_ms: float  # all it needs was there
    end_ms: float
    rows_in: int  # of its first input
    rows_out: int


@attrs.frozen(kw_only=True)
class Trace:
    """What ran, when and where; `critical_path` are the nodes that the answer waited for, first to last."""

    total_ms: float
    queued_ms: float
    nodes: tuple[NodeTrace, ...]  # in the order they ended
    critical_path: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Degraded:
    """A node that failed and whose policy let the request go on."""

    node: str
    policy: str
    code: str
    message: str


@attrs.frozen(kw_only=True)
class Coverage:
    """What an answer lacks: nodes that failed, and nodes that had not ended when the deadline passed."""

    degraded: tuple[Degraded, ...] = ()
    unfinished: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.degraded and not self.unfinished


async def build_candidates(
    rows: RowSet, keys: Mapping[int, Key], may_go_on: Callable[[], bool]
) -> list[dict[str, Any]] | None:
    """One object a row: its id, and its other columns by the names of their keys. None if it may not go on."""
    candidates = _candidates(rows.between(0, SLICE_ROWS) if len(rows) > SLICE_ROWS else rows, keys)
    for start in range(SLICE_ROWS, len(rows), SLICE_ROWS):
        await trio.lowlevel.checkpoint()
        if not may_go_on():
            return None
        candidates += _candidates(rows.between(start, start + SLICE_ROWS), keys)
    return candidates if may_go_on() else None


def _candidates(rows: RowSet, keys: Mapping[int, Key]) -> list[dict[str, Any]]:
    columns = [(keys[key_id].name, key_id) for key_id in rows.columns if key_id != ID]
    names = [name for name, _ in columns]
    values = [rows.to_list(keys[key_id]) for _, key_id in columns]
    ids = rows.ids().tolist()
    if not values:
        return [{"id": row_id, "fields": {}} for row_id in ids]
    if len(values) == 1:  # a score and nothing else, as a rule
        (name,), (column,) = names, values
        return [{"id": row_id, "fields": {name: value}} for row_id, value in zip(ids, column, strict=True)]
    return [
        {"id": row_id, "fields": dict(zip(names, row, strict=True))}
        for row_id, row in zip(ids, zip(*values, strict=True), strict=True)
    ]


@attrs.frozen(kw_only=True)
class Response:
    """An answer: `rows`, and the same as `candidates`, one object a row."""

    request_id: str
    engine_request_id: str
    rows: RowSet
    candidates: list[dict[str, Any]]
    trace: Trace | None = None
    coverage: Coverage | None = None

    def to_dict(self) -> dict[str, Any]:
        """The response as JSON values."""
        document: dict[str, Any] = {
            "request_id": self.request_id,
            "engine_request_id": self.engine_request_id,
            "candidates": self.candidates,
        }
        if self.trace is not None:
            document["trace"] = attrs.asdict(self.trace)
        if self.coverage is not None:
            document["coverage"] = {**attrs.asdict(self.coverage), "complete": self.coverage.complete}
        return document
