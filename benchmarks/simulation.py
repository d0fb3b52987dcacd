"""How near a simulation comes to the run that it stands for, and how long it takes.

The same recipes are simulated and then really built, over HTTP, against test servers in processes of their own that
draw their latencies and rate limits from the same distributions: one column after the other with a constant latency, a
diamond of columns with log-normal latencies, and two models of which one rate-limits a tenth of its calls. The
times that the engine reports are compared. The calls last about a second, as those of real models do: of the processor
a simulation knows only what a call takes of it on an ordinary machine that does nothing else.

Then 100,000 rows of six columns, five of them calls, are simulated with two seeds in two processes. That bar is in
seconds and not a ratio, since it is a promise to the user who waits; it holds on two otherwise idle cores.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import attrs
import trio

import seedbed as sb
from seedbed.testing import serve_openai_process

from .common import Bar, Findings, Table, expect, main

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALLOWED = 0.05  # of the real time
MINUTE = 75.0
TOPICS = sb.Category("topic", values=["tea", "bread", "rain", "wool", "salt"])


@attrs.frozen(kw_only=True)
class Case:
    """A recipe, and how its models behave: the same words for the server and for the simulation."""

    name: str
    rows: int
    at_once: Mapping[str, int]
    latency: Mapping[str, Any]
    rate_limited: float = 0.0
    columns: Sequence[Any]

    def recipe(self, urls: Mapping[str, str]) -> sb.Recipe:
        """The recipe, with its models at these addresses."""
        models = {
            alias: sb.OpenAICompatible(base_url=urls[alias], model=alias, max_parallel_requests=at_once)
            for alias, at_once in self.at_once.items()
        }
        return sb.Recipe(seed=5, models=models, columns=[TOPICS, *self.columns])


def text(name: str, of: str, model: str = "writer") -> sb.LLMText:
    """A column of texts about other columns."""
    return sb.LLMText(name, model=model, prompt=f"Write about {of}: " + "{{ " + of.replace(" ", " }} {{ ") + " }}")


def cases(short: bool) -> list[Case]:
    """What is compared; the short pass has a tenth of the rows and of the latency."""
    few, quick = (0.1, 0.1) if short else (1, 1)
    return [
        Case(
            name="constant, one after the other",
            rows=int(400 * few),
            at_once={"writer": 32},
            latency={"writer": 1.0 * quick},
            columns=[text("question", "topic"), text("answer", "question")],
        ),
        Case(
            name="log-normal, a diamond",
            rows=int(400 * few),
            at_once={"writer": 48},
            latency={"writer": {"lognormal": [1.0 * quick, 0.4]}},
            columns=[
                text("question", "topic"),
                text("short", "question"),
                text("long", "question"),
                text("both", "short long"),
            ],
        ),
        Case(
            name="two models, a tenth rate-limited",
            rows=int(400 * few),
            at_once={"writer": 32, "critic": 16},
            latency={"writer": {"lognormal": [1.0 * quick, 0.4]}, "critic": {"lognormal": [0.8 * quick, 0.3]}},
            rate_limited=0.1,
            columns=[
                text("question", "topic"),
                text("answer", "question"),
                sb.Judge("quality", model="critic", of="answer", scores={"clarity": "1 to 5"}),
            ],
        ),
    ]


def run_really(case: Case) -> sb.BuildReport:
    """Build the rows over HTTP, in memory."""
    with ExitStack() as stack:
        urls = {}
        for alias, latency in case.latency.items():
            rate_limited = case.rate_limited if alias == "writer" else 0.0
            server = serve_openai_process(
                latency=latency, rate_limit_share=rate_limited, error_latency=0.01, max_failures=None, seed=11
            )
            urls[alias] = stack.enter_context(server).url

        async def build() -> sb.BuildReport:
            async with sb.open_build(case.recipe(urls), rows=case.rows) as running:
                return await running.wait()

        return trio.run(build)


def predict(case: Case, seeds: int) -> sb.Simulation:
    """Simulate the same."""
    calls = {
        alias: sb.CallProfile(
            latency=latency,
            rate_limited=case.rate_limited if alias == "writer" else 0.0,
            error_latency=0.01,
            output_tokens=20,
        )
        for alias, latency in case.latency.items()
    }
    nowhere = dict.fromkeys(case.at_once, "http://127.0.0.1:9/v1")
    return sb.simulate(case.recipe(nowhere), rows=case.rows, calls=calls, seeds=seeds)


def compare(case: Case, seeds: int) -> dict[str, Any]:
    """One line of the table."""
    began = time.perf_counter()
    predicted = predict(case, seeds)
    took = time.perf_counter() - began
    report = run_really(case)
    expect(report.written == case.rows, f"{case.name}: rows are missing: {report}")
    made = sum(used.calls for used in report.usage.values())
    expect(
        predicted.base.total.calls.mean == made,
        f"{case.name}: {predicted.base.total.calls} calls predicted, {made} made",
    )
    return {
        "case": case.name,
        "calls": made,
        "real s": report.seconds,
        "predicted s": predicted.seconds,
        "from s": predicted.base.seconds.low,
        "to s": predicted.base.seconds.high,
        "off %": (predicted.seconds / report.seconds - 1) * 100,
        "simulated in s": took,
    }


def large(rows: int) -> dict[str, Any]:
    """How long a large simulation takes."""
    columns = [text("a", "topic"), *(text(to, of) for of, to in zip("abcd", "bcde", strict=True))]
    model = sb.OpenAICompatible(base_url="http://127.0.0.1:9/v1", model="m", max_parallel_requests=64)
    recipe = sb.Recipe(models={"writer": model}, columns=[TOPICS, *columns])
    calls = {"writer": {"latency": "lognormal(0.8, 0.5)", "tokens": "300/120"}}
    began = time.perf_counter()
    found = sb.simulate(recipe, rows=rows, calls=calls, seeds=2, processes=2)
    took = time.perf_counter() - began
    expect(found.base.total.calls.mean == 5 * rows, f"{found.base.total.calls} calls of {5 * rows}")
    # 64 at a time, 0.8 · exp(0.5² / 2) seconds each: nothing can be quicker, and nothing should hold it up.
    ideal = 5 * rows * 0.9065 / 64
    expect(0.98 < found.seconds / ideal < 1.1, f"{found.seconds} s predicted where {ideal} s are possible")
    return {"rows": rows, "columns": 6, "seeds": 2, "seconds": took, "µs a cell and core": took / rows / 6 * 1e6}


def measure(short: bool) -> Findings:
    """Compare all cases, and time a large one."""
    compared = [compare(case, 2 if short else 5) for case in cases(short)]
    big = large(500 if short else 100_000)
    bars = [Bar(name=f"{row['case']}, off by", measured=abs(row["off %"]) / 100, allowed=ALLOWED) for row in compared]
    bars.append(Bar(name="seconds for 100,000 rows of six columns, two seeds", measured=big["seconds"], allowed=MINUTE))
    tables = [Table(title="predicted and real", rows=compared), Table(title="a large simulation", rows=[big])]
    return Findings(tables=tables, bars=bars)


if __name__ == "__main__":
    sys.exit(main("simulation", measure))
