"""One connection to one Redis server: all callers share it, and the commands of one scheduler round share a send.

A command for an idle server is sent at once. Commands that come while the server is busy are sent together in the next
round. hiredis parses the bytes of replies (RESP2). docs/explanation/redis-client.md has the reasons.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final

import attrs
import hiredis
import trio

from ...errors import EndpointUnavailable
from ...runtime.policy import backoff_delay
from .connecting import connect_tcp
from .pipeline import Call, Pipeline, Reply, Waiter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...runtime.sockets import SocketWire
    from ..endpoint import Endpoint
    from .connecting import Connect

_NEEDS_MORE_BYTES: Final = object()

LARGEST_REPLY = 1 << 28
"""Bytes. A list of ten million ids, the largest fanout there is, has about half of it."""

STALLED_AFTER = 3
"""Request timeouts without a single byte, while replies are outstanding, after which the connection is closed."""


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


class Link:
    """The connection to one server. `run` must be running for calls to be answered; the first call connects.

    Calls fail with EndpointUnavailable if the server cannot be reached, closed the connection, or took longer than the
    policy's request timeout, which counts from the send and not while a command waits for a slot.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        host: str,
        port: int,
        *,
        connect: Connect = connect_tcp,
        rng: random.Random | None = None,
    ) -> None:
        policy = endpoint.policy
        self._where = f"endpoint {endpoint.id!r} ({host}:{port})"
        self._address = host, port
        self._policy = policy
        self._connect_to = connect
        self._rng = rng or random.Random()
        self._connect_timeout = policy.connect_timeout_ms / 1000
        self._request_timeout = policy.request_timeout_ms / 1000
        self._pipeline = Pipeline(policy.max_inflight)
        # Set by `_connect_and_serve` while there is a connection.
        self._connection: Connection | None = None
        # Set by calls without a connection and by `connect_soon`, replaced by `run`.
        self._wanted = trio.Event()
        # Tasks that wait for something to send or to watch; the one that wakes it resets the field.
        self._idle_writer: trio.lowlevel.Task | None = None
        self._idle_watch: trio.lowlevel.Task | None = None
        # Attempts in a row that led to no reply, and when the next one may start; changed by `run`.
        self._failures = 0
        self._retry_at = 0.0
        self._last_failure: Exception | None = None
        self._closed = False
        self.connects = 0
        self.sends = 0
        self.errors = 0

    @property
    def pipeline(self) -> Pipeline:
        """What is in flight and what waits."""
        return self._pipeline

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.lost is None

    @property
    def is_idle(self) -> bool:
        """True if no reply is outstanding and no call waits."""
        return not self._pipeline.in_flight and not self._pipeline.waiting

    def connect_soon(self) -> None:
        """Connect although no call waits yet."""
        self._wanted.set()

    def ask(self, commands: Sequence[bytes], waiter: Waiter, *, every_reply: bool = False) -> Call:
        """Send commands; the waiter is notified when the call has all replies, or those up to the first error."""
        if self._closed:
            raise self._unavailable("was closed")
        pipeline = self._pipeline
        call = Call(commands, waiter, every_reply)
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
        return call

    def _unavailable(self, what: str, cause: Exception | None = None) -> EndpointUnavailable:
        error = EndpointUnavailable(f"{self._where} {what}")
        error.__cause__ = cause
        return error

    def _check_down(self) -> None:
        """Raise if the next attempt to connect is further away than a caller would wait for a connection."""
        wait = self._retry_at - trio.current_time()
        if wait > self._connect_timeout:
            self.errors += 1
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
                # There is one attempt at a time, for all calls that wait; `connect_soon` wants one without a call.
                unasked = not self._pipeline.waiting
                while self._pipeline.waiting or unasked:
                    unasked = False
                    await trio.sleep_until(max(self._retry_at, trio.current_time()))
                    await self._connect_and_serve()
        finally:
            self._closed = True
            self._lose("was closed", None, useless=True)

    async def _connect_and_serve(self) -> None:
        try:
            with trio.fail_after(self._connect_timeout):
                wire = await self._connect_to(*self._address)
        except (OSError, trio.TooSlowError) as error:
            what, failure = "cannot be reached", error
            if isinstance(error, trio.TooSlowError):
                what = "did not accept a connection"
                failure = TimeoutError(f"no connection within {self._policy.connect_timeout_ms} ms")
            self._back_off(failure)
            return self._lose(f"{what}: {failure}", failure, useless=True)
        self.connects += 1
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
        base, maximum = self._policy.connect_backoff_ms / 1000, self._policy.connect_backoff_max_ms / 1000
        self._retry_at = trio.current_time() + backoff_delay(self._failures, base, maximum, self._rng)

    def _lose(self, what: str, cause: Exception | None, *, useless: bool) -> None:
        """Fail the calls that have a slot, and with `useless` those that wait for one as well."""
        self.errors += self._pipeline.lose_connection(lambda: self._unavailable(what, cause))
        if useless:
            self.errors += self._pipeline.fail_waiting(lambda: self._unavailable(what, cause))

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
        self.sends += 1
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
        late = self._policy.request_timeout_ms
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
            self.errors += pipeline.expire(now, timeout, lambda: self._unavailable(f"did not answer within {late} ms"))
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


async def ask_one(link: Link, commands: Sequence[bytes]) -> list[Reply]:
    """Send commands on one connection and return the replies, the last of which may be an error."""
    # Most endpoints are one server, so this is most of the calls (benchmarks/redis_clients).
    call = link.ask(commands, Waiter(trio.lowlevel.current_task(), 1))

    def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
        link.pipeline.abandon(call)
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(abort)
    return call.replies


async def ask_together(
    parts: Sequence[tuple[Link, Sequence[bytes]]], *, every_reply: bool = False
) -> list[list[Reply]]:
    """Send commands on several connections at once and return the replies of each; the first error ends all."""
    waiter = Waiter(trio.lowlevel.current_task(), len(parts))
    calls: list[tuple[Link, Call]] = []

    def give_up() -> None:
        waiter.left = 0
        for link, call in calls:
            link.pipeline.abandon(call)

    def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
        give_up()
        return trio.lowlevel.Abort.SUCCEEDED

    try:
        for link, commands in parts:
            calls.append((link, link.ask(commands, waiter, every_reply=every_reply)))
        await trio.lowlevel.wait_task_rescheduled(abort)
    except BaseException:
        give_up()
        raise
    return [call.replies for _, call in calls]
