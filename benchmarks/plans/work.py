"""What every contestant has to answer, and how each measures itself. Imports nothing that a peer would have to install.

The ten nodes of `examples/plans/complex_dag.json`: the viewer, then two branches (whom they follow, who is recommended)
of users, their media and a score, merged, sorted and cut.
"""

from __future__ import annotations

import functools
import gc
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Answer = Callable[[int], Awaitable[list[dict[str, Any]]]]

USERS = 500
FANOUT = 10
WEIGHT = 0.1
BEST = 50
_LISTED = 20  # more than is asked for
CHECKED = 40
"""Requests that are checked before anything is measured; they also open connections and fill caches."""


@functools.cache
def data() -> dict[str, dict[str, str] | list[int]]:
    """What the server holds: hashes and lists by key."""
    rng = random.Random(4)
    stored: dict[str, dict[str, str] | list[int]] = {}
    for user in range(1, USERS + 1):
        stored[f"user:{user}"] = {"country": rng.choice(["NO", "SE", "DE"]), "name": f"user {user}"}
        for name in ("follow", "recommendation"):
            stored[f"{name}:{user}"] = rng.sample(range(1, USERS + 1), _LISTED)
        stored[f"media:{user}"] = [user * 1_000 + each for each in range(_LISTED)]
    return stored


def expected(user: int) -> list[dict[str, Any]]:
    """The answer for a user, worked out one by one."""
    stored = data()
    media = [
        medium
        for name in ("follow", "recommendation")
        for other in stored[f"{name}:{user}"][:FANOUT]  # type: ignore[index]
        for medium in stored[f"media:{other}"][:FANOUT]  # type: ignore[index]
    ]
    ranked = sorted(media, key=lambda each: -each * WEIGHT)  # stable, as the plan's sort is
    return [{"id": each, "fields": {"final_score": each * WEIGHT}} for each in ranked[:BEST]]


def user_of(number: int) -> int:
    """Whose the request of that number is."""
    return number % USERS + 1


@dataclass(frozen=True)
class Load:
    """So many requests, so many at any time, to a server on this machine, with one of the clients."""

    port: int
    requests: int
    at_once: int
    client: str


@dataclass(frozen=True)
class Rate:
    """What answering took: requests a second, milliseconds of the processor for each, and percentiles of latency."""

    per_second: float
    cpu_ms: float
    p50_ms: float
    p99_ms: float


def percentile(values: list[float], share: float) -> float:
    """The least value that so large a share is not above."""
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]


async def check(answer: Answer) -> None:
    """Ask for some users one by one; a wrong answer ends the process."""
    for number in range(CHECKED):
        user = user_of(number * 7)
        found, wanted = await answer(user), expected(user)
        if found != wanted:
            sys.exit(f"the answer for user {user} is {found[:3]} …, and not {wanted[:3]} …")


class Meter:
    """Measures requests between `start` and `rate`."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._latencies: list[float] = []
        gc.collect()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    async def worker(self, numbers: Any, answer: Answer) -> None:
        """Make requests as long as there are numbers left; several share an iterator."""
        for number in numbers:
            began = time.perf_counter()
            found = await answer(user_of(number))
            self._latencies.append(time.perf_counter() - began)
            if len(found) != BEST:
                sys.exit(f"request {number} has {len(found)} candidates and not {BEST}")

    def time(self, answer: Callable[[], object]) -> None:
        """Time one request that waits for nothing else."""
        began = time.perf_counter()
        answer()
        self._latencies.append(time.perf_counter() - began)

    def rate(self) -> Rate:
        """What it took until now."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Rate(
            per_second=self._requests / wall,
            cpu_ms=cpu / self._requests * 1000,
            p50_ms=percentile(self._latencies, 0.5) * 1000,
            p99_ms=percentile(self._latencies, 0.99) * 1000,
        )


def given_load() -> Load:
    """The load that the command line asks for."""
    return Load(**json.loads(sys.argv[1]))


def tell(rate: Rate) -> None:
    """Say what it took, to the process that started this one."""
    print(json.dumps(asdict(rate)))
