"""A stand-in for Redis inside the process that answers from a seed: for machines without one and for virtual time."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import trio

from ...errors import ConfigError, EndpointUnavailable, NodeFailed
from .statistics import EndpointStatistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model import Endpoint

Stored: TypeAlias = dict[str, str] | list[str] | str

_LONGEST_INT = 1 << 63


def read_seed(path: str | Path) -> dict[str, Stored]:
    """Read what an in-memory endpoint holds from a JSON or, if its name ends so, TOML file.

    The file maps keys to hashes (objects), lists (arrays) or strings, of strings or numbers:
    `{"user:1": {"country": "NO"}, "follow:1": [2, 3]}`. Raises ConfigError if it does not.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"the seed file {str(path)!r} cannot be read: {error}") from error
    return check_seed(data, f"the seed file {str(path)!r}")


def check_seed(data: object, where: str) -> dict[str, Stored]:
    """What a server would hold after it was given `data`; raises ConfigError for what it could not hold."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must map keys to hashes, lists and strings, and is of type {type(data).__name__}")
    stored: dict[str, Stored] = {}
    for key, value in data.items():
        place = f"{where}, key {key!r}"
        if isinstance(value, Mapping):
            found: Stored = {_text(field, place): _text(each, place) for field, each in value.items()}
        elif isinstance(value, list | tuple):
            found = [_text(each, place) for each in value]
        else:
            found = _text(value, place)
        # As in Redis, an empty hash or list is none.
        if found or isinstance(found, str):
            stored[_text(key, where)] = found
    return stored


def _text(value: object, place: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{place}: expected a string or a number, found {value!r:.80}")
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{place}: {error}") from None
    return text


class MemoryEndpoint:
    """Answers as a Redis with the same data would, after `latency` seconds (of trio's clock) for each command.

    Commands of one call, and of several, are in flight together, up to the policy's `max_inflight`.
    """

    def __init__(self, endpoint: Endpoint, stored: Mapping[str, Stored], *, latency: float = 0.0) -> None:
        self._endpoint = endpoint
        self._stored = stored
        self._latency = latency
        self._places = trio.CapacityLimiter(endpoint.policy.max_inflight)
        # All changed by `_take_time` and `_wrong`, in the loop's thread.
        self._waiting = 0
        self._sent = 0
        self._sends = 0
        self._dropped = 0
        self._errors = 0
        self._closed = False

    def statistics(self) -> EndpointStatistics:
        """Count what happens and what has happened."""
        return EndpointStatistics(
            connected=not self._closed,
            in_flight=self._places.borrowed_tokens,
            waiting=self._waiting,
            sent=self._sent,
            sends=self._sends,
            dropped=self._dropped,
            errors=self._errors,
            reconnects=0,
        )

    async def run(self) -> None:
        """Wait to be cancelled: calls fail from then on, as those of a server do."""
        try:
            await trio.sleep_forever()
        finally:
            self._closed = True

    async def ping(self) -> None:
        """Return, since the server answers."""
        await self._take_time(1)

    async def hgetall(self, key: str) -> dict[str, str]:
        """The fields of a hash; empty if there is no such key."""
        await self._take_time(1)
        return self._hash(key)

    async def lrange(self, key: str, start: int, stop: int) -> list[str]:
        """The elements of a list from `start` to `stop`, both included; negative ones count from its end."""
        await self._take_time(1)
        return self._range(key, start, stop)

    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        """What `hgetall` gives for each of the keys, in their order."""
        await self._take_time(len(keys))
        return [self._hash(key) for key in keys]

    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        """What `lrange` gives for each of the keys, in their order."""
        await self._take_time(len(keys))
        return [self._range(key, start, stop) for key in keys]

    def _hash(self, key: str) -> dict[str, str]:
        found = self._stored.get(key, {})
        if not isinstance(found, dict):
            raise self._wrong("HGETALL", key, "WRONGTYPE Operation against a key holding the wrong kind of value")
        return found.copy()

    def _range(self, key: str, start: int, stop: int) -> list[str]:
        # In the order in which Redis looks at these.
        if not (-_LONGEST_INT <= start < _LONGEST_INT and -_LONGEST_INT <= stop < _LONGEST_INT):
            raise self._wrong("LRANGE", key, "ERR value is not an integer or out of range")
        found = self._stored.get(key, [])
        if not isinstance(found, list):
            raise self._wrong("LRANGE", key, "WRONGTYPE Operation against a key holding the wrong kind of value")
        first = start if start >= 0 else max(0, start + len(found))
        last = stop if stop >= 0 else stop + len(found)
        return found[first : last + 1] if last >= 0 else []

    def _wrong(self, command: str, key: str, text: str) -> NodeFailed:
        self._errors += 1
        return NodeFailed(f"endpoint {self._endpoint.id!r}, key {key!r}: {command} failed: {text}")

    async def _take_time(self, commands: int) -> None:
        """Be in flight with so many commands, as many at a time as there are places."""
        if self._closed:
            raise self._unavailable("was closed")
        if not self._latency:
            await trio.lowlevel.checkpoint()
            self._sent += commands
            self._sends += bool(commands)
            return
        while commands:
            borrowers = await self._take_places(commands)
            commands -= len(borrowers)
            try:
                await self._wait(len(borrowers))
            finally:
                for borrower in borrowers:
                    self._places.release_on_behalf_of(borrower)

    async def _take_places(self, wanted: int) -> list[object]:
        borrowers = [object()]
        self._waiting += 1
        try:
            await self._places.acquire_on_behalf_of(borrowers[0])
        finally:
            self._waiting -= 1
        while len(borrowers) < min(wanted, self._places.total_tokens):
            another = object()
            try:
                self._places.acquire_on_behalf_of_nowait(another)
            except trio.WouldBlock:
                break
            borrowers.append(another)
        return borrowers

    async def _wait(self, commands: int) -> None:
        self._sent += commands
        self._sends += 1
        timeout = self._endpoint.policy.request_timeout_ms
        if self._latency > timeout / 1000:
            await trio.sleep(timeout / 1000)
            self._errors += 1
            self._dropped += commands
            raise self._unavailable(f"did not answer within {timeout} ms")
        await trio.sleep(self._latency)

    def _unavailable(self, what: str) -> EndpointUnavailable:
        return EndpointUnavailable(f"endpoint {self._endpoint.id!r} (memory) {what}")
