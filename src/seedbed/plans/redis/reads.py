"""What ops read from an endpoint of kind redis, and an endpoint as one request sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs
import trio

from ...runtime.asyncio import anywhere
from ..rowset import slices

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Read = Callable[[Sequence[str]], Awaitable[list[Any]]]
    Record = Callable[[str, int, float], None]  # the command, the number of keys, when it began


class RedisReads(Protocol):
    """What ops read from an endpoint of kind redis. A key that does not exist is an empty hash and an empty list.

    Raises EndpointUnavailable if there is no answer, and NodeFailed for an answer that is an error; neither names a
    node.
    """

    async def hgetall(self, key: str) -> dict[str, str]:
        return (await self.hgetall_many([key]))[0]

    async def lrange(self, key: str, start: int, stop: int) -> list[str]:
        """The elements of a list from `start` to `stop`, both included; negative ones count from its end."""
        return (await self.lrange_many([key], start, stop))[0]

    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        """The result of `hgetall` for each of the keys, in their order."""
        ...

    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        """The result of `lrange` for each of the keys, in their order."""
        ...


class RedisEndpoint(RedisReads, Protocol):
    """An endpoint of kind redis, as an engine has it."""

    async def run(self) -> None:
        """Serve calls until cancelled; then they fail."""

    async def ping(self) -> None:
        """Return if the server answers."""

    def statistics(self) -> EndpointStatistics:
        """A snapshot of the counts."""
        ...


class EndpointSource(Protocol):
    """Endpoints by their ids."""

    def get(self, endpoint_id: str) -> Any: ...


@attrs.frozen(kw_only=True)
class EndpointStatistics:
    """Counts of one endpoint; `in_flight` and `waiting` are of this instant, all others since it was opened."""

    connected: bool
    connections: int = 0  # that are open
    in_flight: int  # commands in the slots of connections: sent and not answered, those of cancelled callers too
    waiting: int  # calls of which at least one command waits for a slot or for the connection
    sent: int  # commands
    sends: int  # writes to the connection; many commands go out in one
    dropped: int  # replies that came after their caller had been cancelled, had timed out or had failed
    errors: int  # calls that ended in an error of the endpoint
    reconnects: int  # connections that replaced an earlier one
    redirects: int = 0  # commands that a node of a cluster sent to another one


class OnceEndpoint(RedisReads):
    """An endpoint as one request sees it: identical reads within the request happen once."""

    def __init__(self, endpoint: RedisReads, *, record: Record | None = None) -> None:
        self._endpoint = endpoint
        self._record = record  # called with what was read from the endpoint itself
        # By key, and for lists by range: the answer, or an event that is set when a read in progress ends. Changed by
        # the tasks of the request only.
        self._hashes: dict[str, Any] = {}
        self._lists: dict[tuple[int, int], dict[str, Any]] = {}

    @anywhere
    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        return await _read(self._hashes, keys, self._recorded("HGETALL", self._endpoint.hgetall_many))

    @anywhere
    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        endpoint, known = self._endpoint, self._lists.setdefault((start, stop), {})
        read = self._recorded("LRANGE", lambda missing: endpoint.lrange_many(missing, start, stop))
        return await _read(known, keys, read)

    def _recorded(self, command: str, read: Read) -> Read:
        record = self._record
        if record is None:
            return read

        async def recorded(keys: Sequence[str]) -> list[Any]:
            began = trio.current_time()
            try:
                return await read(keys)
            finally:
                record(command, len(keys), began)

        return recorded


async def _read(known: dict[str, Any], keys: Sequence[str], read: Read) -> list[Any]:
    answers: list[Any] = []
    for part in slices(keys):
        if answers:
            await trio.lowlevel.checkpoint()
        answers += await _read_slice(known, part, read)
    return answers


async def _read_slice(known: dict[str, Any], keys: Sequence[str], read: Read) -> list[Any]:
    # Keys that another node reads are waited for, and looked up again after each wait: if that node fails or is
    # cancelled, they are absent, and the first node that finds them so reads them. The error stays with the node that
    # raised it, since its policy may let the request continue.
    while True:
        if missing := list({key: None for key in keys if key not in known}):
            done = trio.Event()
            known.update(dict.fromkeys(missing, done))
            try:
                answers = await read(missing)
                known.update(zip(missing, answers, strict=True))
            except BaseException:
                for key in missing:
                    del known[key]
                raise
            finally:
                done.set()
            if len(missing) == len(keys):
                return answers
        elif waiting := [found for key in keys if type(found := known[key]) is trio.Event]:
            await waiting[0].wait()
        else:
            return [known[key] for key in keys]
