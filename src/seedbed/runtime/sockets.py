"""Bytes to and from a peer, in the clear or over TLS, for the HTTP client, the Redis client and the test server.

A wire is one connection, which one task at a time reads and one writes; a lost peer is an `OSError`, also with TLS. The
socket is used directly, without `trio.SocketStream` and `trio.SSLStream`: nothing needs a lock, and a call costs one
trip through the scheduler in place of three.
"""

from __future__ import annotations

import socket
import ssl

import trio

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


class TlsWire(SocketWire):
    """A connection over TLS. Records are encrypted and decrypted in memory; the socket is used as in the clear."""

    __slots__ = ("_accepted", "_incoming", "_outgoing", "_rest", "_tls")

    def __init__(
        self, connected: socket.socket, context: ssl.SSLContext, *, server_hostname: str | None, server_side: bool
    ) -> None:
        super().__init__(connected)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._rest: bytes | memoryview = b""  # encrypted, and not accepted by the socket yet
        self._accepted = 0  # bytes of the caller whose encrypted form is in `_rest`

    async def handshake(self) -> None:
        """Agree on keys and check certificates; raises OSError if that fails."""
        while True:
            try:
                self._tls.do_handshake()
                return await self._flush()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._read_socket()
            except ssl.SSLEOFError as error:
                raise ConnectionResetError("the connection was lost in the TLS handshake") from error
            except ssl.SSLError:
                self._flush_nowait()  # the alert that says why
                raise

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            sent = self.send_nowait(view)
            if not sent:
                await self.wait_writable()
            view = view[sent:]

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Send bytes and return how many were sent. Those that were not must be passed again, unchanged."""
        # As OpenSSL's own sockets: what is encrypted cannot be taken back, so it counts once the socket has it.
        if not self._accepted:
            self._accepted = self._tls.write(data)
        if not self._flush_nowait():
            return 0
        sent, self._accepted = self._accepted, 0
        return sent

    async def receive(self) -> bytes:
        while True:
            try:
                return self._tls.read(CHUNK)
            except ssl.SSLWantReadError:
                self._flush_nowait()  # a new key may need an answer
            except ssl.SSLEOFError:  # many peers close without close_notify
                return b""
            await self._read_socket()

    async def wait_readable(self) -> None:
        if not self._tls.pending():
            await super().wait_readable()

    async def _read_socket(self) -> None:
        if data := await super().receive():
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        while not self._flush_nowait():
            await self.wait_writable()

    def _flush_nowait(self) -> bool:
        """Pass encrypted bytes to the socket; True if it accepted all."""
        if self._outgoing.pending:
            fresh = self._outgoing.read()
            self._rest = b"".join((self._rest, fresh)) if self._rest else fresh
        if self._rest:
            self._rest = memoryview(self._rest)[super().send_nowait(self._rest) :]
        return not self._rest


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
) -> SocketWire:
    """Take over a connection; with a context, after a TLS handshake. It is closed if that fails."""
    connected = socket.socket(fileno=stream.socket.detach())
    if context is None:
        return SocketWire(connected)
    try:
        wire = TlsWire(connected, context, server_hostname=server_hostname, server_side=server_side)
        await wire.handshake()
    except BaseException:
        connected.close()
        raise
    return wire
