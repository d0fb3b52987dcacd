"""Requests a second at 32 at once: the engine, by hand, and Hamilton; each its own client, then one for all."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import attrs

from ..common import Bar, Table, expect
from ..peers.environments import make_environment
from .work import Load, Rate

if TYPE_CHECKING:
    from pathlib import Path

AT_ONCE = 32
BAR = 2.0
REQUIREMENTS = ("redis", "hiredis", "coredis", "sf-hamilton")
_ENVIRONMENT = {"HAMILTON_TELEMETRY_ENABLED": "false"}
ENGINE = "engine"


@attrs.frozen
class Contestant:
    """A program that answers the requests; `peer` ones run in an environment of their own."""

    name: str
    module: str
    client: str
    peer: bool = False


OWN_CLIENTS = (
    Contestant(ENGINE, "with_seedbed", "own"),
    Contestant("trio by hand, the engine's client", "with_trio", "own"),
    Contestant("asyncio by hand, redis-py", "with_asyncio", "redis-py", peer=True),
    Contestant("Hamilton, redis-py", "with_hamilton", "redis-py", peer=True),
)
ONE_CLIENT = (
    Contestant("engine, coredis", "with_seedbed", "coredis"),
    Contestant("asyncio by hand, coredis", "with_asyncio", "coredis", peer=True),
    Contestant("Hamilton, coredis", "with_hamilton", "coredis", peer=True),
)


def run(contestant: Contestant, python: Path | str, load: Load) -> Rate:
    """Let one answer, in a process of its own."""
    done = subprocess.run(
        [str(python), "-m", f"benchmarks.plans.{contestant.module}", json.dumps(asdict(load))],
        env={**os.environ, **_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    expect(done.returncode == 0, f"{contestant.name} failed: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return Rate(**json.loads(done.stdout.splitlines()[-1]))


def measure(port: int, *, short: bool) -> tuple[list[Table], list[Bar]]:
    """Both tables and their bars; a short pass has nobody to compare with."""
    requests, rounds = (200, 1) if short else (1_500, 10)
    python: Path | None = None
    missing: list[dict[str, Any]] = []
    if not short:
        python, why = make_environment("plans", REQUIREMENTS)
        if python is None:
            missing = [{"": each.name, "reason": why} for each in (*OWN_CLIENTS, *ONE_CLIENT) if each.peer]
    tables: list[Table] = []
    bars: list[Bar] = []
    for title, contestants in (("each with its own client", OWN_CLIENTS), ("one client for all", ONE_CLIENT)):
        there = [each for each in contestants if not each.peer or python is not None]
        if any(each.client == "coredis" for each in there) and importlib.util.find_spec("coredis") is None:
            if not short:
                missing.append({"": "one client for all", "reason": "coredis is not installed beside seedbed"})
            continue
        rates: dict[str, list[Rate]] = {each.name: [] for each in there}
        for _ in range(rounds):
            for each in there:
                load = Load(port=port, requests=requests, at_once=AT_ONCE, client=each.client)
                rates[each.name].append(run(each, python if each.peer and python else sys.executable, load))
        best = {name: max(found, key=lambda rate: rate.per_second) for name, found in rates.items()}
        engine = best[there[0].name]
        rows = [
            {
                "": name,
                "requests a second": rate.per_second,
                "engine ÷ it": engine.per_second / rate.per_second,
                "CPU a request, ms": rate.cpu_ms,
                "p50, ms": rate.p50_ms,
                "p99, ms": rate.p99_ms,
            }
            for name, rate in best.items()
        ]
        tables.append(Table(title=f"Ten nodes, {AT_ONCE} at once, {title}, best of {rounds}", rows=rows))
        if contestants is OWN_CLIENTS:
            bars += [
                Bar(
                    name=f"requests a second ÷ {each.name}",
                    measured=engine.per_second / best[each.name].per_second,
                    allowed=BAR,
                    at_least=True,
                )
                for each in there
                if each.peer
            ]
    if missing:
        tables.append(Table(title="Not measured", rows=missing))
    return tables, bars
