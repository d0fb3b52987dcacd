"""A small HTTP/1.1 client with only the features of a model call, because every call pays for them.

Connections are kept alive and pooled per origin; httptools parses. A cancelled call closes its connection.
Failures are raised as `Retryable` (timeouts, lost connections, responses that are truncated or not HTTP), `RateLimited`
(no file descriptor is left for another connection) or `Permanent` (a certificate that does not verify). The caller
interprets statuses.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import ssl
import sys
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, NoReturn

import attrs
import httptools
import trio

from ..errors import ConfigError, ModelMisconfigured, Permanent, RateLimited, Retryable, Unreachable
from ..runtime.sockets import open_wire
from .urls import proxy_for, split_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ..runtime.sockets import SocketWire
    from .urls import Proxy

MAX_HEADERS = 65_536
"""The maximum of bytes of header names and values of a response, also of those that have no end."""
MAX_BODY = 256 * 1024 * 1024
"""The maximum of bytes of the body of a response, which may contain images."""

# An idle connection that the server had closed fails within a round trip of its use. A call that fails later may have
# been processed, and is not sent again by the client.
_STALE_WITHIN = 1.0
# Connections that were idle for longer are closed: middleboxes drop them silently.
_IDLE_FOR = 55.0
# File descriptors reserved for the rest of the process. Without them a checkpoint could not open its files, the run
# would end, and answers that had arrived would be paid for again.
_RESERVED_FILES = 8
# A compressed body may have several members. Each copies what follows it, so that many of them would block the loop.
_MAX_MEMBERS = 100
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
# Two different values of these would end a request early for one reader and late for another.
_OWN_HEADERS = frozenset({"content-length", "host", "transfer-encoding"})


@attrs.frozen
class HttpResponse:
    """A whole response; names of headers are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@asynccontextmanager
async def open_http(
    *,
    timeout: float = 120.0,  # noqa: ASYNC109  of each call, not of opening
    connect_timeout: float = 10.0,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncIterator[HttpClient]:
    """Yield a client and close its connections on exit. `timeout` is for a whole call, connecting included."""
    client = HttpClient(timeout, connect_timeout, ssl_context)
    try:
        yield client
    finally:
        client.close()


def check_headers(headers: Mapping[str, str]) -> None:
    """Reject characters that would end a header early. Messages do not show the value: it may be a key."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot be the name of a header")
        if name.lower() in _OWN_HEADERS:
            raise ConfigError(f"header {name!r} is set by the client")
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(f"the value of header {name!r} must be one line of ASCII")


@attrs.define(eq=False, repr=False)
class HttpClient:
    """The pools, one per origin. Changed by calls, which take connections and put them back."""

    _timeout: float
    _connect_timeout: float
    _ssl_context: ssl.SSLContext | None
    _pools: dict[tuple[str, str, int], _Pool] = attrs.field(init=False, factory=dict)

    def endpoint(self, method: str, url: str, headers: Mapping[str, str]) -> Endpoint:
        try:
            parts = split_url(url)
        except ValueError as error:
            raise ConfigError(f"a URL {error}") from None
        check_headers(headers)
        origin = parts.scheme, parts.host, parts.port
        pool = self._pools.get(origin)
        if pool is None:
            context = None
            if parts.scheme == "https":
                context = self._ssl_context = self._ssl_context or ssl.create_default_context()
            pool = self._pools[origin] = _Pool(
                host=parts.host,
                port=parts.port,
                context=context,
                proxy=proxy_for(parts),
                connect_timeout=self._connect_timeout,
            )
        lines = [f"{method} {parts.target} HTTP/1.1", f"host: {parts.authority}"]
        if not any(name.lower() == "accept-encoding" for name in headers):
            lines.append("accept-encoding: gzip")
        if pool.http_proxy is not None:
            # The request is sent to the proxy, with the whole URL.
            lines[0] = f"{method} http://{parts.authority}{parts.target} HTTP/1.1"
            lines += pool.http_proxy.headers
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return Endpoint(pool, "\r\n".join(lines).encode("ascii"), self._timeout)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


@attrs.define(eq=False, kw_only=True)
class _Pool:
    """The connections of one origin: one for each call in flight, which throttles limit."""

    # Connections that all pools are opening: file descriptors belong to the process.
    _opening: ClassVar[int] = 0

    _host: str
    _port: int
    _context: ssl.SSLContext | None
    _proxy: Proxy | None
    _connect_timeout: float
    _opened: int = attrs.field(init=False, default=0)  # connections that are open, busy or idle
    _idle: list[_Connection] = attrs.field(init=False, factory=list)  # the most recently used last
    _is_closed: bool = attrs.field(init=False, default=False)

    @property
    def name(self) -> str:
        return f"{self._host}:{self._port}" + (f" through {self._proxy.name}" if self._proxy else "")

    @property
    def http_proxy(self) -> Proxy | None:
        """The proxy that receives the requests; with TLS a proxy only forwards bytes."""
        return self._proxy if self._context is None else None

    def take_idle(self, now: float) -> _Connection | None:
        """An idle connection, if there is one that the server has not closed."""
        while self._idle:
            connection = self._idle.pop()
            if now - (connection.idle_since or 0.0) < _IDLE_FOR and connection.wire.is_quiet():
                connection.taken_at = now
                return connection
            self.discard(connection)
        return None

    async def open(self) -> _Connection:
        if (self._opened or _Pool._opening) and _is_short_of_files(_Pool._opening):
            raise self._too_many_files()
        _Pool._opening += 1
        try:
            with trio.fail_after(self._connect_timeout):
                wire = await self._connect()
        except trio.TooSlowError as error:
            raise Retryable(
                f"no connection to {self.name} within {self._connect_timeout:g} s", code="unreachable"
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise _certificate_problem(self.name, error) from error
        except ssl.SSLError as error:
            if error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}:
                raise ModelMisconfigured(
                    f"{self.name} does not speak TLS", fix="for a server without it, use an http URL"
                ) from error
            raise Retryable(f"no connection to {self.name}: the TLS handshake failed ({error})") from error
        except OSError as error:
            if _first_cause(error).errno in {errno.EMFILE, errno.ENFILE}:
                raise self._too_many_files() from error
            raise Unreachable(f"no connection to {self.name}: {_reason(error)}") from error
        finally:
            _Pool._opening -= 1
        self._opened += 1
        return _Connection(wire, self.name)

    async def _connect(self) -> SocketWire:
        """Raises `OSError` (`ssl.SSLError` is one), and `Permanent` or `Retryable` if the proxy rejects it."""
        proxy = self._proxy
        stream = await trio.open_tcp_stream(*((self._host, self._port) if proxy is None else (proxy.host, proxy.port)))
        try:
            if proxy is not None and self._context is not None:
                await self._open_tunnel(proxy, stream)
            return await open_wire(stream, self._context, server_hostname=self._host)
        except BaseException:
            stream.socket.close()
            raise

    async def _open_tunnel(self, proxy: Proxy, stream: trio.SocketStream) -> None:
        """Open a tunnel to the origin with CONNECT, for TLS."""
        target = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"host: {target}", *proxy.headers, "", ""]
        answer = _Parser(proxy.name)
        try:
            await stream.send_all("\r\n".join(lines).encode("ascii"))
            while not answer.status:
                answer.feed(await stream.receive_some())
        except trio.BrokenResourceError as error:
            raise ConnectionResetError(f"{proxy.name} closed the connection") from error
        if not 200 <= answer.status < 300:
            raise proxy.rejection(answer.status, target)
        if answer.body:  # a page in place of the tunnel; the server waits for TLS to begin
            raise Retryable(f"{proxy.name} answered CONNECT {target} with a page and opened no tunnel")

    def _too_many_files(self) -> RateLimited:
        """Flow control: nothing was sent, and the call can be sent when another has ended."""
        return RateLimited(
            f"no connection to {self.name}: too many open files (ulimit -n is {_file_limit()}); raise that limit or "
            "lower max_parallel_requests"
        )

    def put(self, connection: _Connection) -> None:
        """Take back a connection that can be used again."""
        if self._is_closed:
            self.discard(connection)
            return
        connection.idle_since = trio.current_time()
        self._idle.append(connection)

    def discard(self, connection: _Connection) -> None:
        self._opened -= 1
        connection.wire.close()

    def close(self) -> None:
        self._is_closed = True
        while self._idle:
            self.discard(self._idle.pop())


@attrs.frozen(eq=False, repr=False)
class Endpoint:
    """One URL with its method and headers. The head is built once; it contains the key, so there is no repr."""

    _pool: _Pool
    _head: bytes
    _timeout: float

    async def send(self, body: bytes = b"", scope: trio.CancelScope | None = None) -> HttpResponse:
        """Send one call. Raises `Retryable`, `RateLimited` or `Permanent` if there is no response.

        `scope` is one that the caller has entered in this task; its deadline counts as that of the call if it is not
        later. After a timeout it is cancelled, so the caller must not await anything else in it.
        """
        # All of a call in one coroutine: each further one costs whenever the call resumes (overhead benchmark).
        pool, now = self._pool, trio.current_time()
        if scope is None or scope.deadline > now + self._timeout:
            with trio.move_on_after(self._timeout) as own:
                return await self.send(body, own)
            raise self._no_answer()
        # Sending does not wait, so without this a cancelled call would still be sent.
        await trio.lowlevel.checkpoint_if_cancelled()
        message = b"%b\r\ncontent-length: %d\r\n\r\n%b" % (self._head, len(body), body)
        try:
            connection = pool.take_idle(now) or await pool.open()
            while True:
                try:
                    connection.begin()
                    await connection.wire.send(message)
                    while not connection.is_complete:
                        connection.feed(await connection.wire.receive())
                    break
                except OSError as error:
                    pool.discard(connection)
                    if not connection.was_closed_idle():
                        raise Retryable(f"{pool.name} {_reason(error)}") from error
                except BaseException:  # a cancellation among others: closing notifies the server
                    pool.discard(connection)
                    raise
                connection = await pool.open()
        except trio.Cancelled as cancelled:
            # True for an outer deadline as well; then the next checkpoint raises `Cancelled` again.
            if cancelled.source == "deadline" and trio.current_time() >= scope.deadline:
                raise self._no_answer() from None
            raise
        if connection.can_be_reused:
            pool.put(connection)
        else:
            pool.discard(connection)
        response = HttpResponse(connection.status, connection.headers, bytes(connection.body))
        if response.status == 407 and pool.http_proxy is not None:
            raise pool.http_proxy.rejection(407, pool.name)
        headers = response.headers
        is_plain = "content-encoding" not in headers and headers.get("transfer-encoding", "chunked") == "chunked"
        return response if is_plain else _decode(response, pool.name)

    def _no_answer(self) -> Retryable:
        return Retryable(f"no answer from {self._pool.name} within {self._timeout:g} s", code="timeout")


class _Parser:
    """The responses of one connection, one after the other, and the callbacks of httptools."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.can_be_reused = False
        self._parser = httptools.HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """Expect the response to another call."""
        self.has_received = False  # whether any byte of it was received
        self._head_bytes = 0  # received before the end of the headers, those of interim responses included
        self._reset()

    def _reset(self) -> None:
        self.headers: dict[str, str] = {}
        self._header_bytes = 0
        # One buffer: a list of chunks of one byte would take fifty times their size.
        self.body = bytearray()
        self.status = 0
        self.is_complete = False
        self._problem: str | None = None

    def feed(self, data: bytes) -> None:
        """Parse received data, empty at the end of the stream; sets `is_complete` at the end of the response."""
        if not data:
            self._at_end()
            return
        self.has_received = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            problem = self._problem or f"sent something that is not HTTP ({error})"
            raise Retryable(f"{self._name} {problem}") from error
        except httptools.HttpParserUpgrade as error:
            raise Retryable(f"{self._name} switched to another protocol") from error
        if not self.status:
            # The parser stores a name or a value until its end.
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEADERS:
                raise Retryable(f"{self._name} sent more than {MAX_HEADERS} bytes of headers")

    def _at_end(self) -> None:
        # A body without a length ends with the connection; any other response is truncated.
        self.can_be_reused = False
        is_chunked = self.headers.get("transfer-encoding", "").lower().endswith("chunked")
        if self.status and "content-length" not in self.headers and not is_chunked:
            self.is_complete = True
            return
        if self.has_received:
            raise ConnectionAbortedError(
                f"closed the connection in the middle of its answer ({len(self.body)} bytes of body came)"
            )
        raise ConnectionAbortedError("closed the connection without an answer")

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self._fail("sent more than one answer to one call, or more than its content-length")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADERS:
            self._fail(f"sent more than {MAX_HEADERS} bytes of headers")
        if self.status:  # a trailer, which must not change what the headers say
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > MAX_BODY:
            self._fail(f"sent more than {MAX_BODY} bytes of body")

    def on_message_complete(self) -> None:
        if self.status < 200:  # an interim response such as "100 Continue"
            self._reset()
        else:
            self.is_complete = True
            self.can_be_reused = self._parser.should_keep_alive()  # only valid in this callback

    def _fail(self, problem: str) -> NoReturn:
        self._problem = problem
        raise ValueError(problem)  # stops the parser, which wraps it in its own error


class _Connection(_Parser):
    """A wire and its responses. Used by one call at a time."""

    def __init__(self, wire: SocketWire, name: str) -> None:
        super().__init__(name)
        self.wire = wire
        self.idle_since: float | None = None  # when it was last put back; None for a new one
        self.taken_at = 0.0  # when it was last taken from the idle ones

    def was_closed_idle(self) -> bool:
        """True if the server had closed the connection before it received the call, which can then be sent again."""
        reused = self.idle_since is not None
        return reused and not self.has_received and trio.current_time() - self.taken_at < _STALE_WITHIN


def _decode(response: HttpResponse, name: str) -> HttpResponse:
    """Return the response with its body decompressed. Raises if that fails, unless the status is an error anyway."""
    body = response.body
    given = [response.headers.get("content-encoding", ""), response.headers.get("transfer-encoding", "")]
    encodings = [each.strip().lower() for each in ",".join(given).split(",")]
    try:
        for encoding in reversed(encodings):  # the last one was applied last
            if encoding in {"gzip", "x-gzip", "deflate"}:
                body = _inflate(body, encoding, name)
            elif encoding not in {"", "identity", "chunked"}:
                raise Permanent(f"{name} sent a body with the unsupported content-encoding {encoding[:40]!r}")
    except (Permanent, Retryable) as failure:
        if 200 <= response.status < 300:
            raise
        body = str(failure).encode()
    return attrs.evolve(response, body=body)


def _inflate(data: bytes, encoding: str, name: str) -> bytes:
    """Decompress gzip, zlib, or raw deflate, which some servers send as deflate. Raises `Retryable`."""
    whole = bytearray()
    # 47: gzip or zlib, by the header; -15: raw deflate.
    window = 47 if data[:2] == b"\x1f\x8b" or (data[:1] == b"\x78" and int.from_bytes(data[:2]) % 31 == 0) else -15
    try:
        for _ in range(_MAX_MEMBERS):
            if not data:
                return bytes(whole)
            stream = zlib.decompressobj(window)
            whole += stream.decompress(data, MAX_BODY + 1 - len(whole))
            if len(whole) > MAX_BODY:
                raise Retryable(f"{name} sent more than {MAX_BODY} bytes of body ({encoding})")
            if not stream.eof:
                raise zlib.error("its end is missing")
            data = stream.unused_data.lstrip(b"\0")
        raise zlib.error(f"it has more than {_MAX_MEMBERS} members")
    except zlib.error as error:
        raise Retryable(f"{name} sent a body that is not valid {encoding} ({error})") from error


def _certificate_problem(name: str, error: ssl.SSLCertVerificationError) -> ModelMisconfigured:
    """The failure for a certificate that does not verify, with its fix."""
    found = f"the certificate of {name} does not verify: {error.verify_message or error}"
    if "mismatch" in found:
        fix = "correct the host of the URL"
    elif "expired" in found or "not yet valid" in found:
        fix = "renew it, or correct the clock of this machine"
    else:
        fix = "if you trust it, name its PEM file as ca_file of the model or in SSL_CERT_FILE"
    return ModelMisconfigured(found, fix=fix)


def _first_cause(error: OSError) -> OSError:
    tried = error.__cause__  # of trio: a group with an error for each address of the host
    if isinstance(tried, BaseExceptionGroup) and isinstance(tried.exceptions[0], OSError):
        return tried.exceptions[0]
    return error


def _reason(error: OSError) -> str:
    error = _first_cause(error)
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "closed the connection without an answer (reset)"
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # without the address, which the message has
    return error.strerror or str(error) or type(error).__name__


def _is_short_of_files(opening: int) -> bool:
    """True if one more connection would take a file descriptor reserved for the rest of the process."""
    try:
        # A new descriptor has the lowest number that is free, so every lower one is in use.
        free = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return True
    os.close(free)
    return free + opening >= _file_limit() - _RESERVED_FILES


def _file_limit() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit  # macOS may have none
