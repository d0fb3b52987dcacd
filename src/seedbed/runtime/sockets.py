"""Bytes to and from a peer, in the clear or over TLS, for the HTTP client and the test server.

A wire is one connection, used by one task at a time; a lost peer is an `OSError`, also with TLS. A plain socket is used
directly, without `trio.SocketStream`: one task writes and then reads, so nothing needs a lock, and a call costs one
trip through the scheduler in place of three.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, TypeAlias

import trio

if TYPE_CHECKING:
    import ssl

CHUNK = 65_536


class SocketWire:
    """A connection in the clear."""

    __slots__ = ("_closed", "_socket")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)  # the task that uses it waits in trio
        self._socket = connected
        self._closed = False

    async def send(self, data: bytes) -> None:
        sent = 0
        while True:
            try:
                sent += self._socket.send(memoryview(data)[sent:] if sent else data)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            if sent == len(data):
                return

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Send what the socket accepts now, and return how many bytes that was."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    async def wait_writable(self) -> None:
        """Wait until the socket may accept bytes again."""
        await trio.lowlevel.wait_writable(self._socket)

    async def receive(self) -> bytes:
        """Received bytes; empty at the end of the stream."""
        while True:
            # The peer hardly ever answers within the same step, so trying first costs more than it saves.
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(CHUNK)
            except BlockingIOError:
                continue

    async def wait_readable(self) -> None:
        """Wait until bytes or the end of the stream can be received."""
        await trio.lowlevel.wait_readable(self._socket)

    def is_quiet(self) -> bool:
        """True if the peer neither sent anything nor closed, as required of an idle connection."""
        return not self._closed and _is_quiet(self._socket)

    def close(self) -> None:
        """Close without waiting; it may be called twice."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def reset(self) -> None:
        """Close with a reset in place of an end of the stream."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close()


class TlsWire:
    """A connection over TLS."""

    __slots__ = ("_socket", "_stream")

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._socket = stream.transport_stream.socket

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _lost(error) from error

    async def receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(CHUNK))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _lost(error) from error

    async def wait_readable(self) -> None:
        await trio.lowlevel.wait_readable(self._socket)

    def is_quiet(self) -> bool:
        # -1 stands for a closed descriptor.
        number = self._socket.fileno()
        if number < 0:
            return False
        borrowed = socket.socket(fileno=number)
        try:
            return _is_quiet(borrowed)
        finally:
            borrowed.detach()

    def close(self) -> None:
        # Without close_notify: that would wait for the network, and a whole message does not need it.
        self._socket.close()


Wire: TypeAlias = SocketWire | TlsWire


def _lost(error: Exception) -> ConnectionResetError:
    return ConnectionResetError(f"the connection was lost ({error.__cause__ or error})")


# Flags of an enumeration are slow to combine, and every call checks.
_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)


def _is_quiet(connected: socket.socket) -> bool:
    try:
        connected.recv(1, _PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


async def open_wire(
    stream: trio.SocketStream,
    context: ssl.SSLContext | None,
    *,
    server_hostname: str | None = None,
    server_side: bool = False,
) -> Wire:
    """Take over a connection; with a context, after a TLS handshake. If that fails, the caller closes the socket."""
    if context is None:
        return SocketWire(socket.socket(fileno=stream.socket.detach()))
    tls = trio.SSLStream(
        stream, context, server_hostname=server_hostname, server_side=server_side, https_compatible=True
    )
    try:
        await tls.do_handshake()
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise ConnectionResetError("the connection was lost in the TLS handshake") from error
    return TlsWire(tls)
