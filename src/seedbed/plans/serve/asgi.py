"""The ASGI application of a plan server: paths, status codes, headers, limits of a body."""

from __future__ import annotations

import hmac
import re
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from ...errors import ConfigError, InvalidRequest, PlanError
from ..documents import Code, Problems, read_document
from .disconnect import Disconnected, while_connected
from .metrics import exposition_of
from .service import PlanService, ServeConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping
    from contextlib import AbstractAsyncContextManager

    from ..ops import OpRegistry
    from ..registries import Registries
    from ..request import RequestEnd
    from .catalog import Version
    from .disconnect import Receive

    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

STATUS: Final[Mapping[str, int]] = {
    "INVALID_REQUEST": 400,
    "UNAUTHORIZED": 401,
    "UNKNOWN_PLAN": 404,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "TOO_LARGE": 413,
    "NODE_FAILED": 500,
    "ENDPOINT_UNAVAILABLE": 502,
    "OVERLOADED": 503,
    "NOT_READY": 503,
    "DEADLINE_EXCEEDED": 504,
    "NODE_TIMEOUT": 504,
}
"""The HTTP status of each code."""

RETRY_AFTER: Final = b"1"
"""Seconds after which a request that was rejected may be sent again: by then a plan was tried again."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")
_TRUE: Final = ("1", "true")
_OPEN_PATHS: Final = ("/healthz", "/readyz")  # for probes, which have no token
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"


@attrs.frozen
class Reply:
    """A response that is whole."""

    status: int
    body: bytes
    kind: bytes = _JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    request_id: str | None = None  # if the request has its own


@attrs.frozen
class _Refused(Exception):
    """A request that is answered without an engine."""

    code: str
    message: str
    problems: tuple[tuple[str, str, str], ...] = ()


@attrs.frozen
class _Head:
    """What a request says before its body."""

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    options: Mapping[str, str]
    began: float

    def header(self, name: str) -> str | None:
        found = self.headers.get(name.encode())
        return None if found is None else found.decode("latin-1")

    def is_set(self, option: str) -> bool:
        return self.options.get(option, "").lower() in _TRUE


class PlanApp:
    """An ASGI application that serves the plans of a directory.

    A server that speaks ASGI's lifespan opens and closes it. Mounted in another application, which passes no lifespan
    on, it is opened by `async with app.open()` in that one's.
    """

    def __init__(self, service: PlanService, *, token: str | None = None) -> None:
        self.service = service
        self._token = None if token is None else token.encode()

    def open(self) -> AbstractAsyncContextManager[None]:
        """Serve requests until this is left."""
        return self.service.open()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._lifespan(receive, send)
        if scope["type"] != "http":  # a WebSocket
            return await send({"type": "websocket.close", "code": 1003})
        began = time.monotonic()
        path: str = scope["path"]
        root = scope.get("root_path", "")
        if root and path.startswith(root):  # mounted
            path = path[len(root) :]
        head = _Head(scope["method"], path, dict(scope["headers"]), _options(scope.get("query_string", b"")), began)
        request_id = _request_id(head)
        try:
            reply = await self._reply(head, receive, request_id)
        except _Refused as error:
            reply = _error(error.code, error.message, request_id, problems=error.problems)
        except Disconnected:
            return None
        headers = [(b"content-type", reply.kind), (b"content-length", b"%d" % len(reply.body)), *reply.headers]
        echoed = reply.request_id if reply.request_id and _REQUEST_ID.fullmatch(reply.request_id) else request_id
        headers.append((b"x-request-id", echoed.encode()))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if head.method == "HEAD" else reply.body})
        return None

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        opened = self.open()
        try:
            await opened.__aenter__()
        except ConfigError as error:
            return await send({"type": "lifespan.startup.failed", "message": str(error)})
        try:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        finally:
            await opened.__aexit__(None, None, None)
        return await send({"type": "lifespan.shutdown.complete"})

    async def _reply(self, head: _Head, receive: Receive, request_id: str) -> Reply:
        path = head.path
        if path not in _OPEN_PATHS:
            self._check_token(head)
        if path == "/rank":
            return await self._execute(head, None, receive, request_id)
        name, slash, action = path.removeprefix("/plans/").partition("/")
        if path.startswith("/plans/") and name:
            if not slash:
                return await self._execute(head, name, receive, request_id)
            if action == "explain":
                _only(head, "GET", "HEAD")
                return self._explain(self._version(name))
        plain = {"/healthz": _healthy, "/readyz": self._readiness, "/metrics": self._metrics, "/plans": self._listing}
        if path not in plain:
            raise _Refused("NOT_FOUND", f"there is nothing at {path:.200}; plans are at /plans/NAME")
        _only(head, "GET", "HEAD")
        return plain[path]()

    def _check_token(self, head: _Head) -> None:
        if self._token is None:
            return
        kind, _, given = (head.headers.get(b"authorization") or b"").partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
            raise _Refused("UNAUTHORIZED", "expected the header 'Authorization: Bearer TOKEN' with the server's token")

    def _version(self, name: str) -> Version:
        found = self.service.catalog.find(name)
        if found is None and not self.service.is_ready and not self.service.draining:
            raise _Refused("NOT_READY", "no plan is served yet")
        if found is None:
            known = ", ".join(each.plan.name for each in self.service.catalog.active) or "none"
            raise _Refused("UNKNOWN_PLAN", f"no plan {name!r:.100} is served (there are: {known:.1000})")
        return found

    async def _execute(self, head: _Head, name: str | None, receive: Receive, request_id: str) -> Reply:
        _only(head, "POST")
        body = await self._body(head, receive)
        request: Any = body
        if name is None:
            name, request = _named_request(body)
        version = self._version(name)
        try:
            deadline = self.service.deadline_of(head.header("x-deadline-ms"), head.began)
        except ValueError:
            given = head.header("x-deadline-ms")
            raise _Refused("INVALID_REQUEST", f"X-Deadline-Ms: expected milliseconds, found {given!r:.100}") from None
        plan, partial = version.plan, head.is_set("partial")
        try:
            response = await while_connected(
                receive,
                lambda: self.service.engine.execute(
                    plan,
                    request,
                    deadline=deadline,
                    trace=head.is_set("trace"),
                    partial=partial,
                    parent=head.header("traceparent"),
                ),
            )
        except Disconnected:
            self.service.count(plan.name, "DISCONNECTED", head.began)
            raise
        except PlanError as error:
            self.service.count(plan.name, error.code, head.began)
            problems = error.problems if isinstance(error, InvalidRequest) else ()
            return _error(error.code, error.message, request_id, node=error.node, problems=problems)
        is_partial = response.coverage is not None and not response.coverage.complete
        self.service.count(plan.name, "OK", head.began, partial=is_partial)
        document = {**response.to_dict(), "plan": {"name": plan.name, "digest": version.digest}}
        if response.request_id == response.engine_request_id:
            document["request_id"] = request_id
        headers = ((b"x-partial", b"true"),) if is_partial else ()
        return Reply(200, msgspec.json.encode(document), headers=headers, request_id=document["request_id"])

    async def _body(self, head: _Head, receive: Receive) -> bytes:
        most = self.service.config.max_body
        too_large = _Refused("TOO_LARGE", f"the body is larger than {most} bytes (max_body)")
        length = head.header("content-length")
        if length is not None and length.isdecimal() and int(length[:20]) > most:
            raise too_large
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise too_large
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _readiness(self) -> Reply:
        service = self.service
        found = {"ready": service.is_ready, "draining": service.draining, "problems": sorted(service.catalog.problems)}
        return Reply(200 if service.is_ready else 503, msgspec.json.encode(found))

    def _metrics(self) -> Reply:
        return Reply(200, exposition_of(self.service.all_samples()).encode(), _TEXT)

    def _listing(self) -> Reply:
        catalog = self.service.catalog
        plans = [
            {
                "name": each.plan.name,
                "digest": each.digest,
                "file": each.file,
                "nodes": len(each.plan.nodes),
                "outputs": each.plan.outputs,
                "loaded_at": each.loaded_at,
            }
            for each in catalog.active
        ]
        problems = [{"file": file, "problems": _problems(found)} for file, found in sorted(catalog.problems.items())]
        return Reply(200, msgspec.json.encode({"plans": plans, "not_served": problems}))

    def _explain(self, version: Version) -> Reply:
        explained = attrs.asdict(self.service.engine.explain(version.plan))
        del explained["costs"]
        return Reply(200, msgspec.json.encode({**explained, "digest": version.digest}))


def _healthy() -> Reply:
    return Reply(200, b'{"ok":true}')


def _only(head: _Head, *methods: str) -> None:
    if head.method not in methods:
        raise _Refused("METHOD_NOT_ALLOWED", f"expected the method {' or '.join(methods)}, found {head.method:.20}")


def _options(query: bytes) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in query.decode("latin-1").split("&") if pair)
    return {name: value if equals else "true" for name, equals, value in pairs}


def _request_id(head: _Head) -> str:
    given = head.header("x-request-id")
    return given if given is not None and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def _named_request(body: bytes) -> tuple[str, Any]:
    """The plan's name and the request in the body of /rank."""
    problems = Problems()
    value = read_document(body, problems)
    document = value.raw
    if not problems.found and not isinstance(document, dict):
        value.expected("an object")
    elif not problems.found:
        name = document.pop("plan_name", None)
        if isinstance(name, str):
            return name, document
        value.problem(Code.MISSING_FIELD, "the field 'plan_name' is required, a string", field="plan_name")
    raise _Refused("INVALID_REQUEST", problems.listing("the request is"), tuple(problems.found))


def _problems(found: tuple[tuple[str, str, str], ...]) -> list[dict[str, str]]:
    return [{"code": str(code), "path": path, "message": message} for code, path, message in found]


def _error(
    code: str,
    message: str,
    request_id: str,
    *,
    node: str | None = None,
    problems: tuple[tuple[str, str, str], ...] = (),
) -> Reply:
    error: dict[str, Any] = {"code": code, "message": message}
    if node is not None:
        error["node"] = node
    if problems:
        error["problems"] = _problems(problems)
    status = STATUS.get(code, 500)
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if status == 503:
        headers = ((b"retry-after", RETRY_AFTER),)
    elif status == 401:
        headers = ((b"www-authenticate", b"Bearer"),)
    return Reply(status, msgspec.json.encode({"error": error, "request_id": request_id}), headers=headers)


def app(
    directory: str | Path,
    *,
    registries: Registries | None = None,
    ops: OpRegistry | None = None,
    config: ServeConfig | None = None,
    token: str | None = None,
    metrics_folder: Path | None = None,
    on_request: Callable[[RequestEnd], object] | None = None,
) -> PlanApp:
    """An ASGI application that serves the plans of a directory, for a server or another application to mount.

    `token` is what callers must send as `Authorization: Bearer`. Metrics of several processes with one
    `metrics_folder` are summed.
    """
    service = PlanService(
        Path(directory),
        registries=registries,
        ops=ops,
        config=config,
        metrics_folder=metrics_folder,
        on_request=on_request,
    )
    return PlanApp(service, token=token)
