"""The server: who may ask it, what it answers, and how it runs.

It binds to loopback, answers GET and HEAD only, and serves data only to who has its token, which is in the fragment of
the URL that it prints and so in no log. The header Host must be exact, so that a name that leads here does not count.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import signal
import socket
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..errors import ConfigError
from .datasets import Viewer
from .web import web_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send


_TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


class Guard:
    """Refuses requests that are not those of the page, and adds the headers that bind it."""

    def __init__(self, app: ASGIApp, *, port: int, token: str, policy: str) -> None:
        self._app, self._token = app, token
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cache-control", b"no-store"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # a websocket is closed before it is opened
        refusal = self._refusal(scope)
        app = self._app if refusal is None else PlainTextResponse(refusal[1], status_code=refusal[0])

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        await app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        given: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        host = given.get("host", [])
        if len(host) != 1 or host[0] not in self._hosts:
            return 421, "this server answers only by its own address"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "this server is read-only"
        if any(origin != f"http://{host[0]}" for origin in given.get("origin", [])):
            return 403, "another origin"
        is_api = scope["path"].startswith("/api/")
        site = given.get("sec-fetch-site", ["none"])[-1]
        # A link elsewhere may lead to the page itself; it has no data.
        is_visit = not is_api and given.get("sec-fetch-dest", [""])[-1] == "document"
        if site not in ("same-origin", "none") and not is_visit:
            return 403, "another site"
        wanted = f"Bearer {self._token}".encode()
        if is_api and not secrets.compare_digest(given.get("authorization", [""])[-1].encode("latin-1"), wanted):
            return 401, "the token of the URL that the server printed is missing or another"
        return None


def make_app(viewer: Viewer, *, port: int, token: str) -> ASGIApp:
    """The application for a port."""
    found = web_files()
    page = found["index.html"]
    start, end = page.index(b'<script type="importmap">') + 25, page.index(b"</script>")
    digest = base64.b64encode(hashlib.sha256(page[start:end]).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    async def asset(request: Request) -> Response:
        name = request.path_params.get("name") or "index.html"
        if name not in found:
            return PlainTextResponse("not found", status_code=404)
        return Response(found[name], media_type=_TYPES.get(name.rpartition(".")[2], "application/octet-stream"))

    routes = [*viewer.routes(), Route("/", asset), Route("/{name}", asset)]
    return Guard(Starlette(routes=routes), port=port, token=token, policy=policy)


def serve(
    directories: Sequence[Path],
    *,
    folder: Path | None = None,
    port: int = 0,
    announce: Callable[[str], None] = print,
    until: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until Ctrl-C, or until `until` is done; `announce` is called with the URL once the server listens."""
    token = secrets.token_urlsafe(24)
    if not 0 <= port <= 65_535:
        raise ConfigError(f"the view cannot be served at port {port}: a port is a number from 0 to 65535")
    try:
        created = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConfigError(
            f"the view cannot be served at port {port}: {error.strerror or error}; without --port it takes a free one"
        ) from error
    with created as listener:
        bound = listener.getsockname()[1]

        async def main() -> None:
            viewer = Viewer(directories, folder=folder)
            await run_in_threadpool(viewer.warm)
            await _serve(viewer, make_app(viewer, port=bound, token=token), listener, until, ready)

        def ready() -> None:
            announce(f"http://127.0.0.1:{bound}/#token={token}")

        asyncio.run(main())


async def _serve(
    viewer: Viewer,
    app: ASGIApp,
    listener: socket.socket,
    until: Callable[[], Awaitable[None]] | None,
    ready: Callable[[], None],
) -> None:
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # a stream that is cancelled at the end is no error
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config, on_exit=viewer.stopping.set)
    ready()
    ended = asyncio.ensure_future(until()) if until is not None else None
    if ended is not None:
        ended.add_done_callback(lambda _: server.handle_exit(signal.SIGTERM, None))
    try:
        await server.serve(sockets=[listener])
    finally:
        if ended is not None:
            ended.cancel()


class _Server(uvicorn.Server):
    """Ends the streams of events when it is to exit: it would wait for them."""

    def __init__(self, config: uvicorn.Config, *, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._on_exit()
        super().handle_exit(sig, frame)
