"""The bytes between us and a server, with as little between them and the socket as trio allows."""

from __future__ import annotations

import socket
from typing import Protocol

import trio

RECEIVE_BYTES = 1 << 16


class Transport(Protocol):
    """A connection; `receive` gives `b""` at its end, and both ways raise OSError when it is lost.

    `has_unread` says whether bytes have come that `receive` has not given yet. `send_some` says how many bytes there
    was room for, and `wait_for_room` waits until there may be room again.
    """

    async def receive(self) -> bytes: ...

    def has_unread(self) -> bool: ...

    def send_some(self, data: bytes | memoryview) -> int: ...

    async def wait_for_room(self) -> None: ...

    def close(self) -> None: ...


class SocketTransport:
    """A connected socket that one task reads and one task writes.

    trio's own streams add checkpoints, locks and copies to each call, which for replies of 50 bytes cost more than the
    system calls do. Here a read waits first, since a reply is hardly ever there already, and a write tries first, since
    there is hardly ever no room.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected

    async def receive(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue

    def has_unread(self) -> bool:
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:  # nothing is there, or `receive` will raise it
            return False

    def send_some(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    async def wait_for_room(self) -> None:
        await trio.lowlevel.wait_writable(self._socket)

    def close(self) -> None:
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()


async def connect_tcp(host: str, port: int) -> SocketTransport:
    """Connect to a server; raises OSError if there is none."""
    try:
        stream = await trio.open_tcp_stream(host, port)
    except (UnicodeError, OverflowError) as error:
        raise OSError(f"{host!r}, port {port}, is no address: {error}") from None
    # open_tcp_stream has set TCP_NODELAY.
    return SocketTransport(socket.socket(fileno=stream.socket.detach()))
