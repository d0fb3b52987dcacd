"""Calls of the plan server's application without a network, and directories of plans for it to serve."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import trio
from plan_helpers import node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from seedbed.plans.serve import PlanApp


@attrs.frozen
class Answer:
    """A response of the application."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(self.json["error"]["code"])


async def call(
    app: PlanApp,
    method: str,
    path: str,
    body: object = None,
    *,
    parts: Sequence[bytes] | None = None,
    gone: trio.Event | None = None,
    **headers: str,
) -> Answer:
    """Send a request, its body as JSON unless it is given in parts; underscores in headers are dashes.

    The caller goes away when `gone` is set, and at once if there are no parts.
    """
    path, _, query = path.partition("?")
    pieces = list(parts) if parts is not None else [b"" if body is None else json.dumps(body).encode()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not pieces:
            if parts is None or parts:
                await (trio.Event() if gone is None else gone).wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    if not sent:
        return Answer(0, {}, b"")
    start, end = sent
    return Answer(start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, end["body"])


def document(name: str = "simple", *nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A plan of these nodes, or one that takes three rows."""
    nodes = nodes or (node("s", "test::fixed_source", row_count=9), node("t", "core::take", "s", count=3))
    return {"schema_version": 1, "plan_name": name, "nodes": list(nodes), "outputs": [nodes[-1]["node_id"]], **fields}


def taking(count: int, name: str = "simple") -> dict[str, Any]:
    """A plan that takes so many rows, by which its versions differ."""
    return document(name, node("s", "test::fixed_source", row_count=9), node("t", "core::take", "s", count=count))


def write(file: Path, content: object) -> None:
    """Replace a file with JSON, as a deployment does."""
    staged = file.with_suffix(".staged")
    staged.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    staged.replace(file)
