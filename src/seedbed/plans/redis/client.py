"""A Redis client for trio: all callers share one connection, and the commands of one scheduler round share a send.

A command for an idle server is sent at once. Commands that come while the server is busy are sent together in the next
round. hiredis parses the bytes of replies (RESP2). docs/explanation/redis-client.md has the reasons.
"""

from __future__ import annotations

import math
import random
import socket
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import attrs
import hiredis
import trio

from ...errors import EndpointUnavailable, NodeFailed
from ...runtime.policy import backoff_delay
from ...runtime.sockets import SocketWire
from .pipeline import Call, Pipeline, Reply
from .reads import EndpointStatistics, RedisEndpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ...errors import PlanError
    from ..registries import Endpoint

    Connect = Callable[[str, int], Awaitable[SocketWire]]

_NEEDS_MORE_BYTES: Final = object()

_PING: Final = b"*1\r\n$4\r\nPING\r\n"

# Errors about the server, its cluster or our account and not about the key: another server, or this one at another
# time, would answer.
_UNAVAILABLE = frozenset(
    {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "OOM"}
    | {"MOVED", "ASK", "NOAUTH", "WRONGPASS", "NOPERM", "DENIED"}
)
_TOO_MANY_CLIENTS = "ERR max number of clients reached"

LARGEST_REPLY = 1 << 28
"""Bytes. A list of ten million ids, the largest fanout there is, has about half of it."""

STALLED_AFTER = 3
"""Request timeouts without a single byte, while replies are outstanding, after which the connection is closed."""

BACKOFF_BASE = 0.01
BACKOFF_MAXIMUM = 1.0


async def connect_tcp(host: str, port: int) -> SocketWire:
    """Connect to a server; raises OSError if that fails."""
    try:
        stream = await trio.open_tcp_stream(host, port)
    except (UnicodeError, OverflowError) as error:
        raise OSError(f"{host!r}, port {port}, is no address: {error}") from None
    # open_tcp_stream has set TCP_NODELAY.
    return SocketWire(socket.socket(fileno=stream.socket.detach()))


@attrs.define(eq=False)
class Connection:
    """One open connection; changed by the three tasks that serve it."""

    wire: SocketWire
    heard_at: float
    lost: Exception | None = None  # why it ended; the first reason stays
    useless: bool = False  # it stalled, so calls that wait for a slot fail as well
    answered: bool = False  # a reply came
    unwritten: bytes | memoryview = b""  # the rest of a send, which the socket did not accept yet
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def lose(self, reason: Exception, *, useless: bool = False) -> None:
        if self.lost is None:
            self.lost = reason
            self.useless = useless
            self.scope.cancel(reason="the connection is lost")


class RedisClient(RedisEndpoint):
    """One Redis endpoint. `run` must be running for calls to be answered; the first call connects.

    Calls raise EndpointUnavailable if the server cannot be reached, closed the connection, or took longer than the
    policy's request timeout, which counts from the send and not while a command waits for a slot; and NodeFailed if it
    answered that the command does not fit the key (WRONGTYPE), or with text that is not UTF-8.
    """

    def __init__(self, endpoint: Endpoint, *, connect: Connect = connect_tcp, rng: random.Random | None = None) -> None:
        policy = endpoint.policy
        self._endpoint = endpoint
        self._connect_to = connect
        self._rng = rng or random.Random()
        self._connect_timeout = policy.connect_timeout_ms / 1000
        self._request_timeout = policy.request_timeout_ms / 1000
        self._pipeline = Pipeline(policy.max_inflight)
        # Set by `_serve` while there is a connection.
        self._connection: Connection | None = None
        # Set by calls without a connection, replaced by `run`.
        self._wanted = trio.Event()
        # Tasks that wait for something to send or to watch; the one that wakes it resets the field.
        self._idle_writer: trio.lowlevel.Task | None = None
        self._idle_watch: trio.lowlevel.Task | None = None
        # Attempts in a row that led to no reply, and when the next one may start; changed by `run`.
        self._failures = 0
        self._retry_at = 0.0
        self._last_failure: Exception | None = None
        self._closed = False
        self._connects = 0
        self._sends = 0
        self._errors = 0

    def statistics(self) -> EndpointStatistics:
        return EndpointStatistics(
            connected=self._connection is not None,
            in_flight=self._pipeline.in_flight,
            waiting=self._pipeline.waiting,
            sent=self._pipeline.sent,
            sends=self._sends,
            dropped=self._pipeline.dropped,
            errors=self._errors,
            reconnects=max(0, self._connects - 1),
        )

    async def ping(self) -> None:
        (reply,) = await self._ask((_PING,))
        if reply != "PONG":
            raise self._failure(reply, "PING", "")

    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        replies = await self._ask([encode_hgetall(key) for key in keys])
        if not are_hashes(replies):
            raise self._first_failure(replies, keys, "HGETALL", are_hashes)
        return [dict(zip(fields := iter(reply), fields, strict=False)) for reply in replies]

    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        replies = await self._ask([encode_lrange(key, start, stop) for key in keys])
        if not are_lists(replies):
            raise self._first_failure(replies, keys, "LRANGE", are_lists)
        return replies

    def _first_failure(
        self, replies: list[Reply], keys: Sequence[str], command: str, fit: Callable[[list[Reply]], bool]
    ) -> PlanError:
        reply, key = next((reply, key) for reply, key in zip(replies, keys, strict=False) if not fit([reply]))
        return self._failure(reply, command, key)

    def _failure(self, reply: Reply, command: str, key: str) -> PlanError:
        """The error for a reply that does not answer the command."""
        self._errors += 1
        kind: type[PlanError] = NodeFailed
        if isinstance(reply, hiredis.ReplyError):
            text = str(reply)
            what = f"failed: {text}"
            if text.partition(" ")[0] in _UNAVAILABLE or text.startswith(_TOO_MANY_CLIENTS):
                kind, what = EndpointUnavailable, f"was rejected: {text}"
        elif isinstance(reply, UnicodeDecodeError):
            what = f"found text that is not UTF-8: {reply}"
        else:
            what = f"was answered with {type(reply).__name__} {reply!r:.80}, which does not fit the command"
        return kind(f"endpoint {self._endpoint.id!r}, key {key!r}: {command} {what}")

    async def _ask(self, commands: Sequence[bytes]) -> list[Reply]:
        """Send commands and return the replies: fewer than the commands if the last of them is an error."""
        if not commands:
            await trio.lowlevel.checkpoint()
            return []
        if self._closed:
            raise self._unavailable("was closed")
        pipeline = self._pipeline
        call = Call(commands, trio.lowlevel.current_task())
        if self._connection is None or self._connection.lost is not None:
            self._check_down()
            pipeline.add(call)
            self._wanted.set()
        else:
            idle = pipeline.oldest is None
            pipeline.add(call)
            pipeline.admit()
            if idle and self._idle_writer is not None and trio.current_effective_deadline() > -math.inf:
                self._send(self._connection)
            self._wake_writer()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            pipeline.abandon(call)
            return trio.lowlevel.Abort.SUCCEEDED

        replies: list[Reply] = await trio.lowlevel.wait_task_rescheduled(abort)
        return replies

    def _unavailable(self, what: str, cause: Exception | None = None) -> EndpointUnavailable:
        where = f"endpoint {self._endpoint.id!r} ({self._endpoint.host}:{self._endpoint.port})"
        error = EndpointUnavailable(f"{where} {what}")
        error.__cause__ = cause
        return error

    def _check_down(self) -> None:
        """Raise if the next attempt to connect is further away than a caller would wait for a connection."""
        wait = self._retry_at - trio.current_time()
        if wait > self._connect_timeout:
            self._errors += 1
            what = f"is down and will not be tried again for {wait * 1000:.0f} ms: {self._last_failure}"
            raise self._unavailable(what, self._last_failure)

    def _wake_writer(self) -> None:
        # The writer runs in the next round, so that the commands of all tasks of this one are sent together.
        connection = self._connection
        if self._idle_writer is None or connection is None:
            return
        if connection.unwritten or self._pipeline.unsent:
            trio.lowlevel.reschedule(self._idle_writer)
            self._idle_writer = None

    async def run(self) -> None:
        """Connect whenever calls wait and there is no connection; until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                # There is one attempt at a time, for all calls that wait.
                while self._pipeline.waiting:
                    await trio.sleep_until(max(self._retry_at, trio.current_time()))
                    await self._connect_and_serve()
        finally:
            self._closed = True
            self._lose("was closed", None, useless=True)

    async def _connect_and_serve(self) -> None:
        try:
            with trio.fail_after(self._connect_timeout):
                wire = await self._connect_to(self._endpoint.host, self._endpoint.port)
        except (OSError, trio.TooSlowError) as error:
            what, failure = "cannot be reached", error
            if isinstance(error, trio.TooSlowError):
                what = "did not accept a connection"
                failure = TimeoutError(f"no connection within {self._endpoint.policy.connect_timeout_ms} ms")
            self._back_off(failure)
            return self._lose(f"{what}: {failure}", failure, useless=True)
        self._connects += 1
        connection = self._connection = Connection(wire, heard_at=trio.current_time())
        try:
            await self._serve(connection)
        finally:
            self._connection = None
            wire.close()
        lost = connection.lost or ConnectionError("the connection ended")
        if connection.useless or not connection.answered:
            self._back_off(lost)
        return self._lose(f"went away: {lost}", lost, useless=connection.useless)

    def _back_off(self, failure: Exception) -> None:
        self._failures += 1
        self._last_failure = failure
        self._retry_at = trio.current_time() + backoff_delay(self._failures, BACKOFF_BASE, BACKOFF_MAXIMUM, self._rng)

    def _lose(self, what: str, cause: Exception | None, *, useless: bool) -> None:
        """Fail the calls that have a slot, and with `useless` those that wait for one as well."""
        self._errors += self._pipeline.lose_connection(lambda: self._unavailable(what, cause))
        if useless:
            self._errors += self._pipeline.fail_waiting(lambda: self._unavailable(what, cause))

    async def _serve(self, connection: Connection) -> None:
        self._pipeline.admit()
        with connection.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_commands, connection)
                nursery.start_soon(self._watch, connection)
                await self._read_replies(connection)

    async def _read_replies(self, connection: Connection) -> None:
        pipeline, wire = self._pipeline, connection.wire
        reader = hiredis.Reader(encoding="utf-8", errors="strict", notEnoughData=_NEEDS_MORE_BYTES)
        unparsed = 0
        try:
            while connection.lost is None:
                data = await wire.receive()
                if not data:
                    raise ConnectionError("the server closed the connection")
                connection.heard_at = trio.current_time()
                reader.feed(data)
                unparsed += len(data)
                replies, broken = _parse(reader)
                if replies:
                    unparsed = 0
                    taken = pipeline.take_replies(replies)
                    if taken < len(replies):
                        raise ConnectionError(f"a reply to no command: {replies[taken]!r:.80}")
                if broken is not None:
                    raise broken
                if not unparsed:
                    connection.answered = True
                    self._failures = 0
                if unparsed > LARGEST_REPLY:
                    raise ConnectionError(f"a reply has more than {LARGEST_REPLY} bytes")
                pipeline.admit()
                self._wake_writer()
        except (OSError, hiredis.ProtocolError) as error:
            connection.lose(error)

    def _send(self, connection: Connection) -> None:
        """Write all unsent commands; the writer sends the rest if the socket does not accept all of them."""
        connection.unwritten = self._pipeline.take_unsent(trio.current_time())
        if not connection.unwritten:  # all callers were cancelled
            return self._pipeline.admit()
        if self._idle_watch is not None:
            trio.lowlevel.reschedule(self._idle_watch)
            self._idle_watch = None
        self._sends += 1
        return self._write(connection)

    def _write(self, connection: Connection) -> None:
        try:
            sent = connection.wire.send_nowait(connection.unwritten)
        except OSError as error:
            connection.lose(error)
        else:
            connection.unwritten = b"" if sent == len(connection.unwritten) else memoryview(connection.unwritten)[sent:]

    async def _write_commands(self, connection: Connection) -> None:
        while True:
            if connection.unwritten:
                await connection.wire.wait_writable()
                self._write(connection)
            elif self._pipeline.unsent:
                self._send(connection)
            else:
                self._idle_writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._forget_idle)

    async def _watch(self, connection: Connection) -> None:
        """Fail calls whose replies are late. Commands are sent in order, so there is one instant to wait for."""
        pipeline, timeout = self._pipeline, self._request_timeout
        late = self._endpoint.policy.request_timeout_ms
        while True:
            oldest = pipeline.oldest
            if oldest is None:
                self._idle_watch = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._forget_idle)
                continue
            stalled_at = max(oldest, connection.heard_at) + STALLED_AFTER * timeout
            wanted = pipeline.oldest_wanted
            # Commands that are sent later time out later.
            late_at = (trio.current_time() if wanted is None else wanted) + timeout
            await trio.sleep_until(min(stalled_at, late_at))
            # If our own loop was blocked, replies have arrived but are unread: what the server has sent is not late.
            # The reader takes some of it in each round.
            await trio.lowlevel.checkpoint()
            while not connection.wire.is_quiet():
                await trio.lowlevel.checkpoint()
            now = trio.current_time()
            self._errors += pipeline.expire(now, timeout, lambda: self._unavailable(f"did not answer within {late} ms"))
            oldest = pipeline.oldest
            if oldest is not None and max(oldest, connection.heard_at) + STALLED_AFTER * timeout <= now:
                silent = f"nothing came for {STALLED_AFTER * late} ms while replies were outstanding"
                connection.lose(TimeoutError(silent), useless=True)

    def _forget_idle(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        # Both are cancelled together, and from then on must not be woken.
        self._idle_writer = self._idle_watch = None
        return trio.lowlevel.Abort.SUCCEEDED


def _parse(reader: hiredis.Reader) -> tuple[list[Reply], Exception | None]:
    """The complete replies that the reader was fed, and what was wrong behind them.

    Text that is not UTF-8 is an error of the one command that it answers: with a replaced or escaped character it would
    be other data than the server holds.
    """
    replies: list[Reply] = []
    while True:
        try:
            reply = reader.gets()
        except UnicodeDecodeError as error:
            reply = error
        except hiredis.ProtocolError as error:
            return replies, error
        except Exception as error:  # noqa: BLE001  whatever a server sends ends no more than its connection
            # A length of billions is a MemoryError, a map with a list for a key a TypeError.
            return replies, ConnectionError(f"a reply that cannot be read: {type(error).__name__} {error}")
        if reply is _NEEDS_MORE_BYTES:
            return replies, None
        replies.append(reply)


def encode_hgetall(key: str) -> bytes:
    """`HGETALL key`."""
    name = key.encode()
    return b"*2\r\n$7\r\nHGETALL\r\n$%d\r\n%b\r\n" % (len(name), name)


def encode_lrange(key: str, start: int, stop: int) -> bytes:
    """`LRANGE key start stop`."""
    name, first, last = key.encode(), b"%d" % start, b"%d" % stop
    words = len(name), name, len(first), first, len(last), last
    return b"*4\r\n$6\r\nLRANGE\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % words


def are_lists(replies: list[Any]) -> TypeGuard[list[list[str]]]:
    """True if every reply is a list of strings, as LRANGE answers."""
    # There are hundreds per request: one check of all is faster than one of each (benchmarks/plans, "throughput").
    return set(map(type, replies)) <= {list} and set(map(type, chain.from_iterable(replies))) <= {str}


def are_hashes(replies: list[Any]) -> TypeGuard[list[list[str]]]:
    """True if every reply is a list of field names, each followed by its value, as HGETALL answers."""
    return are_lists(replies) and not any(len(reply) % 2 for reply in replies)
