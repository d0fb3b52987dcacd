"""Identical reads within a request happen once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import trio

from ..embed import anywhere
from ..errors import EndpointUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


class RedisReads(Protocol):
    """What ops read from an endpoint of kind redis."""

    async def hgetall(self, key: str) -> dict[str, str]: ...
    async def lrange(self, key: str, start: int, stop: int) -> list[str]: ...
    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]: ...
    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]: ...


class EndpointSource(Protocol):
    """Where endpoints are had by id."""

    def get(self, endpoint_id: str) -> Any: ...


class _Pending:
    """Reads that are under way; `error` is set if they failed, and nothing if they were cancelled."""

    __slots__ = ("_done", "_over", "error")

    def __init__(self) -> None:
        self._done: trio.Event | None = None  # made for the first who waits, which is nearly always nobody
        self._over = False
        self.error: EndpointUnavailable | None = None

    async def wait(self) -> None:
        """Wait until they are over."""
        if self._over:
            return
        if self._done is None:
            self._done = trio.Event()
        await self._done.wait()

    def finish(self) -> None:
        self._over = True
        if self._done is not None:
            self._done.set()


class OnceEndpoint:
    """An endpoint as one request sees it: what it has read it does not read again."""

    def __init__(self, endpoint: RedisReads) -> None:
        self._endpoint = endpoint
        # What was read, or is being read, by key; of lists for each range. Changed by the tasks of the request only.
        self._hashes: dict[str, Any] = {}
        self._lists: dict[tuple[int, int], dict[str, Any]] = {}

    @anywhere
    async def hgetall(self, key: str) -> dict[str, str]:
        endpoint = self._endpoint

        async def read(_missing: Sequence[str]) -> list[dict[str, str]]:
            return [await endpoint.hgetall(key)]

        return (await _read(self._hashes, [key], read))[0]  # type: ignore[no-any-return]

    @anywhere
    async def lrange(self, key: str, start: int, stop: int) -> list[str]:
        endpoint = self._endpoint

        async def read(_missing: Sequence[str]) -> list[list[str]]:
            return [await endpoint.lrange(key, start, stop)]

        return (await _read(self._range(start, stop), [key], read))[0]  # type: ignore[no-any-return]

    @anywhere
    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        return await _read(self._hashes, keys, self._endpoint.hgetall_many)

    @anywhere
    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        endpoint = self._endpoint
        return await _read(self._range(start, stop), keys, lambda missing: endpoint.lrange_many(missing, start, stop))

    def _range(self, start: int, stop: int) -> dict[str, Any]:
        known = self._lists.get((start, stop))
        if known is None:
            known = self._lists[start, stop] = {}
        return known


async def _read(
    known: dict[str, Any], keys: Sequence[str], read: Callable[[Sequence[str]], Awaitable[list[Any]]]
) -> list[Any]:
    while True:
        missing = dict.fromkeys(keys) if not known else {key: None for key in keys if key not in known}
        if missing:
            answers = await _read_missing(known, list(missing), read)
            if len(missing) == len(keys):
                return answers
        waiting = next((found for key in keys if type(found := known.get(key)) is _Pending), None)
        if waiting is not None:
            await waiting.wait()
            if waiting.error is not None:
                raise EndpointUnavailable(waiting.error.message) from waiting.error
            continue  # it is known now, or its reader was cancelled and it is for us to read
        return [known[key] for key in keys]


async def _read_missing(
    known: dict[str, Any], missing: list[str], read: Callable[[Sequence[str]], Awaitable[list[Any]]]
) -> list[Any]:
    pending = _Pending()
    known.update(dict.fromkeys(missing, pending))
    try:
        answers = await read(missing)
        # Here too nothing may stay pending: whoever finds it so would wait, in vain and without end.
        known.update(zip(missing, answers, strict=True))
    except BaseException as error:
        if isinstance(error, EndpointUnavailable):
            pending.error = error
        for key in missing:
            del known[key]
        raise
    else:
        return answers
    finally:
        pending.finish()


class RequestEndpoints:
    """The endpoints of one request."""

    __slots__ = ("_once", "_source")

    def __init__(self, source: EndpointSource) -> None:
        self._source = source
        self._once: dict[str, Any] = {}

    def get(self, endpoint_id: str) -> Any:
        """The endpoint of that id; one that reads as Redis does is asked each thing once."""
        found = self._once.get(endpoint_id)
        if found is None:
            endpoint = self._source.get(endpoint_id)
            found = OnceEndpoint(endpoint) if hasattr(endpoint, "hgetall_many") else endpoint
            self._once[endpoint_id] = found
        return found
