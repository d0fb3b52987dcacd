"""All endpoints of an engine, opened together and shared by its requests; and their view by one request.

Host `memory` is a Redis stand-in inside the process: for machines without a server and for virtual time.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs
import trio

from ...errors import ConfigError, EndpointUnavailable, NodeFailed
from ...runtime.asyncio import anywhere
from ...runtime.tasks import open_hidden_nursery
from ..rowset import slices
from .pipeline import EndpointStatistics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from ..registries import Endpoint, Registries
    from .client import RedisClient


class RedisReads(Protocol):
    """What ops read from an endpoint of kind redis.

    Raises EndpointUnavailable if there is no answer, and NodeFailed for an answer that is an error; neither names a
    node. A key that does not exist is an empty hash and an empty list.
    """

    async def hgetall(self, key: str) -> dict[str, str]: ...
    async def lrange(self, key: str, start: int, stop: int) -> list[str]: ...
    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]: ...
    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]: ...


class RedisEndpoint(RedisReads, Protocol):
    """An endpoint of kind redis, as an engine has it."""

    async def ping(self) -> None: ...
    def statistics(self) -> EndpointStatistics: ...


class EndpointSource(Protocol):
    """Endpoints by their ids."""

    def get(self, endpoint_id: str) -> Any: ...


@attrs.frozen
class Endpoints:
    """The endpoints of an engine."""

    _redis: Mapping[str, RedisEndpoint]
    _described: Mapping[str, Endpoint] = attrs.field(factory=dict)

    def get(self, endpoint_id: str) -> Any:
        """The endpoint with this id: a `RedisEndpoint`.

        No op of the format uses servers of kind http. A user-defined op gets the `Endpoint` of the registries, with its
        address and policy.
        """
        found = self._redis.get(endpoint_id) or self._described.get(endpoint_id)
        if found is None:
            known = ", ".join(sorted([*self._redis, *self._described])) or "none"
            raise EndpointUnavailable(f"unknown endpoint {endpoint_id!r} (known: {known})")
        return found

    def statistics(self) -> dict[str, EndpointStatistics]:
        """A snapshot of each."""
        return {name: each.statistics() for name, each in self._redis.items()}


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
        self._slots = trio.CapacityLimiter(endpoint.policy.max_inflight)
        # All changed by `_take_time` and `_wrong`, in the loop's thread.
        self._waiting = 0
        self._sent = 0
        self._sends = 0
        self._dropped = 0
        self._errors = 0
        self._closed = False

    def statistics(self) -> EndpointStatistics:
        """A snapshot of the counts."""
        return EndpointStatistics(
            connected=not self._closed,
            in_flight=self._slots.borrowed_tokens,
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
        """Return, as a server that answers."""
        await self._take_time(1)

    async def hgetall(self, key: str) -> dict[str, str]:
        """The fields of a hash; empty if the key does not exist."""
        return (await self.hgetall_many([key]))[0]

    async def lrange(self, key: str, start: int, stop: int) -> list[str]:
        """The elements of a list from `start` to `stop`, both included; negative ones count from its end."""
        return (await self.lrange_many([key], start, stop))[0]

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
        """Be in flight with that many commands, as many at a time as there are slots."""
        if self._closed:
            raise self._unavailable("was closed")
        if not self._latency:
            await trio.lowlevel.checkpoint()
            self._sent += commands
            self._sends += bool(commands)
            return
        while commands:
            holders = [object()]
            self._waiting += 1
            try:
                await self._slots.acquire_on_behalf_of(holders[0])
            finally:
                self._waiting -= 1
            for _ in range(min(commands - 1, int(self._slots.available_tokens))):
                holders.append(object())
                self._slots.acquire_on_behalf_of_nowait(holders[-1])
            commands -= len(holders)
            try:
                await self._wait(len(holders))
            finally:
                for holder in holders:
                    self._slots.release_on_behalf_of(holder)

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


@asynccontextmanager
async def open_endpoints(
    registries: Registries, *, seeds: Mapping[str, Mapping[str, object]] | None = None, memory_latency: float = 0.0
) -> AsyncIterator[Endpoints]:
    """Open the endpoints of the registries; each connects on its first call.

    `seeds` are the contents of in-memory endpoints (host `memory`) by endpoint id, in place of their seed file;
    they answer after `memory_latency` seconds. Leaving closes all; calls that are still waiting then fail.
    """
    redis: dict[str, RedisClient | MemoryEndpoint] = {
        name: _open_redis(endpoint, seeds or {}, memory_latency)
        for name, endpoint in registries.endpoints.items()
        if endpoint.kind == "redis"
    }
    described = {name: endpoint for name, endpoint in registries.endpoints.items() if name not in redis}
    async with open_hidden_nursery("the endpoints are closed") as nursery:
        for each in redis.values():
            nursery.start_soon(each.run)
        yield Endpoints(redis, described)


def _open_redis(
    endpoint: Endpoint, seeds: Mapping[str, Mapping[str, object]], memory_latency: float
) -> RedisClient | MemoryEndpoint:
    if endpoint.host == "memory":
        if endpoint.id in seeds:
            stored = check_seed(seeds[endpoint.id], f"the seed of endpoint {endpoint.id!r}")
        else:
            stored = read_seed(endpoint.seed_file) if endpoint.seed_file is not None else {}
        return MemoryEndpoint(endpoint, stored, latency=memory_latency)
    # Its parser comes with an extra, which endpoints in memory do not need.
    try:
        from .client import RedisClient  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"endpoint {endpoint.id!r} needs hiredis, which is not installed ({error}): install seedbed[redis]"
        ) from error
    return RedisClient(endpoint)


class RequestEndpoints:
    """The endpoints of one request."""

    __slots__ = ("_once", "_source")

    def __init__(self, source: EndpointSource) -> None:
        self._source = source
        self._once: dict[str, Any] = {}

    def get(self, endpoint_id: str) -> Any:
        """The endpoint of that id; of one that reads as Redis does, identical reads happen once."""
        found = self._once.get(endpoint_id)
        if found is None:
            endpoint = self._source.get(endpoint_id)
            found = OnceEndpoint(endpoint) if hasattr(endpoint, "hgetall_many") else endpoint
            self._once[endpoint_id] = found
        return found


class OnceEndpoint:
    """An endpoint as one request sees it: identical reads within the request happen once."""

    def __init__(self, endpoint: RedisReads) -> None:
        self._endpoint = endpoint
        # By key, and for lists by range: the answer, or an event that is set when a read in progress ends. Changed by
        # the tasks of the request only.
        self._hashes: dict[str, Any] = {}
        self._lists: dict[tuple[int, int], dict[str, Any]] = {}

    @anywhere
    async def hgetall(self, key: str) -> dict[str, str]:
        return (await self.hgetall_many([key]))[0]

    @anywhere
    async def lrange(self, key: str, start: int, stop: int) -> list[str]:
        return (await self.lrange_many([key], start, stop))[0]

    @anywhere
    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        return await _read(self._hashes, keys, self._endpoint.hgetall_many)

    @anywhere
    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        endpoint, known = self._endpoint, self._lists.setdefault((start, stop), {})
        return await _read(known, keys, lambda missing: endpoint.lrange_many(missing, start, stop))


async def _read(
    known: dict[str, Any], keys: Sequence[str], read: Callable[[Sequence[str]], Awaitable[list[Any]]]
) -> list[Any]:
    answers: list[Any] = []
    for part in slices(keys):
        if answers:
            await trio.lowlevel.checkpoint()
        answers += await _read_slice(known, part, read)
    return answers


async def _read_slice(
    known: dict[str, Any], keys: Sequence[str], read: Callable[[Sequence[str]], Awaitable[list[Any]]]
) -> list[Any]:
    # Keys that another node reads are waited for, and looked up again after each wait: if that node fails or is
    # cancelled, they are absent, and the first node that finds them so reads them. The error stays with the node that
    # raised it, since its policy may let the request continue.
    while True:
        missing = list({key: None for key in keys if key not in known})
        if missing:
            answers = await _read_missing(known, missing, read)
            if len(missing) == len(keys):
                return answers
            continue
        waiting = next((found for key in keys if type(found := known[key]) is trio.Event), None)
        if waiting is None:
            return [known[key] for key in keys]
        await waiting.wait()


async def _read_missing(
    known: dict[str, Any], missing: list[str], read: Callable[[Sequence[str]], Awaitable[list[Any]]]
) -> list[Any]:
    done = trio.Event()
    known.update(dict.fromkeys(missing, done))
    try:
        answers = await read(missing)
        known.update(zip(missing, answers, strict=True))
    except BaseException:
        for key in missing:
            del known[key]
        raise
    else:
        return answers
    finally:
        done.set()
