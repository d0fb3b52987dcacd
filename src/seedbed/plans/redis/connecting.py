"""Opening a connection to a Redis server as it is deployed: TCP, TLS, a user and password, a database number.

Passwords are read from the environment when an endpoint is opened, and live only in the commands of its `Connector`.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

import attrs
import hiredis
import trio

from ...errors import ConfigError
from ...runtime.sockets import open_wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ...runtime.sockets import SocketWire
    from ..endpoint import Endpoint, Tls

    Connect = Callable[[str, int], Awaitable[SocketWire]]

_HIDDEN = "***"


def encode(*words: str | bytes) -> bytes:
    """A command as Redis reads it."""
    encoded = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in encoded)


async def connect_tcp(host: str, port: int, context: ssl.SSLContext | None = None, name: str = "") -> SocketWire:
    """Connect to a server, with a context over TLS; raises OSError if that fails."""
    try:
        stream = await trio.open_tcp_stream(host, port)  # it sets TCP_NODELAY
        return await open_wire(stream, context, server_hostname=name or host)
    except (UnicodeError, OverflowError, ValueError) as error:
        raise OSError(f"{host!r}, port {port}, is no address: {error}") from None


@attrs.frozen(kw_only=True, repr=False)
class Connector:
    """Opens connections of one endpoint, logged in and in its database. Its representation hides the password."""

    tls: ssl.SSLContext | None
    tls_name: str  # that the certificate must have; the host if empty
    commands: tuple[tuple[str, bytes], ...]  # sent first, with their descriptions
    password: str

    async def __call__(self, host: str, port: int) -> SocketWire:
        """Connect to one of the endpoint's servers; raises OSError if that fails or the server rejects the login."""
        wire = await connect_tcp(host, port, self.tls, self.tls_name)
        if self.commands:
            try:
                await self._log_in(wire)
            except BaseException:
                wire.close()
                raise
        return wire

    async def _log_in(self, wire: SocketWire) -> None:
        await wire.send(b"".join(command for _, command in self.commands))
        reader = hiredis.Reader(encoding="utf-8", errors="replace", notEnoughData=...)
        for what, _ in self.commands:
            while (reply := _next(reader)) is ...:
                data = await wire.receive()
                if not data:
                    raise ConnectionError("the server closed the connection during the login")
                reader.feed(data)
            if reply != "OK":
                # A server, or what pretends to be one, could repeat what it was sent. Of a list Python would show the
                # password with its quotes and backslashes escaped, which is not found then.
                said = str(reply) if isinstance(reply, str | Exception) else type(reply).__name__
                said = said.replace(self.password, _HIDDEN) if self.password else said
                raise ConnectionRefusedError(f"the server rejected {what}: {said:.200}")


def _next(reader: hiredis.Reader) -> object:
    try:
        return reader.gets()
    except Exception as error:  # noqa: BLE001  whatever a server sends ends no more than its connection
        raise ConnectionError(f"a reply that cannot be read: {type(error).__name__} {error}") from None


def connector(endpoint: Endpoint) -> Connector:
    """How connections of an endpoint are opened. Raises ConfigError if the password or a certificate is missing."""
    commands: list[tuple[str, bytes]] = []
    password = ""
    if endpoint.password_env is not None:
        password = os.environ.get(endpoint.password_env, "")
        if not password:
            raise ConfigError(
                f"endpoint {endpoint.id!r}: the environment variable {endpoint.password_env} (password_env) is "
                f"{'empty' if endpoint.password_env in os.environ else 'not set'}; set it to the password"
            )
        user: Sequence[str] = () if endpoint.username is None else (endpoint.username,)
        whom = "the password" if endpoint.username is None else f"user {endpoint.username!r} with the password"
        commands.append((f"{whom} of {endpoint.password_env}", encode("AUTH", *user, password)))
    if endpoint.database:
        commands.append((f"database {endpoint.database}", encode("SELECT", str(endpoint.database))))
    tls = None if endpoint.tls is None else _context(endpoint.id, endpoint.tls)
    name = "" if endpoint.tls is None else endpoint.tls.server_name or ""
    return Connector(tls=tls, tls_name=name, commands=tuple(commands), password=password)


def _context(endpoint_id: str, tls: Tls) -> ssl.SSLContext:
    file, field = tls.ca_file, "ca_file"
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None:
            file, field = tls.cert_file, "cert_file, key_file"
            # Without an answer to its question OpenSSL would ask for the password of a key on the terminal.
            context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"endpoint {endpoint_id!r}: tls.{field} {file!r} cannot be used: {error}") from error
    return context


def _no_password() -> str:
    raise ValueError("the key is protected by a password, which is not supported: give a key without one")
