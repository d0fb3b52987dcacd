from __future__ import annotations

import random
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from redis_servers import ScriptedServer, bulk, echo, redis_at
from trio.testing import MockClock, wait_all_tasks_blocked

from seedbed.errors import EndpointUnavailable, NodeFailed
from seedbed.plans.endpoint import EndpointPolicy
from seedbed.plans.redis import link as link_module
from seedbed.plans.redis.client import RedisClient
from seedbed.plans.redis.pipeline import TURN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

DEFAULT = EndpointPolicy()


@asynccontextmanager
async def scripted(
    policy: EndpointPolicy = DEFAULT,
    *,
    answer: Callable[[Sequence[str]], bytes | None] = echo,
    delay: Callable[[], float] = lambda: 0.0,
    cut: Callable[[bytes], list[bytes]] = lambda data: [data],
) -> AsyncIterator[tuple[RedisClient, ScriptedServer]]:
    """A client and its server, both closed at the end."""
    async with trio.open_nursery() as nursery:
        server = ScriptedServer(nursery, answer=answer, delay=delay, cut=cut)
        client = RedisClient(redis_at(6379, policy), connect=server.connect, rng=random.Random(1))
        nursery.start_soon(client.run)
        yield client, server
        nursery.cancel_scope.cancel()


async def failure(call: Callable[[], object], into: list[tuple[float, str]]) -> None:
    """Record when and how a call fails."""
    with pytest.raises(EndpointUnavailable) as raised:
        await call()  # type: ignore[misc]
    into.append((round(trio.current_time(), 6), raised.value.message))


@attrs.frozen
class Caller:
    """One caller of the property below; times are milliseconds."""

    start: int
    keys: int
    lists: bool
    cancel_after: int | None


callers = st.builds(
    Caller,
    start=st.integers(0, 20),
    keys=st.integers(0, 6),
    lists=st.booleans(),
    cancel_after=st.none() | st.integers(0, 15),
)


@given(
    st.lists(callers, min_size=1, max_size=12),
    st.integers(1, 8),
    st.lists(st.integers(0, 4), min_size=1),
    st.integers(5, 500),
    st.randoms(use_true_random=False),
)
def test_replies_reach_their_own_callers(
    everyone: list[Caller], max_inflight: int, delays: list[int], room: int, rng: random.Random
) -> None:
    """Whoever is cancelled whenever, all others get the answers to what they asked, within `max_inflight`.

    The server takes and gives as many bytes at a time as it pleases.
    """
    left = list(delays)

    def delay() -> float:
        left.append(left.pop(0))
        return left[-1] / 1000

    def cut(data: bytes) -> list[bytes]:
        at = rng.randrange(1, len(data))
        return [data[:at], data[at:]]

    async def ask(client: RedisClient, number: int, caller: Caller) -> None:
        await trio.sleep(caller.start / 1000)
        keys = [f"{number}:{each}" for each in range(caller.keys)]
        with trio.CancelScope() as scope:
            if caller.cancel_after is not None:
                scope.deadline = trio.current_time() + caller.cancel_after / 1000
            if caller.lists:
                assert await client.lrange_many(keys, 0, number) == [[key, "0", str(number)] for key in keys]
            else:
                assert await client.hgetall_many(keys) == [{"asked": key} for key in keys]
        assert caller.cancel_after is not None or not scope.cancelled_caught

    async def main() -> None:
        policy = EndpointPolicy(max_inflight=max_inflight, request_timeout_ms=10_000)
        async with scripted(policy, delay=delay, cut=cut) as (client, server):
            await client.ping()
            server.wires[0].room = room
            async with trio.open_nursery() as nursery:
                for number, caller in enumerate(everyone):
                    nursery.start_soon(ask, client, number, caller)
            assert await client.hgetall("last") == {"asked": "last"}
            statistics = client.statistics()
            assert (statistics.in_flight, statistics.waiting, statistics.errors) == (0, 0, 0)
            assert statistics.sent == len(server.received)
            assert server.most_outstanding <= max_inflight
            assert len(server.wires) == 1

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_callers_of_one_round_share_a_send(autojump_clock: MockClock) -> None:
    """The commands of a hundred callers in one round are written together, except the first: the server is idle."""
    async with scripted(EndpointPolicy(max_inflight=100)) as (client, server):
        await client.ping()

        async def ask(number: int) -> None:
            assert await client.hgetall(f"user:{number}") == {"asked": f"user:{number}"}

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(ask, number)
        assert [data.count(b"HGETALL") for data in server.wires[0].sends] == [0, 1, 99]
        assert client.statistics().sends == 3


async def test_a_command_for_an_idle_server_is_sent_at_once(autojump_clock: MockClock) -> None:
    """A single caller does not wait for a round to end; while a reply is outstanding, callers share a send."""
    async with scripted(delay=lambda: 0.001) as (client, server):
        await client.ping()
        sends = server.wires[0].sends
        seen: list[int] = []

        async def ask(number: int) -> None:
            seen.append(len(sends))
            await client.hgetall(f"user:{number}")

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(ask, number)
        assert seen == [1, 2, 2]
        assert len(sends) == 3


@pytest.mark.parametrize("room", [1, 7, 100])
async def test_a_socket_that_accepts_little_at_a_time(room: int, autojump_clock: MockClock) -> None:
    """The rest of a send follows as soon as the socket accepts more, in order, also if more commands come meanwhile."""
    async with scripted(EndpointPolicy(request_timeout_ms=60_000)) as (client, server):
        await client.ping()
        server.wires[0].room = room

        async def ask(number: int) -> None:
            await trio.sleep(number / 1000)
            keys = [f"{number}:{each}" for each in range(number + 1)]
            assert await client.hgetall_many(keys) == [{"asked": key} for key in keys]

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, number)
        assert max(map(len, server.wires[0].sends[1:])) <= room
        assert client.statistics().in_flight == 0


async def test_a_call_with_many_keys_is_one_send(autojump_clock: MockClock) -> None:
    """A call that finds enough slots writes all of its commands together."""
    async with scripted() as (client, server):
        assert await client.lrange_many(["a", "b", "c"], 0, -1) == [[key, "0", "-1"] for key in "abc"]
        assert len(server.wires[0].sends) == 1
        assert await client.hgetall_many([]) == []
        assert await client.lrange_many([], 0, 1) == []
        assert client.statistics().sends == 1


async def test_nothing_connects_before_the_first_call(autojump_clock: MockClock) -> None:
    """A connection is opened by the first call, and all callers share it."""
    async with scripted() as (client, server):
        server.connect_delay = 0.04
        await trio.sleep(1)
        assert server.attempts == []
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(client.ping)
        assert len(server.attempts) == 1
        assert trio.current_time() == pytest.approx(1.04)


async def test_slots_are_given_in_order(autojump_clock: MockClock) -> None:
    """With one slot, commands are sent in the order of the calls, and a cancelled waiter leaves no gap."""
    async with scripted(EndpointPolicy(max_inflight=1, request_timeout_ms=1000), delay=lambda: 0.01) as (
        client,
        server,
    ):
        scopes: list[trio.CancelScope] = []

        async def ask(number: int) -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await client.hgetall(str(number))

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(ask, number)
                await wait_all_tasks_blocked()
            assert client.statistics().in_flight == 1
            assert client.statistics().waiting == 5
            scopes[3].cancel()
        assert [words[1] for words in server.received] == ["0", "1", "2", "4", "5"]


async def test_a_long_call_lets_others_in_between(autojump_clock: MockClock) -> None:
    """A call with thousands of keys alternates with later calls."""
    policy = EndpointPolicy(max_inflight=TURN, request_timeout_ms=60_000)
    async with scripted(policy, delay=lambda: 0.001) as (client, server):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.hgetall_many, [str(number) for number in range(2_000)])
            await wait_all_tasks_blocked()
            assert await client.hgetall("short") == {"asked": "short"}
            assert len(server.received) <= 3 * TURN
        assert len(server.received) == 2_001
        assert server.most_outstanding <= TURN


async def test_a_long_call_leaves_slots_to_later_calls(autojump_clock: MockClock) -> None:
    """Where many slots are free at once, a call with thousands of keys does not take them all."""
    policy = EndpointPolicy(max_inflight=3 * TURN, request_timeout_ms=60_000)
    async with scripted(policy) as (client, server):
        server.connect_delay = 0.01
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.hgetall_many, [str(number) for number in range(2_000)])
            await wait_all_tasks_blocked()
            nursery.start_soon(client.hgetall, "short")
        assert server.received.index(["HGETALL", "short"]) == TURN


async def test_a_command_that_is_cancelled_before_its_send_is_not_sent(autojump_clock: MockClock) -> None:
    """A call in a scope that is already cancelled sends nothing and returns its slots."""
    async with scripted(EndpointPolicy(max_inflight=2)) as (client, server):
        await client.ping()
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.hgetall_many(["never", "ever"])
        assert await client.hgetall("x") == {"asked": "x"}
        assert [words[-1] for words in server.received] == ["PING", "x"]
        assert client.statistics().in_flight == 0


async def test_slots_of_cancelled_calls_go_to_waiting_ones(autojump_clock: MockClock) -> None:
    """Calls that wait for slots are sent even if all calls with slots were cancelled before the send."""
    async with scripted(EndpointPolicy(max_inflight=1)) as (client, _server):
        await client.ping()
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def cancelled() -> None:
                with scope:
                    await client.hgetall("never")

            async def cancel_and_ask() -> None:
                scope.cancel()
                assert await client.hgetall("x") == {"asked": "x"}

            nursery.start_soon(cancelled)
            nursery.start_soon(cancel_and_ask)
        assert client.statistics().in_flight == 0


async def test_a_late_reply_fails_its_call_alone(autojump_clock: MockClock) -> None:
    """A call fails exactly at the request timeout; its reply is dropped later, and the connection stays open."""
    pauses = iter([0.0, 0.03, 0.0])
    async with scripted(delay=lambda: next(pauses, 0.0)) as (client, server):
        await client.ping()
        failed: list[tuple[float, str]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failure, lambda: client.hgetall("slow"), failed)
            await trio.sleep(0.015)
            assert await client.hgetall("behind it") == {"asked": "behind it"}
        assert failed == [(0.02, "endpoint 'ep_0001' (127.0.0.1:6379) did not answer within 20 ms")]
        assert trio.current_time() == pytest.approx(0.03)
        statistics = client.statistics()
        assert (statistics.dropped, statistics.errors, statistics.reconnects) == (1, 1, 0)
        assert len(server.wires) == 1


@given(st.floats(0, 1e5), st.integers(1, 200))
def test_a_late_reply_is_noticed_at_any_instant(start: float, timeout_ms: int) -> None:
    """At any clock value, rounding neither fails a call early nor keeps the watch busy at one instant."""

    async def main() -> None:
        async with scripted(EndpointPolicy(request_timeout_ms=timeout_ms), delay=lambda: 1e9) as (client, _):
            await trio.sleep(start)
            before = trio.current_time()
            with pytest.raises(EndpointUnavailable, match=f"did not answer within {timeout_ms} ms"):
                await client.ping()
            assert trio.current_time() >= before + timeout_ms / 1000
            assert trio.current_time() == pytest.approx(before + timeout_ms / 1000)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_reply_that_came_while_the_loop_was_blocked_is_not_late(mock_clock: MockClock) -> None:
    """However many reads it takes, everything that the server has sent is read before a call times out."""

    def pieces(data: bytes) -> list[bytes]:
        return [data[at : at + 2] for at in range(0, len(data), 2)]

    async with scripted(cut=pieces) as (client, server):
        await client.ping()
        async with trio.open_nursery() as nursery:
            answers: list[dict[str, str]] = []

            async def ask() -> None:
                answers.append(await client.hgetall("a long name for a key"))

            nursery.start_soon(ask)
            while server.wires[0].is_quiet():
                await trio.lowlevel.checkpoint()
            mock_clock.jump(1)
        assert answers == [{"asked": "a long name for a key"}]
        assert (client.statistics().errors, len(server.wires)) == (0, 1)


async def test_a_large_reply_in_the_socket_is_not_late(mock_clock: MockClock) -> None:
    """On a real socket, a reply of many reads that has arrived before the timeout is an answer."""
    elements = [str(number) for number in range(20_000)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with trio.open_nursery() as nursery:
            client = RedisClient(redis_at(port, DEFAULT))
            nursery.start_soon(client.run)
            found: list[list[str]] = []

            async def ask() -> None:
                found.append(await client.lrange("k", 0, -1))
                nursery.cancel_scope.cancel()

            nursery.start_soon(ask)
            await trio.lowlevel.wait_readable(listener)
            accepted, _ = listener.accept()
            with accepted:
                await trio.lowlevel.wait_readable(accepted)
                accepted.sendall(bulk(elements))
                mock_clock.jump(1)
                await trio.sleep_forever()
    assert found == [elements]


async def test_the_request_timeout_does_not_count_the_wait_for_a_slot(autojump_clock: MockClock) -> None:
    """Calls that wait longer for a slot than the request timeout are answered."""
    async with scripted(EndpointPolicy(max_inflight=1), delay=lambda: 0.015) as (client, _):
        async with trio.open_nursery() as nursery:
            for _number in range(5):
                nursery.start_soon(client.hgetall, "x")
        assert trio.current_time() == pytest.approx(0.075)
        assert client.statistics().errors == 0


async def test_a_server_that_hangs_is_disconnected(autojump_clock: MockClock) -> None:
    """Sent calls fail at their timeout, waiting ones after three timeouts of silence; the next call reconnects."""
    hung = True
    async with scripted(EndpointPolicy(max_inflight=2), delay=lambda: 1e9 if hung else 0.0) as (client, server):
        failed: list[tuple[float, str]] = []
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(failure, lambda number=number: client.hgetall(str(number)), failed)
        assert [when for when, _ in failed] == [0.02, 0.02, 0.06, 0.06]
        assert "went away: nothing came for 60 ms while replies were outstanding" in failed[2][1]
        assert server.wires[0].closed
        assert client.statistics().in_flight == 0
        hung = False
        server.busy = 0
        assert await client.hgetall("x") == {"asked": "x"}
        assert client.statistics().reconnects == 1


async def test_a_slow_server_keeps_its_connection(autojump_clock: MockClock) -> None:
    """A server whose replies all come too late is not treated as one that hangs."""
    async with scripted(EndpointPolicy(max_inflight=4), delay=lambda: 0.025) as (client, server):
        failed: list[tuple[float, str]] = []
        for _ in range(10):
            await failure(lambda: client.hgetall("x"), failed)
        assert len(server.wires) == 1
        assert server.most_outstanding <= 4


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "Protocol error"),
        (b"\x00\xff\x00", "Protocol error"),
        (b"*99999999999\r\n", "out of range"),
        (b"%1\r\n*1\r\n+a\r\n+b\r\n", "a reply that cannot be read: TypeError unhashable"),
        (None, "the server closed the connection"),
    ],
)
async def test_garbage_ends_the_connection(autojump_clock: MockClock, sent: bytes | None, said: str) -> None:
    """Bytes that are not RESP, or a disconnect, fail all calls in flight at once; the next call reconnects."""
    answers = iter([b"+PONG\r\n", sent])
    async with scripted(answer=lambda words: next(answers, echo(words))) as (client, server):
        await client.ping()
        failed: list[tuple[float, str]] = []
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(failure, lambda number=number: client.hgetall(str(number)), failed)
        assert [when for when, _ in failed] == [0, 0, 0]
        assert all(said in message for _, message in failed)
        assert await client.hgetall("x") == {"asked": "x"}
        assert client.statistics().reconnects == 1
        assert server.wires[0].closed


async def test_a_reply_without_a_command_ends_the_connection(autojump_clock: MockClock) -> None:
    """Replies that outnumber the commands cannot be matched any more."""
    async with scripted(answer=lambda words: echo(words) + b":1\r\n") as (client, server):
        await client.ping()
        await wait_all_tasks_blocked()
        assert not client.statistics().connected
        assert server.wires[0].closed


async def test_a_reply_that_is_too_large_ends_the_connection(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that a server can make the client buffer are bounded."""
    monkeypatch.setattr(link_module, "LARGEST_REPLY", 1_000)
    async with scripted(answer=lambda words: b"$1000000\r\n" + b"x" * 2_000) as (client, _):
        with pytest.raises(EndpointUnavailable, match="a reply has more than 1000 bytes"):
            await client.hgetall("x")


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (b"-WRONGTYPE Operation\r\n", NodeFailed, "'ep_0001', key 'k': HGETALL failed: WRONGTYPE Operation"),
        (b"-LOADING the dataset\r\n", EndpointUnavailable, "HGETALL was rejected: LOADING the dataset"),
        (b"-NOAUTH Authentication required.\r\n", EndpointUnavailable, "rejected: NOAUTH"),
        (b"-WRONGPASS invalid username-password pair\r\n", EndpointUnavailable, "rejected: WRONGPASS"),
        (b"-NOPERM this user has no permissions\r\n", EndpointUnavailable, "rejected: NOPERM"),
        (b"-OOM command not allowed\r\n", EndpointUnavailable, "rejected: OOM"),
        (b"-MOVED 3999 127.0.0.1:6381\r\n", EndpointUnavailable, "rejected: MOVED 3999"),
        (b"-ASK 3999 127.0.0.1:6381\r\n", EndpointUnavailable, "rejected: ASK 3999"),
        (b"-ERR max number of clients reached\r\n", EndpointUnavailable, "rejected: ERR max number"),
        (b":5\r\n", NodeFailed, "HGETALL was answered with int 5, which does not fit"),
        (b"$-1\r\n", NodeFailed, "HGETALL was answered with NoneType None"),
        (b"*1\r\n$1\r\na\r\n", NodeFailed, "HGETALL was answered with list"),
        (b"*2\r\n*0\r\n$1\r\na\r\n", NodeFailed, "HGETALL was answered with list"),
        (b"*2\r\n$1\r\na\r\n:1\r\n", NodeFailed, "HGETALL was answered with list"),
        (b"*2\r\n$1\r\na\r\n$1\r\n\xff\r\n", NodeFailed, "HGETALL found text that is not UTF-8"),
    ],
)
async def test_unexpected_replies_fail_their_call(
    autojump_clock: MockClock, reply: bytes, kind: type[Exception], said: str
) -> None:
    """An error or a reply of another type fails only its call, with the text of the server."""
    async with scripted(answer=lambda words: reply if words[1:] == ["k"] else echo(words)) as (client, _):
        with pytest.raises(kind, match=said):
            await client.hgetall("k")
        with pytest.raises(kind):
            await client.hgetall_many(["a", "k", "b", "c"])
        assert await client.hgetall_many(["a", "b"]) == [{"asked": "a"}, {"asked": "b"}]
        statistics = client.statistics()
        assert (statistics.errors, statistics.in_flight, statistics.reconnects) == (2, 0, 0)


async def test_a_ping_needs_a_pong(autojump_clock: MockClock) -> None:
    """A ping that is answered with something else fails, and so does a malformed list."""
    async with scripted(answer=lambda words: b"+OK\r\n") as (client, _):
        with pytest.raises(NodeFailed, match="PING was answered with str 'OK'"):
            await client.ping()
        with pytest.raises(NodeFailed, match="LRANGE was answered with str 'OK'"):
            await client.lrange("x", 0, 1)


async def test_a_server_that_does_not_accept(autojump_clock: MockClock) -> None:
    """All calls that wait for a connection fail exactly at the connect timeout, after one attempt."""
    async with scripted() as (client, server):
        server.connect_delay = 60
        failed: list[tuple[float, str]] = []
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(failure, client.ping, failed)
        text = "endpoint 'ep_0001' (127.0.0.1:6379) did not accept a connection: no connection within 50 ms"
        assert failed == [(0.05, text)] * 3
        assert len(server.attempts) == 1


async def test_a_server_that_is_down_is_not_stormed(autojump_clock: MockClock) -> None:
    """Connection attempts back off to about one per second; calls in between fail at once."""
    async with scripted() as (client, server):
        server.down = True
        failed: list[tuple[float, str]] = []

        async def insist() -> None:
            while trio.current_time() < 20:
                before = trio.current_time()
                await failure(client.ping, failed)
                assert trio.current_time() - before <= 0.05 + 1e-9
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(insist)
        assert len(failed) > 10_000
        assert 10 <= len(server.attempts) <= 100
        assert any("is down and will not be tried again for" in message for _, message in failed)
        assert client.statistics().errors == len(failed)

        server.down = False
        for _ in range(120):
            try:
                await client.ping()
                break
            except EndpointUnavailable:
                await trio.sleep(0.01)
        else:
            pytest.fail("the client did not come back within 1.2 s")
        assert client.statistics().connected


async def test_a_server_that_only_hangs_up_is_not_stormed(autojump_clock: MockClock) -> None:
    """A connection that ends before its first reply counts as a failed attempt."""
    async with scripted(answer=lambda words: None) as (client, server):
        while trio.current_time() < 20:
            with pytest.raises(EndpointUnavailable):
                await client.ping()
            await trio.sleep(0.01)
        assert 10 <= len(server.attempts) <= 100


async def test_waiting_calls_outlive_a_connection(autojump_clock: MockClock) -> None:
    """Calls that were not sent when the server disconnected are sent on the next connection."""
    answers = iter([None])
    policy = EndpointPolicy(max_inflight=1)
    async with scripted(policy, answer=lambda words: next(answers, echo(words)), delay=lambda: 0.001) as (client, _):
        failed: list[tuple[float, str]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failure, lambda: client.hgetall("lost"), failed)
            await wait_all_tasks_blocked()
            assert await client.hgetall("kept") == {"asked": "kept"}
        assert len(failed) == 1


async def test_a_call_in_the_round_in_which_the_connection_ends(autojump_clock: MockClock) -> None:
    """Calls in the round in which the connection closes are neither lost nor able to disturb it."""
    async with scripted() as (client, server):
        await client.ping()
        for _ in range(20):
            await wait_all_tasks_blocked()
            server.wires[-1].hang_up()

            async def ask(rounds: int) -> None:
                for _ in range(rounds):
                    await trio.lowlevel.checkpoint()
                with suppress(EndpointUnavailable):
                    assert await client.hgetall("x") == {"asked": "x"}

            async with trio.open_nursery() as nursery:
                for rounds in range(8):
                    nursery.start_soon(ask, rounds)
            await client.ping()
        assert client.statistics().in_flight == 0


async def test_a_failing_send_ends_the_connection(autojump_clock: MockClock) -> None:
    """A send that fails in the caller's task ends the connection; the next call gets a new one."""
    async with scripted() as (client, server):
        await client.ping()
        server.wires[0].broken = True
        with pytest.raises(EndpointUnavailable, match="went away: the reader is closed"):
            await client.hgetall("x")
        assert await client.hgetall("x") == {"asked": "x"}
        assert (len(server.wires), client.statistics().in_flight) == (2, 0)


async def test_a_call_right_after_the_connection_was_lost(autojump_clock: MockClock) -> None:
    """A call between the loss of a connection and its end is answered on the next one."""
    async with scripted() as (client, server):
        await client.ping()
        connection = client._only.links[0]._connection
        assert connection is not None
        connection.lose(ConnectionError("lost"))
        assert await client.hgetall("x") == {"asked": "x"}
        assert len(server.wires) == 2


async def test_calls_fail_after_closing(autojump_clock: MockClock) -> None:
    """Closing fails the calls that are waiting, and later ones."""
    async with trio.open_nursery() as outer:
        failed: list[tuple[float, str]] = []
        async with scripted(delay=lambda: 0.01) as (client, _):
            outer.start_soon(failure, client.ping, failed)
            await wait_all_tasks_blocked()
    assert [message for _, message in failed] == ["endpoint 'ep_0001' (127.0.0.1:6379) was closed"]
    with pytest.raises(EndpointUnavailable, match="was closed"):
        await client.ping()
