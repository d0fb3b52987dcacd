"""What a request costs: in process beside others, under asyncio hosts, over HTTP; and how far deadlines are overshot.

All figures are CPU of the process that answers, with 32 requests at any time unless said otherwise. Over HTTP the
client is another process, which does not count.
"""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from seedbed.errors import RequestDeadlineExceeded

from ..common import Bar, Table, expect
from ..peers.environments import make_environment
from .throughput import AT_ONCE, REQUIREMENTS, Contestant, run
from .with_http import EMPTY, ENGINE, HYPERCORN, UVICORN
from .with_seedbed import OWN, open_engine
from .work import Load, percentile, user_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BY_HAND_BAR = 0.5
PIPELINE_BAR = 4.0
HOST_BAR = 1.15
HTTP_BAR = 1.3
OVERSHOOT_BAR_MS = 10.0
FEW = 8

NATIVE = Contestant("engine, trio", "with_seedbed", OWN)
HOSTED = Contestant("engine, asyncio", "with_host", OWN)
PIPELINE = Contestant("bare hiredis pipeline", "with_pipeline", "none")
BY_HAND = Contestant("asyncio by hand, redis-py with hiredis", "with_asyncio", "redis-py", peer=True)


def in_process(port: int, python: Path | None, *, requests: int, rounds: int) -> tuple[Table, dict[str, float]]:
    """Milliseconds of the processor for a request, by contestant."""
    cpu: dict[str, list[float]] = {}
    for _ in range(rounds):
        for contestant, at_once in (
            *((NATIVE, AT_ONCE), (HOSTED, AT_ONCE), (NATIVE, FEW), (HOSTED, FEW), (PIPELINE, 1)),
            *([(BY_HAND, AT_ONCE)] if python is not None else []),
        ):
            load = Load(port=port, requests=requests, at_once=at_once, client=contestant.client)
            rate = run(contestant, python if contestant.peer and python else sys.executable, load)
            cpu.setdefault(f"{contestant.name}, {at_once} at once", []).append(rate.cpu_ms)
    best = {name: min(found) for name, found in cpu.items()}
    rows = [{"": name, "CPU a request, ms": figure} for name, figure in best.items()]
    return Table(title=f"Ten nodes in process, best of {rounds}", rows=rows), best


@contextmanager
def serve(what: str, server: str, redis_port: int) -> Iterator[int]:
    """The port of a server in a process of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        module = "benchmarks.plans.with_http"
        words = [sys.executable, "-m", module, what, server, str(redis_port), str(listener.fileno())]
        with subprocess.Popen(words, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL) as process:
            try:
                yield listener.getsockname()[1]
            finally:
                process.kill()


class Client:
    """Keeps connections busy; it reads no more of an answer than it needs."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def cpu(self) -> float:
        """Seconds of the processor that the server has used."""
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        async with stream:
            found: float = json.loads(await self._ask(stream, b"GET /cpu HTTP/1.1\r\nhost: h\r\n\r\n"))
            return found

    async def _ask(self, stream: trio.SocketStream, request: bytes) -> bytes:
        await stream.send_all(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += await self._receive(stream)
        head, _, body = data.partition(b"\r\n\r\n")
        expect(head.startswith(b"HTTP/1.1 200"), f"an answer is {head[:100]!r}: {body[:300]!r}")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(fields[b"content-length"]):
            body += await self._receive(stream)
        return body

    async def _receive(self, stream: trio.SocketStream) -> bytes:
        data = bytes(await stream.receive_some())
        expect(bool(data), "the server closed a connection")
        return data

    async def measure(self, requests: int) -> float:
        """Milliseconds of the server's processor for a request."""
        await self._work(iter(range(2 * AT_ONCE)))
        before = await self.cpu()
        await self._work(iter(range(requests)))
        return (await self.cpu() - before) / requests * 1000

    async def _work(self, numbers: Iterator[int]) -> None:
        async def work() -> None:
            async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
                for number in numbers:
                    body = b'{"user_id":%d}' % user_of(number)
                    head = b"POST /plans/complex_dag HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % len(body)
                    expect(len(await self._ask(stream, head + body)) > 100, "an answer is empty")

        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(work)


def over_http(redis_port: int, *, requests: int, rounds: int) -> tuple[Table, dict[tuple[str, str], float]]:
    """Milliseconds of the processor for a request, by server and application."""
    servers = [UVICORN, *([HYPERCORN] if importlib.util.find_spec("hypercorn") else [])]
    cpu: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for server in servers:
            for what in (EMPTY, ENGINE):
                with serve(what, server, redis_port) as port:
                    cpu.setdefault((server, what), []).append(trio.run(Client(port).measure, requests))
    best = {key: min(found) for key, found in cpu.items()}
    rows = [
        {
            "server": server,
            "empty application, ms": best[server, EMPTY],
            "with the plan, ms": best[server, ENGINE],
        }
        for server in servers
    ]
    return Table(title=f"Ten nodes over HTTP: CPU a request, best of {rounds}", rows=rows), best


async def overshoot(port: int, *, requests: int) -> list[float]:
    """How many milliseconds after their deadline requests end that cannot be in time, 32 at once."""
    found: list[float] = []
    load = Load(port=port, requests=0, at_once=AT_ONCE, client=OWN)
    async with open_engine(load) as (engine, plan):
        for number in range(20):
            await engine.execute(plan, {"user_id": user_of(number)}, deadline=10)
        numbers = iter(range(requests))

        async def work() -> None:
            for number in numbers:
                deadline = 0.0005 + number % 10 * 0.002
                began = time.perf_counter()
                try:
                    await engine.execute(plan, {"user_id": user_of(number)}, deadline=deadline)
                except RequestDeadlineExceeded:
                    found.append((time.perf_counter() - began - deadline) * 1000)
                except Exception as error:  # noqa: BLE001  rejected before it began
                    expect(getattr(error, "code", "") == "OVERLOADED", f"{error!r}")

        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(work)
    return found


def measure(port: int, *, short: bool) -> tuple[list[Table], list[Bar]]:
    """The tables and their bars; a short pass has nobody to compare with."""
    requests, rounds = (100, 1) if short else (1_500, 5)
    python: Path | None = None
    missing = ""
    if not short:
        python, missing = make_environment("plans", REQUIREMENTS)
    table, cpu = in_process(port, python, requests=requests, rounds=rounds)
    http_table, http = over_http(port, requests=requests, rounds=rounds)
    late = trio.run(partial(overshoot, port, requests=200 if short else 3_000)) or [0.0]
    native = cpu[f"{NATIVE.name}, {AT_ONCE} at once"]
    p99 = percentile(late, 0.99)
    late_table = Table(
        title=f"Requests that miss their deadline, {AT_ONCE} at once: end after it, ms",
        rows=[{"requests": len(late), "p50": percentile(late, 0.5), "p99": p99}],
    )
    bars = [
        Bar(
            name="CPU a request ÷ bare hiredis pipeline",
            measured=native / cpu[f"{PIPELINE.name}, 1 at once"],
            allowed=PIPELINE_BAR,
        ),
        *(
            Bar(
                name=f"CPU a request under asyncio ÷ native, {at_once} at once",
                measured=cpu[f"{HOSTED.name}, {at_once} at once"] / cpu[f"{NATIVE.name}, {at_once} at once"],
                allowed=HOST_BAR,
            )
            for at_once in (FEW, AT_ONCE)
        ),
        Bar(
            name="CPU a request over HTTP ÷ (in process + empty application)",
            measured=http[UVICORN, ENGINE] / (native + http[UVICORN, EMPTY]),
            allowed=HTTP_BAR,
        ),
        Bar(name="deadline overshoot p99, ms", measured=p99, allowed=OVERSHOOT_BAR_MS),
    ]
    tables = [table, http_table, late_table]
    if python is not None:
        by_hand = cpu[f"{BY_HAND.name}, {AT_ONCE} at once"]
        bars.insert(0, Bar(name=f"CPU a request ÷ {BY_HAND.name}", measured=native / by_hand, allowed=BY_HAND_BAR))
    elif not short:
        tables.append(Table(title="Not measured", rows=[{"": BY_HAND.name, "reason": missing}]))
    return tables, bars
