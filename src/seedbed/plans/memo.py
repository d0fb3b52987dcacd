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
    """A read that is under way; `error` is set if it failed, and nothing if it was cancelled."""

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: EndpointUnavailable | None = None


class OnceEndpoint:
    """An endpoint as one request sees it: what it has read it does not read again."""

    def __init__(self, endpoint: RedisReads) -> None:
        self._endpoint = endpoint
        # What was read, or is being read, by command and arguments; changed by the tasks of the request only.
        self._known: dict[object, Any] = {}

    @anywhere
    async def hgetall(self, key: str) -> dict[str, str]:
        endpoint = self._endpoint

        async def read(_missing: Sequence[str]) -> list[dict[str, str]]:
            return [await endpoint.hgetall(key)]

        return (await self._read([key], [key], read))[0]  # type: ignore[no-any-return]

    @anywhere
    async def lrange(self, key: str, start: int, stop: int) -> list[str]:
        endpoint = self._endpoint

        async def read(_missing: Sequence[str]) -> list[list[str]]:
            return [await endpoint.lrange(key, start, stop)]

        return (await self._read([key], [(key, start, stop)], read))[0]  # type: ignore[no-any-return]

    @anywhere
    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        return await self._read(keys, keys, self._endpoint.hgetall_many)

    @anywhere
    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        endpoint = self._endpoint

        async def read(missing: Sequence[str]) -> list[list[str]]:
            return await endpoint.lrange_many(missing, start, stop)

        return await self._read(keys, [(key, start, stop) for key in keys], read)

    async def _read(
        self, keys: Sequence[str], reads: Sequence[object], read: Callable[[Sequence[str]], Awaitable[list[Any]]]
    ) -> list[Any]:
        known = self._known
        while True:
            missing = {one: key for one, key in zip(reads, keys, strict=True) if one not in known}
            if missing:
                answers = await self._read_missing(missing, read)
                if len(missing) == len(reads):
                    return answers
            waiting = next((found for one in reads if type(found := known.get(one)) is _Pending), None)
            if waiting is not None:
                await waiting.done.wait()
                if waiting.error is not None:
                    raise EndpointUnavailable(waiting.error.message) from waiting.error
                continue  # it is known now, or its reader was cancelled and it is for us to read
            return [known[one] for one in reads]

    async def _read_missing(
        self, missing: dict[object, str], read: Callable[[Sequence[str]], Awaitable[list[Any]]]
    ) -> list[Any]:
        pending = _Pending()
        known = self._known
        known.update(dict.fromkeys(missing, pending))
        try:
            answers = await read(list(missing.values()))
        except BaseException as error:
            if isinstance(error, EndpointUnavailable):
                pending.error = error
            for one in missing:
                del known[one]
            raise
        else:
            known.update(zip(missing, answers, strict=True))
            return answers
        finally:
            pending.done.set()


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
