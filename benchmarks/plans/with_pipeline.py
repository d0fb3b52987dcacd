"""The reads of the plan and nothing else: hiredis on a blocking socket, a pipeline for each round of reads."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import hiredis

from .work import FANOUT, Meter, given_load, tell, user_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .work import Load, Rate


class Pipeline:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._reader = hiredis.Reader(encoding="utf-8", notEnoughData=...)

    def read(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands together and wait for all replies."""
        self._connection.sendall(b"".join(hiredis.pack_command(command) for command in commands))
        replies = []
        for _ in commands:
            while (reply := self._reader.gets()) is ...:
                self._reader.feed(self._connection.recv(1 << 16))
            replies.append(reply)
        return replies


def read(pipeline: Pipeline, user_id: int) -> int:
    """What one request reads; returns the number of media."""
    names = ("follow", "recommendation")
    last = str(FANOUT - 1)
    pipeline.read([("HGETALL", f"user:{user_id}")])
    lists = pipeline.read([("LRANGE", f"{name}:{user_id}", "0", last) for name in names])
    users = [each for ids in lists for each in ids]
    pipeline.read([("HGETALL", f"user:{each}") for each in users])
    return sum(map(len, pipeline.read([("LRANGE", f"media:{each}", "0", last) for each in users])))


def run(load: Load) -> Rate:
    """One request after the other: there is nothing that could overlap."""
    pipeline = Pipeline(load.port)
    found = [read(pipeline, user_of(number)) for number in range(20)]
    assert found == [2 * FANOUT * FANOUT] * len(found)
    meter = Meter(load.requests)
    for number in range(load.requests):
        meter.time(lambda number=number: read(pipeline, user_of(number)))
    return meter.rate()


if __name__ == "__main__":
    tell(run(given_load()))
