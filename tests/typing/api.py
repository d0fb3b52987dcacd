"""The public names as a user writes them: read by mypy, run by nobody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, assert_type

import polars as pl
import pyarrow as pa

import seedbed as sb
from seedbed.runtime.asyncio import aclose

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def numbers(rows: range) -> list[int]:
    return list(rows)


def doubled(n: int) -> int:
    return 2 * n


async def answer(n: int, context: sb.CellContext) -> str:
    async def send() -> str:
        context.report_usage(input_tokens=3, output_tokens=4, cost=0.01)
        return f"{context.column} {context.row_group} {context.row} {context.attempt}"

    assert_type(await context.call(send), str)
    return await context.call(send, key="other", tokens=10)


def from_thread(n: int, context: sb.CellContext) -> str:
    async def send(prefix: str) -> str:
        return prefix

    return context.run(send, "x")


class Generator:
    is_stateful = True

    def generate(self, n: int) -> float:
        if n < 0:
            raise sb.RateLimited("slow down", retry_after="3", reset=5.0)
        if n == 0:
            raise sb.Retryable("again")
        raise sb.Permanent("never")


def keep(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def lazy(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame


columns = [
    sb.Column("n", numbers, kind="from_scratch", dtype=int),
    sb.Column("doubled", doubled, retry_on=OSError, timeout=5),
    sb.Column("answer", answer, key="writer", tokens=100, side_effects="answer__trace", dtype={"answer": pl.String}),
    sb.Column("thread", from_thread, key="writer"),
    sb.Column("generated", Generator(), requires=["n"]),
    sb.Column("cpu", doubled, process=True, requires="n"),
    sb.Column("other_loop", answer, key="writer", runtime="asyncio"),
]
config = sb.RunConfig(buffer_size=10, deadline=60.0, max_cost=1.5, engine="sequential", trace=True)
limits = {"writer": sb.KeyLimits(max_parallel_requests=4, requests_per_minute=60, tokens_per_minute=None)}
processors = [sb.Processor(stage="post_batch", apply=keep), sb.Processor(stage="after_generation", apply=lazy)]


def script() -> None:
    dataset = sb.build(columns, rows=10, out="out", config=config, limits=limits, processors=processors)
    assert_type(dataset, sb.Dataset)
    assert_type(dataset.to_polars(["n"]), pl.DataFrame)
    assert_type(dataset.scan(), pl.LazyFrame)
    assert_type(dataset.to_arrow(), pa.Table)
    assert_type(dataset.report, sb.BuildReport)
    assert_type(sb.Dataset.open(Path("out")).complete, bool)
    assert_type(sb.preview(columns, rows=3).to_polars(), pl.DataFrame)
    assert_type(sb.RunConfig.from_mapping({"buffer_size": 3}), sb.RunConfig)


def interrupted() -> sb.BuildReport | None:
    try:
        sb.build(columns, rows=1, out=Path("out"), readers=[print])
    except (sb.Interrupted, sb.EarlyShutdown, sb.QuotaExhausted, sb.StoreError) as stopped:
        return stopped.report
    except sb.DatasetGenerationError as wrong:
        assert_type(wrong.problems, tuple[str, ...])
    return None


def simulated() -> None:
    profile = sb.CallProfile(latency="lognormal(0.8, 0.5)", rate_limited=0.1)
    found = sb.simulate(
        columns, rows=10, calls={"key": profile, "other": {"latency": 1}}, vary={"run.buffer_size": [1]}
    )
    assert_type(found, sb.Simulation)
    assert_type(found.seconds, float)
    assert_type(found.base.bottleneck, str)


async def under_any_loop() -> None:
    assert_type(await sb.build_async(columns, rows=10, out="out"), sb.Dataset)
    async with sb.open_throttles(limits) as throttles, sb.open_build(columns, rows=10, throttles=throttles) as build:
        assert_type(build, sb.Build)
        async for group in build:
            assert_type(group, sb.FinishedGroup)
            assert_type(group.to_polars(), pl.DataFrame)
            assert_type(group.source_rows, range)
        build.stop()
        report = await build.wait()
        assert_type(report, sb.BuildReport)
        assert_type(report.unfinished, tuple[range, ...])
        assert_type(report.traces, tuple[sb.TaskTrace, ...])
        assert_type(report.drops_by_reason, dict[str, int])


@sb.column(runtime="asyncio", timeout=3)
async def on_asyncio(n: int) -> str:
    return str(n)


async def a_column_is_still_its_function() -> None:
    assert_type(await on_asyncio(3), str)
    await aclose()


async def bridged() -> None:
    both = sb.bridge(doubled)
    both.generate(1)
    await both.agenerate(1)


def sender(context: sb.CellContext) -> Callable[[], Awaitable[str]]:
    async def send() -> str:
        return await context.call(send)

    return send
