"""Endpoints with the host `memory`: a Redis stand-in inside the process, for machines without a server and for tests.

It waits on trio's clock only, so plans run against it in virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import trio

from ...errors import ConfigError, EndpointUnavailable, NodeFailed
from ..documents import Problems, read_document
from .reads import EndpointStatistics, RedisEndpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..documents import Source, Value
    from ..endpoint import Endpoint

Stored: TypeAlias = dict[str, str] | list[str] | str

_LONGEST_INT = 1 << 63
_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


def read_seed(source: Source, where: str) -> dict[str, Stored]:
    """Read what a server would hold from a mapping, or from a JSON or TOML file.

    It maps keys to hashes (objects), lists (arrays) or strings, of strings or numbers:
    `{"user:1": {"country": "NO"}, "follow:1": [2, 3]}`. Raises one ConfigError with everything that is wrong.
    """
    problems = Problems()
    try:
        document = read_document(source, problems)
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error}") from error
    stored: dict[str, Stored] = {}
    for key, value in document.entries().items():
        found: Stored
        if isinstance(value.raw, Mapping):
            found = {field: _text(each) for field, each in value.entries().items()}
        elif isinstance(value.raw, list | tuple):
            found = [_text(each) for each in value.items() or ()]
        else:
            found = _text(value)
        # As in Redis, a key with an empty hash or list does not exist.
        if found or isinstance(found, str):
            stored[key] = found
    if problems.found:
        raise ConfigError(problems.listing(f"{where} is"))
    return stored


def _text(value: Value) -> str:
    if isinstance(value.raw, str):
        return value.text() or ""
    number = value.number("a string or a number")
    return str(value.raw if isinstance(value.raw, int) and number is not None else number)  # all digits of an integer


class MemoryEndpoint(RedisEndpoint):
    """Answers as a Redis with the same data would, after `latency` seconds (of trio's clock) for each command.

    Commands of one call, and of several, are in flight together, up to the policy's `max_inflight`.
    """

    def __init__(self, endpoint: Endpoint, stored: Mapping[str, Stored], *, latency: float = 0.0) -> None:
        self._endpoint = endpoint
        self._stored = stored
        self._latency = latency
        self._slots = trio.Semaphore(endpoint.policy.max_inflight)
        # All changed by `_take_time` and `_wrong`, in the loop's thread.
        self._waiting = self._sent = self._sends = self._dropped = self._errors = 0
        self._closed = False

    def statistics(self) -> EndpointStatistics:
        return EndpointStatistics(
            connected=not self._closed,
            in_flight=self._endpoint.policy.max_inflight - self._slots.value,
            waiting=self._waiting,
            sent=self._sent,
            sends=self._sends,
            dropped=self._dropped,
            errors=self._errors,
            reconnects=0,
        )

    async def run(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._closed = True

    async def ping(self) -> None:
        await self._take_time(1)

    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        await self._take_time(len(keys))
        return [self._hash(key) for key in keys]

    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        await self._take_time(len(keys))
        return [self._range(key, start, stop) for key in keys]

    def _hash(self, key: str) -> dict[str, str]:
        found = self._stored.get(key, {})
        if not isinstance(found, dict):
            raise self._wrong("HGETALL", key, _WRONG_TYPE)
        return found.copy()

    def _range(self, key: str, start: int, stop: int) -> list[str]:
        # In the order in which Redis looks at these.
        if not (-_LONGEST_INT <= start < _LONGEST_INT and -_LONGEST_INT <= stop < _LONGEST_INT):
            raise self._wrong("LRANGE", key, "ERR value is not an integer or out of range")
        found = self._stored.get(key, [])
        if not isinstance(found, list):
            raise self._wrong("LRANGE", key, _WRONG_TYPE)
        first = start if start >= 0 else max(0, start + len(found))
        last = stop if stop >= 0 else stop + len(found)
        return found[first : last + 1] if last >= 0 else []

    def _wrong(self, command: str, key: str, text: str) -> NodeFailed:
        self._errors += 1
        return NodeFailed(f"endpoint {self._endpoint.id!r}, key {key!r}: {command} failed: {text}")

    async def _take_time(self, commands: int) -> None:
        """Be in flight with that many commands, as many at a time as there are slots."""
        if self._closed:
            raise self._unavailable("was closed")
        if not self._latency:
            await trio.lowlevel.checkpoint()
            self._sent += commands
            self._sends += bool(commands)
            return
        timeout = self._endpoint.policy.request_timeout_ms
        while commands:
            self._waiting += 1
            try:
                await self._slots.acquire()
            finally:
                self._waiting -= 1
            together = min(commands, 1 + self._slots.value)
            for _ in range(together - 1):
                self._slots.acquire_nowait()
            commands -= together
            try:
                self._sent += together
                self._sends += 1
                await trio.sleep(min(self._latency, timeout / 1000))
                if self._latency > timeout / 1000:
                    self._errors += 1
                    self._dropped += together
                    raise self._unavailable(f"did not answer within {timeout} ms")
            finally:
                for _ in range(together):
                    self._slots.release()

    def _unavailable(self, what: str) -> EndpointUnavailable:
        return EndpointUnavailable(f"endpoint {self._endpoint.id!r} (memory) {what}")
