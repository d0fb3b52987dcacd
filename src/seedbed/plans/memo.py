"""Identical reads within a request happen once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import trio

from ..embed import anywhere
from .slices import SLICE_ROWS, slices

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
    """Reads that are under way. When they end their keys are known, or absent if they failed or were cancelled."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done: trio.Event | None = None  # made for the first who waits, which is nearly always nobody

    async def wait(self) -> None:
        """Wait until they end."""
        if self._done is None:
            self._done = trio.Event()
        await self._done.wait()

    def finish(self) -> None:
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
    if len(keys) <= SLICE_ROWS:
        return await _read_slice(known, keys, read)
    answers: list[Any] = []
    for part in slices(keys):
        answers += await _read_slice(known, part, read)
        await trio.lowlevel.checkpoint()
    return answers


async def _read_slice(
    known: dict[str, Any], keys: Sequence[str], read: Callable[[Sequence[str]], Awaitable[list[Any]]]
) -> list[Any]:
    # What another node reads is waited for, and looked for again each time that something may have changed: if that
    # node fails or is cancelled, the keys are absent and the first who finds them so reads them. Its error is its own,
    # since its policy may let the request go on.
    while True:
        missing = dict.fromkeys(keys) if not known else {key: None for key in keys if key not in known}
        if missing:
            answers = await _read_missing(known, list(missing), read)
            if len(missing) == len(keys):
                return answers
            continue
        waiting = next((found for key in keys if type(found := known[key]) is _Pending), None)
        if waiting is None:
            return [known[key] for key in keys]
        await waiting.wait()


async def _read_missing(
    known: dict[str, Any], missing: list[str], read: Callable[[Sequence[str]], Awaitable[list[Any]]]
) -> list[Any]:
    pending = _Pending()
    known.update(dict.fromkeys(missing, pending))
    try:
        answers = await read(missing)
        # Here too nothing may stay pending: whoever finds it so would wait, in vain and without end.
        known.update(zip(missing, answers, strict=True))
    except BaseException:
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
