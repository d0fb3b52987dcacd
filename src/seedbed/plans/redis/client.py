"""A Redis client for trio: what plans read from an endpoint, on one server, several shards or a cluster.

docs/explanation/redis-client.md has the reasons.
"""

from __future__ import annotations

import itertools
import random
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import hiredis
import trio

from ...errors import EndpointUnavailable, NodeFailed
from ...runtime.policy import backoff_delay
from .cluster import Cluster
from .connecting import connector
from .link import Link, ask_one, ask_together
from .reads import EndpointStatistics, RedisEndpoint
from .routes import Ketama, by_server
from .server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ...errors import PlanError
    from ..endpoint import Endpoint
    from .connecting import Connect
    from .pipeline import Reply
    from .routes import Address

_PING: Final = b"*1\r\n$4\r\nPING\r\n"

# Errors about the server, its cluster or our account and not about the key: another server, or this one at another
# time, would answer.
_UNAVAILABLE = frozenset(
    {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "OOM"}
    | {"MOVED", "ASK", "NOAUTH", "WRONGPASS", "NOPERM", "DENIED"}
)
_TOO_MANY_CLIENTS = "ERR max number of clients reached"


class RedisClient(RedisEndpoint):
    """One Redis endpoint. `run` must be running for calls to be answered; the first call connects.

    Calls raise EndpointUnavailable if no server answers in time, and NodeFailed if it answered that the command does
    not fit the key (WRONGTYPE), or with text that is not UTF-8. A read that fails as EndpointUnavailable is sent again
    as often as the policy's `read_attempts` permit.
    """

    def __init__(self, endpoint: Endpoint, *, connect: Connect | None = None, rng: random.Random | None = None) -> None:
        self._endpoint = endpoint
        self._connect = connector(endpoint) if connect is None else connect
        self._rng = rng or random.Random()
        self._nursery: trio.Nursery | None = None
        self._errors = self._redirects = 0
        self._closed = False
        addresses = endpoint.shards or endpoint.cluster or ((endpoint.host, endpoint.port),)
        # Of a cluster, also those that it names later.
        self._servers: dict[Address, Server] = {each: self._new_server(each) for each in addresses}
        self._only = next(iter(self._servers.values())) if len(addresses) == 1 and not endpoint.cluster else None
        self._ketama = Ketama(endpoint.shards) if endpoint.shards else None
        self._cluster = Cluster(endpoint, self._server, self._retire, self._rng) if endpoint.cluster else None

    def _new_server(self, address: Address) -> Server:
        host, port = address
        policy = self._endpoint.policy
        return Server(
            lambda: Link(self._endpoint, host, port, connect=self._connect, rng=self._rng), policy.connections
        )

    def _server(self, address: Address) -> Server:
        """The server at an address; of a cluster, it may be new."""
        found = self._servers.get(address)
        if found is None:
            found = self._servers[address] = self._new_server(address)
            if self._nursery is not None:
                self._nursery.start_soon(found.run)
        return found

    def _retire(self, kept: Collection[Address]) -> None:
        """Close the connections to all servers but these; one that still answers is closed the next time."""
        for address, server in list(self._servers.items()):
            if address not in kept and server.is_idle:
                del self._servers[address]
                server.close()

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for server in self._servers.values():
                    nursery.start_soon(server.run)
                if self._cluster is not None:
                    nursery.start_soon(self._cluster.run)
        finally:
            self._closed = True
            self._nursery = None

    def statistics(self) -> EndpointStatistics:
        links = [link for server in self._servers.values() for link in server.links]
        pipelines = [link.pipeline for link in links]
        return EndpointStatistics(
            connected=any(link.is_connected for link in links),
            connections=sum(link.is_connected for link in links),
            in_flight=sum(each.in_flight for each in pipelines),
            waiting=sum(each.waiting for each in pipelines),
            sent=sum(each.sent for each in pipelines),
            sends=sum(link.sends for link in links),
            dropped=sum(each.dropped for each in pipelines),
            errors=self._errors + sum(link.errors for link in links),
            reconnects=sum(max(0, link.connects - 1) for link in links),
            redirects=0 if self._cluster is None else self._cluster.redirects,
        )

    async def ping(self) -> None:
        if self._cluster is not None:
            await self._cluster.ready()
        servers = list(self._servers.values()) if self._cluster is None else self._cluster.servers()
        for (reply,) in await ask_together([(server.pick(), (_PING,)) for server in servers]):
            if reply != "PONG":
                raise self._failure(reply, "PING", "")

    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        replies = await self._read(keys, [encode_hgetall(key) for key in keys], "HGETALL", are_hashes)
        return [dict(zip(fields := iter(reply), fields, strict=False)) for reply in replies]

    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        return await self._read(keys, [encode_lrange(key, start, stop) for key in keys], "LRANGE", are_lists)

    async def _read(
        self, keys: Sequence[str], commands: Sequence[bytes], name: str, fit: Callable[[list[Reply]], bool]
    ) -> list[list[str]]:
        if not keys:
            await trio.lowlevel.checkpoint()
            return []
        policy = self._endpoint.policy
        for attempt in itertools.count(1):
            try:
                replies: list[Any] = await self._ask(keys, commands)
                if fit(replies):
                    return replies
                at = next(at for at, reply in enumerate(replies) if not fit([reply]))
                raise self._failure(replies[at], name, keys[at])
            except EndpointUnavailable:
                if attempt >= policy.read_attempts or self._closed:
                    raise
            base, maximum = policy.read_backoff_ms / 1000, policy.read_backoff_max_ms / 1000
            await trio.sleep(backoff_delay(attempt, base, maximum, self._rng))
        raise AssertionError("unreachable")

    async def _ask(self, keys: Sequence[str], commands: Sequence[bytes]) -> list[Reply]:
        """The replies in the order of the keys: of one server fewer than keys if the last of them is an error."""
        if self._only is not None:
            return await ask_one(self._only.pick(), commands)
        if self._cluster is not None:
            return await self._cluster.ask(keys, commands)
        assert self._ketama is not None
        groups = by_server(keys, map(self._ketama.server_of, keys))
        parts = [(self._servers[each].pick(), [commands[at] for at in places]) for each, places in groups.items()]
        replies: list[Reply] = [None] * len(keys)
        for places, found in zip(groups.values(), await ask_together(parts, every_reply=True), strict=True):
            for at, reply in zip(places, found, strict=True):
                replies[at] = reply
        return replies

    def _failure(self, reply: Reply, command: str, key: str) -> PlanError:
        """The error for a reply that does not answer the command."""
        self._errors += 1
        kind: type[PlanError] = NodeFailed
        if isinstance(reply, hiredis.ReplyError):
            text = str(reply)
            what = f"failed: {text}"
            if text.partition(" ")[0] in _UNAVAILABLE or text.startswith(_TOO_MANY_CLIENTS):
                kind, what = EndpointUnavailable, f"was rejected: {text}"
        elif isinstance(reply, UnicodeDecodeError):
            what = f"found text that is not UTF-8: {reply}"
        else:
            what = f"was answered with {type(reply).__name__} {reply!r:.80}, which does not fit the command"
        return kind(f"endpoint {self._endpoint.id!r}, key {key!r}: {command} {what}")


def encode_hgetall(key: str) -> bytes:
    """`HGETALL key`."""
    name = key.encode()
    return b"*2\r\n$7\r\nHGETALL\r\n$%d\r\n%b\r\n" % (len(name), name)


def encode_lrange(key: str, start: int, stop: int) -> bytes:
    """`LRANGE key start stop`."""
    name, first, last = key.encode(), b"%d" % start, b"%d" % stop
    words = len(name), name, len(first), first, len(last), last
    return b"*4\r\n$6\r\nLRANGE\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % words


def are_lists(replies: list[Any]) -> TypeGuard[list[list[str]]]:
    """True if every reply is a list of strings, as LRANGE answers."""
    # There are hundreds per request: one check of all is faster than one of each (benchmarks/plans, "throughput").
    return set(map(type, replies)) <= {list} and set(map(type, chain.from_iterable(replies))) <= {str}


def are_hashes(replies: list[Any]) -> TypeGuard[list[list[str]]]:
    """True if every reply is a list of field names, each followed by its value, as HGETALL answers."""
    return are_lists(replies) and not any(len(reply) % 2 for reply in replies)
