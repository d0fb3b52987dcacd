"""A small HTTP/1.1 client: what a model call needs and nothing more, because every call pays for it.

Connections are kept alive and pooled per origin; httptools parses. A call that is cancelled closes its connection.
Failures come out as `Retryable` (timeouts, lost connections, answers that are cut short or are not HTTP), `RateLimited`
(no file descriptor is left for another connection) or `Permanent` (a certificate that does not verify); statuses are
the caller's.
"""

from __future__ import annotations

import errno
import os
import resource
import ssl
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn, Protocol

import attrs
import httptools
import trio

from ..errors import CellError, ConfigError, Permanent, RateLimited, Retryable
from .proxies import proxy_for
from .urls import split_url
from .wire import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from .proxies import Proxy
    from .wire import Wire

MAX_HEADERS = 65_536
"""Bytes of header names and values that one answer may have."""
MAX_BODY = 256 * 1024 * 1024
"""Bytes of body that one answer may have: pictures come in them."""

# An idle connection that the server closed shows it within a round trip of being used. What is lost later may have been
# worked on, and is not sent again from here.
_STALE_WITHIN = 1.0
# Connections that nothing used for so long are not trusted any more: middle boxes forget them without a word.
_IDLE_FOR = 55.0
# Descriptors that connections leave to the rest of the process. Without them a checkpoint could not open its files, the
# run would end, and answers that had arrived would be paid for again.
_RESERVED_FILES = 8


@attrs.frozen
class HttpResponse:
    """A whole answer; names of headers are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Endpoint(Protocol):
    """One URL with its method and headers, ready to be called."""

    async def send(self, body: bytes = b"", scope: trio.CancelScope | None = None) -> HttpResponse:
        """Make one call. Raises `Retryable`, `RateLimited` or `Permanent` where there is no answer.

        `scope` is one that the caller has entered in this task and that carries the deadline of the call meanwhile.
        After a timeout it is cancelled, so whoever gives it awaits nothing more in it.
        """
        ...


class HttpClient(Protocol):
    """Connections to any number of origins, for as long as it is open."""

    def endpoint(self, method: str, url: str, headers: Mapping[str, str]) -> Endpoint: ...


@asynccontextmanager
async def open_http(
    *,
    timeout: float = 120.0,  # noqa: ASYNC109  of each call, not of opening
    connect_timeout: float = 10.0,
    max_connections: int = 1_000,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncIterator[HttpClient]:
    """A client; leaving closes its connections. `timeout` is for a whole call, connecting included.

    `max_connections` is per origin; a call that finds them all busy waits within its timeout.
    """
    pool = Http1Client(timeout, connect_timeout, max_connections, ssl_context)
    try:
        yield pool
    finally:
        pool.close()


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse what would end a header early; the value is not shown, it may be a key."""
    for name, value in headers.items():
        if not name or any(character in name for character in "\r\n\0: "):
            raise ConfigError(f"{name!r} cannot be the name of a header")
        if any(character in value for character in "\r\n\0") or not value.isascii():
            raise ConfigError(f"the value of header {name!r} must be one line of ASCII")


class Http1Client:
    """The pools, one per origin. Changed by the calls that take connections and put them back."""

    def __init__(
        self, timeout: float, connect_timeout: float, max_connections: int, ssl_context: ssl.SSLContext | None
    ) -> None:
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._max_connections = max_connections
        self._ssl_context = ssl_context
        self._pools: dict[tuple[str, str, int], _Pool] = {}

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
                parts.host,
                parts.port,
                context,
                self._connect_timeout,
                max_connections=self._max_connections,
                proxy=proxy_for(parts),
            )
        lines = [f"{method} {parts.target} HTTP/1.1", f"host: {parts.authority}"]
        if not any(name.lower() == "accept-encoding" for name in headers):
            lines.append("accept-encoding: gzip")
        if pool.asked_proxy is not None:
            # The proxy is asked itself, for the whole URL.
            lines[0] = f"{method} http://{parts.authority}{parts.target} HTTP/1.1"
            if pool.asked_proxy.authorization:
                lines.append(f"proxy-authorization: {pool.asked_proxy.authorization}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return _Http1Endpoint(pool, "\r\n".join(lines).encode("ascii"), self._timeout)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


class _Connecting:
    """The connections that are being opened, by all clients: descriptors are those of the process."""

    def __init__(self) -> None:
        self.count = 0

    def leave_too_few_files(self) -> bool:
        """Whether one more connection would take a descriptor that the rest of the process may need."""
        try:
            # A new descriptor has the lowest number that is free, so every lower one is in use.
            free = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            return True
        os.close(free)
        return free + self.count >= _file_limit() - _RESERVED_FILES


_connecting = _Connecting()


class _Pool:
    """The connections of one origin."""

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        connect_timeout: float,
        *,
        max_connections: int,
        proxy: Proxy | None,
    ) -> None:
        self.name = f"{host}:{port}" + (f" through {proxy.name}" if proxy else "")
        # The proxy that answers in the place of the host; with TLS it only passes bytes on.
        self.asked_proxy = proxy if context is None else None
        self._proxy = proxy
        self._host = host
        self._port = port
        self._context = context
        self._connect_timeout = connect_timeout
        self._free = trio.Semaphore(max_connections)
        self._opened = 0  # connections that are open, busy or idle
        # Last used last: those at the front go stale first and are closed first.
        self._idle: list[_Connection] = []
        self._is_closed = False

    async def take(self, *, fresh: bool = False) -> _Connection:
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            await self._free.acquire()
        try:
            now = trio.current_time()
            while self._idle and not fresh:
                connection = self._idle.pop()
                if now - (connection.idle_since or 0.0) < _IDLE_FOR and connection.wire.is_quiet():
                    return connection
                self._close(connection)
            return await self._open()
        except BaseException:
            self._free.release()
            raise

    async def _open(self) -> _Connection:
        if (self._opened or _connecting.count) and _connecting.leave_too_few_files():
            raise self._too_many_files()
        _connecting.count += 1
        try:
            with trio.fail_after(self._connect_timeout):
                wire = await connect(self._host, self._port, self._context, self._proxy)
        except trio.TooSlowError as error:
            raise Retryable(f"no connection to {self.name} within {self._connect_timeout:g} s") from error
        except ssl.SSLCertVerificationError as error:
            raise Permanent(
                f"the certificate of {self.name} does not verify: {error.verify_message or error}"
            ) from error
        except OSError as error:
            if _first_cause(error).errno in {errno.EMFILE, errno.ENFILE}:
                raise self._too_many_files() from error
            raise Retryable(f"no connection to {self.name}: {_reason(error)}") from error
        finally:
            _connecting.count -= 1
        self._opened += 1
        return _Connection(wire, self.name)

    def _too_many_files(self) -> RateLimited:
        """Flow control: nothing was sent, and as many calls as there are descriptors for can be under way."""
        return RateLimited(
            f"no connection to {self.name}: too many open files (ulimit -n is {_file_limit()}); raise that limit or "
            "lower max_parallel_requests"
        )

    def put(self, connection: _Connection) -> None:
        """Take back a connection that can be used again."""
        self._free.release()
        if self._is_closed:
            self._close(connection)
            return
        connection.idle_since = trio.current_time()
        self._idle.append(connection)

    def discard(self, connection: _Connection) -> None:
        self._free.release()
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        self._opened -= 1
        connection.wire.close()

    def close(self) -> None:
        self._is_closed = True
        while self._idle:
            self._close(self._idle.pop())


class _Http1Endpoint:
    """The head is made once; it holds the key, so it is in no repr."""

    __slots__ = ("_head", "_pool", "_timeout")

    def __init__(self, pool: _Pool, head: bytes, timeout: float) -> None:
        self._pool = pool
        self._head = head
        self._timeout = timeout

    async def send(self, body: bytes = b"", scope: trio.CancelScope | None = None) -> HttpResponse:
        # Sending does not wait, so it would not notice by itself that nobody wants the answer any more.
        await trio.lowlevel.checkpoint_if_cancelled()
        message = b"%b\r\ncontent-length: %d\r\n\r\n%b" % (self._head, len(body), body)
        response = None
        if scope is not None:
            # A scope for each call would cost more than parsing its answer does (overhead benchmark).
            response = await self._send_within(scope, message)
        else:
            with trio.move_on_after(self._timeout):
                response = await self._exchange(message, fresh=False) or await self._exchange(message, fresh=True)
        if response is None:
            raise Retryable(f"no answer from {self._pool.name} within {self._timeout:g} s")
        if response.status == 407 and self._pool.asked_proxy is not None:
            raise self._pool.asked_proxy.refusal(407, self._pool.name)
        return _decode(response, self._pool.name) if "content-encoding" in response.headers else response

    async def _send_within(self, scope: trio.CancelScope, message: bytes) -> HttpResponse | None:
        before, deadline = scope.deadline, trio.current_time() + self._timeout
        if deadline < before:
            scope.deadline = deadline
        try:
            return await self._exchange(message, fresh=False) or await self._exchange(message, fresh=True)
        except trio.Cancelled as cancelled:
            # Of an outer deadline it is true as well, and then the next checkpoint raises `Cancelled` again.
            if deadline < before and cancelled.source == "deadline" and trio.current_time() >= deadline:
                return None
            raise
        finally:
            if deadline < before:
                scope.deadline = before

    async def _exchange(self, message: bytes, *, fresh: bool) -> HttpResponse | None:
        """One try; None if the connection was idle too long and had been closed before it heard of this call."""
        pool = self._pool
        connection = await pool.take(fresh=fresh)
        reused = connection.idle_since is not None
        started = trio.current_time()
        try:
            await connection.wire.send(message)
            response = await connection.read_response()
        except OSError as error:
            pool.discard(connection)
            if reused and not connection.heard and trio.current_time() - started < _STALE_WITHIN:
                return None
            raise Retryable(f"{pool.name} {_reason(error)}") from error
        except BaseException:  # among others a cancellation: closing is how the server hears of it
            pool.discard(connection)
            raise
        if connection.can_be_reused:
            pool.put(connection)
        else:
            pool.discard(connection)
        return response


class _Connection:
    """A wire and the parser's callbacks. Used by one call at a time."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire = wire
        self._name = name
        self.idle_since: float | None = None  # when it was last put back; None for a new one
        self.heard = False  # whether any byte of the current answer has come
        self.can_be_reused = False
        self._parser = httptools.HttpResponseParser(self)
        self._begin()

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._chunks: list[bytes] = []
        self._body_bytes = 0
        self._status = 0
        self._is_complete = False
        self._complaint: str | None = None

    async def read_response(self) -> HttpResponse:
        self._begin()
        self.heard = False
        while not self._is_complete:
            data = await self.wire.receive()
            if not data:
                return self._at_end()
            self.heard = True
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                said = self._complaint or f"sent something that is not HTTP ({error})"
                raise Retryable(f"{self._name} {said}") from error
            except httptools.HttpParserUpgrade as error:
                raise Retryable(f"{self._name} wants to speak another protocol") from error
        return self._response()

    def _at_end(self) -> HttpResponse:
        # A body without a length ends with the connection; any other end is too early.
        self.can_be_reused = False
        if self._status and "content-length" not in self._headers and "transfer-encoding" not in self._headers:
            return self._response()
        if self.heard:
            raise ConnectionAbortedError(
                f"closed the connection in the middle of its answer ({self._body_bytes} bytes of body came)"
            )
        raise ConnectionAbortedError("closed the connection without an answer")

    def _response(self) -> HttpResponse:
        chunks = self._chunks
        return HttpResponse(self._status, self._headers, chunks[0] if len(chunks) == 1 else b"".join(chunks))

    # What httptools calls.

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._refuse("sent more than one answer to one call")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADERS:
            self._refuse(f"sent more than {MAX_HEADERS} bytes of headers")
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > MAX_BODY:
            self._refuse(f"sent more than {MAX_BODY} bytes of body")
        self._chunks.append(data)

    def on_message_complete(self) -> None:
        if self._status < 200:  # "100 Continue" and its like announce the answer
            self._begin()
        else:
            self._is_complete = True
            self.can_be_reused = self._parser.should_keep_alive()  # the parser forgets it after this

    def _refuse(self, complaint: str) -> NoReturn:
        self._complaint = complaint
        raise ValueError(complaint)  # stops the parser, which wraps it in an error of its own


def _decode(response: HttpResponse, name: str) -> HttpResponse:
    """The answer with its body as it was before it was compressed. Raises where that cannot be found out.

    An error status says enough without its body, and decides alone.
    """
    body = response.body
    encodings = [each.strip().lower() for each in response.headers["content-encoding"].split(",")]
    try:
        for encoding in reversed(encodings):  # the last one was applied last
            if encoding in {"gzip", "x-gzip", "deflate"}:
                body = _inflate(body)
            elif encoding not in {"", "identity"}:
                raise Permanent(f"{name} sent a body with content-encoding {encoding!r}, which was not asked for")
    except (zlib.error, EOFError) as error:
        failure: CellError = Retryable(f"{name} sent a body that is not {encoding} although it says so ({error})")
    except CellError as error:
        failure = error
    else:
        return attrs.evolve(response, body=body)
    if 200 <= response.status < 300:
        raise failure
    return attrs.evolve(response, body=str(failure).encode())


def _inflate(data: bytes) -> bytes:
    """Decompress gzip or zlib, or deflate without a header, which some servers send under its name."""
    whole = bytearray()
    # 47: the header decides which of the two it is; -15: there is none.
    window = 47 if data[:2] == b"\x1f\x8b" or (data[:1] == b"\x78" and int.from_bytes(data[:2]) % 31 == 0) else -15
    while data:  # gzip files may follow each other
        stream = zlib.decompressobj(window)
        whole += stream.decompress(data, MAX_BODY + 1 - len(whole))
        if len(whole) > MAX_BODY:
            raise Retryable(f"more than {MAX_BODY} bytes of body")
        if not stream.eof:
            raise EOFError("its end is missing")
        data = stream.unused_data.lstrip(b"\0")
    return bytes(whole)


def _first_cause(error: OSError) -> OSError:
    tried = error.__cause__  # a group of one for each address of the host, as trio reports it
    if isinstance(tried, BaseExceptionGroup) and isinstance(tried.exceptions[0], OSError):
        return tried.exceptions[0]
    return error


def _reason(error: OSError) -> str:
    error = _first_cause(error)
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "closed the connection without an answer (reset)"
    return error.strerror or str(error) or type(error).__name__


def _file_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
