from __future__ import annotations

import pytest
import trio
from redis_servers import BINARIES, command, real_server, redis_at, registries

from seedbed.errors import EndpointUnavailable
from seedbed.plans.endpoint import EndpointPolicy
from seedbed.plans.redis import open_endpoints

CALLERS = 32


@pytest.mark.parametrize("binary", BINARIES)
async def test_a_server_killed_and_restarted_under_load(binary: str) -> None:
    """Calls fail only with EndpointUnavailable while the server is down, and succeed again afterwards."""
    policy = EndpointPolicy(max_inflight=16, connect_timeout_ms=10_000, request_timeout_ms=10_000)
    right = [0] * CALLERS
    failed = [0] * CALLERS
    over = False

    with real_server(binary) as server:

        def fill() -> None:
            command(server, "RPUSH", "numbers", *map(str, range(CALLERS)))

        fill()
        async with open_endpoints(registries(redis_at(server.port, policy))) as endpoints:
            redis = endpoints.get("ep_0001")

            async def ask(number: int) -> None:
                while not over:
                    try:
                        found = await redis.lrange("numbers", number, number)
                    except EndpointUnavailable:
                        failed[number] += 1
                        await trio.sleep(0.001)
                    else:
                        # Between its start and `fill`, the restarted server has no numbers.
                        assert found in ([str(number)], [])
                        right[number] += bool(found)

            async def every_caller_progressed(counts: list[int]) -> None:
                """Wait until every caller has made progress."""
                before = list(counts)
                while any(now == then for now, then in zip(counts, before, strict=True)):  # noqa: ASYNC110  of many tasks
                    await trio.sleep(0.001)

            async with trio.open_nursery() as nursery:
                for number in range(CALLERS):
                    nursery.start_soon(ask, number)
                for restarts in (1, 2):
                    await every_caller_progressed(right)
                    server.terminate()  # SIGKILL
                    await every_caller_progressed(failed)
                    assert redis.statistics().in_flight == 0
                    await trio.to_thread.run_sync(server.start)
                    fill()
                    await every_caller_progressed(right)
                    # One connection replaces the lost one, for all callers.
                    assert redis.statistics().reconnects == restarts
                over = True
            statistics = redis.statistics()
            assert (statistics.in_flight, statistics.waiting, statistics.errors) == (0, 0, sum(failed))
