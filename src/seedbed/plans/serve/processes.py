"""The processes of `seedbed plan serve`: uvicorn in each, one listening socket for all, and what keeps them running.

The first process listens. With one worker it serves itself; with several it starts them, passes signals on, and starts
another when one dies. SIGTERM drains: `/readyz` says 503 at once, the socket is closed after `drain_delay`, and
requests that run have `grace` seconds. SIGHUP looks for changed plans at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import queue
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ... import checks
from ...errors import ConfigError
from ..redis import check_endpoints
from ..registries import default_registries, load_registries
from .asgi import app
from .service import ServeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .asgi import PlanApp

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_RESTART_DELAY: Final = 1.0  # seconds between two starts of a worker, so that one that cannot start does not spin
_KEEP_ALIVE: Final = 75  # seconds that an idle connection stays open: longer than a load balancer keeps it
_LARGEST_HEAD: Final = 1 << 16
_STOP_POLL: Final = 0.1
_STOP: Final = 2.0  # seconds that a process may take beyond `drain_delay` and `grace`


@attrs.frozen(kw_only=True)
class ServerConfig:
    """Where and how the processes serve; the token itself is never a part of it."""

    directory: str
    registries: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = attrs.field(default=1, validator=checks.whole(1))
    token_env: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    client_ca_file: str | None = None
    max_connections: int = attrs.field(default=1_000, validator=checks.whole(1))
    header_timeout: float = attrs.field(default=10.0, validator=checks.at_least(0, "seconds"))
    drain_delay: float = attrs.field(default=0.0, validator=checks.at_least(0, "seconds"))
    serve: ServeConfig = attrs.field(factory=ServeConfig)

    def check(self) -> None:
        """Raise ConfigError for what would be unsafe or cannot work, before anything listens."""
        if bool(self.cert_file) != bool(self.key_file):
            raise ConfigError("TLS needs both --cert-file and --key-file")
        if self.client_ca_file and not self.cert_file:
            raise ConfigError("--client-ca-file needs TLS: pass --cert-file and --key-file as well")
        if self.host not in _LOOPBACK and not (self.token_env or self.client_ca_file):
            raise ConfigError(
                f"--host {self.host} can be reached by other machines: pass --token-env NAME or --client-ca-file FILE, "
                "so that callers must show who they are"
            )
        self.token()

    def token(self) -> str | None:
        """The token that callers must send, from the environment."""
        if self.token_env is None:
            return None
        token = os.environ.get(self.token_env, "")
        if not token:
            raise ConfigError(f"the environment variable {self.token_env} (--token-env) is not set, or empty")
        return token

    def app(self, metrics_folder: Path | None) -> PlanApp:
        """The application of one process."""
        from .telemetry import request_reporter  # noqa: PLC0415  of an extra, which is looked for only now

        try:
            registries = default_registries() if self.registries is None else load_registries(self.registries)
        except OSError as error:
            raise ConfigError(
                f"the registries {self.registries!r} cannot be read: {error.strerror or error}"
            ) from error
        return app(
            self.directory,
            registries=registries,
            config=self.serve,
            token=self.token(),
            metrics_folder=metrics_folder,
            on_request=request_reporter(),
        )


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol with limits that it lacks: connections, time until a request is whole, size of its head."""

    max_connections = 1_000
    header_timeout = 10.0
    _timer: asyncio.TimerHandle | None = None  # while a request is not whole
    _in_body = False
    _head_size = 0  # bytes that were received since the end of the last request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvicorn's own limit rejects requests, and so any number of connections without one stay open.
        if len(self.connections) > self.max_connections:
            return transport.abort()
        self._timer = self.loop.call_later(self.header_timeout, transport.close)
        return None

    def data_received(self, data: bytes) -> None:
        # The first bytes of a further request on an idle connection.
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._timer = self.loop.call_later(self.header_timeout, self.transport.close)
        self._head_size += len(data)
        super().data_received(data)
        # Also the head of a request that was sent before the one before it was answered, for which no timer runs yet.
        if self._head_size > _LARGEST_HEAD and not self._in_body:
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._in_body, self._head_size = False, 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Server(uvicorn.Server):
    """uvicorn with our signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(config: ServerConfig, served: PlanApp, listener: socket.socket, parent: int | None) -> None:
    loop = asyncio.get_running_loop()
    tls: dict[str, Any] = {}
    if config.cert_file is not None:
        tls = {"ssl_certfile": config.cert_file, "ssl_keyfile": config.key_file}
        if config.client_ca_file is not None:
            tls |= {"ssl_ca_certs": config.client_ca_file, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    limits = {"max_connections": config.max_connections, "header_timeout": config.header_timeout}
    settings = uvicorn.Config(
        served,
        http=type("Protocol", (_Protocol,), limits),
        ws="none",
        loop="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=config.max_connections,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(config.serve.grace)),
        **tls,
    )
    server = _Server(settings)

    def stop() -> None:
        if served.service.draining:  # the second signal does not wait
            server.should_exit = server.force_exit = True
            return
        served.service.draining = True
        loop.call_later(config.drain_delay, functools.partial(setattr, server, "should_exit", True))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, served.service.reload_soon)
    if parent is not None:

        def orphaned() -> None:
            loop.remove_reader(parent)
            stop()

        loop.add_reader(parent, orphaned)
    await server.serve([listener])


def run_worker(
    config: ServerConfig, listener: socket.socket, metrics_folder: Path | None = None, parent: int | None = None
) -> None:
    """Serve until a signal ends this process, or the process at the other end of the pipe `parent` has ended."""
    asyncio.run(_serve(config, config.app(metrics_folder), listener, parent))


def listen(config: ServerConfig) -> socket.socket:
    """The socket that all processes accept connections from."""
    config.check()
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=config.max_connections)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {config.host}, port {config.port}: {error}") from error


def run_server(config: ServerConfig, listener: socket.socket) -> None:
    """Serve with all workers until a signal ends this process and they have drained."""
    # What cannot work is found here and once, not by each worker again and again.
    check_endpoints(config.app(None).service.registries)
    if config.workers == 1:
        return run_worker(config, listener)
    with tempfile.TemporaryDirectory(prefix="seedbed-serve-") as folder:
        _Supervisor(config, listener, Path(folder)).run()
    return None


class _Supervisor:
    """Starts workers, starts another for each that dies, and passes signals on."""

    def __init__(self, config: ServerConfig, listener: socket.socket, folder: Path) -> None:
        self._listener = listener
        # Workers read the end of this pipe when this process has ended, however it did.
        self._pipe = os.pipe()
        stored = msgspec.json.encode(attrs.asdict(config)).decode()
        module = "seedbed.plans.serve.worker"
        self._inherited = listener.fileno(), self._pipe[0]
        self._command = [sys.executable, "-m", module, *map(str, self._inherited), str(folder), stored]
        self._workers: list[subprocess.Popen[bytes]] = []
        self._count = config.workers
        self._patience = config.drain_delay + config.serve.grace + _STOP
        # A queue that may be filled in a handler: what it interrupts is not disturbed.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda received, _frame: self._signals.put(received))
        while (received := self._next_signal(_RESTART_DELAY)) in (None, signal.SIGHUP):
            if received is not None:
                self._pass_on(received)
            self._workers = [each for each in self._workers if each.poll() is None]
            while len(self._workers) < self._count:
                self._workers.append(subprocess.Popen(self._command, pass_fds=self._inherited))
        self._listener.close()
        self._pass_on(signal.SIGTERM)
        ends = time.monotonic() + self._patience
        while any(each.poll() is None for each in self._workers) and time.monotonic() < ends:
            if self._next_signal(_STOP_POLL) is not None:
                self._pass_on(signal.SIGTERM)  # the second one does not wait
        for worker in self._workers:
            worker.kill()
            worker.wait()

    def _next_signal(self, seconds: float) -> int | None:
        try:
            return self._signals.get(timeout=seconds if self._workers else 0)
        except queue.Empty:
            return None

    def _pass_on(self, number: int) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(number)
