"""The metrics of a build, as Prometheus reads them from the port that the build serves."""

from __future__ import annotations

import http.client
import re
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

import seedbed as sb
from seedbed.observe.events import BuildStarted, RowGroupFinished
from seedbed.observe.metrics import Metrics, exposition
from seedbed.testing import serve_openai_sync

if TYPE_CHECKING:
    from pathlib import Path


def read(port: int, path: str = "/metrics") -> str:
    """What the port answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return f"{response.status}\n{response.read().decode()}"


async def test_a_running_build_answers_with_its_metrics(tmp_path: Path) -> None:
    """Rows, calls, tokens and cost so far can be read while the build runs, and the port is closed with it."""
    metrics = sb.BuildMetrics(0)
    texts: list[str] = []
    with serve_openai_sync(answer="What is it?") as server:
        model = sb.OpenAICompatible(base_url=server.url, model="small", input_price=1)
        recipe = sb.Recipe(columns=[sb.UUID("n"), sb.LLMText("q", model="m", prompt="{{ n }}")], models={"m": model})
        options = {"config": sb.RunConfig(buffer_size=4, max_concurrent_row_groups=1), "readers": [metrics]}
        async with sb.open_build(recipe, rows=8, out=tmp_path / "data", **options) as running:
            async for _ in running:
                texts.append(await trio.to_thread.run_sync(read, metrics.port))
                assert (await trio.to_thread.run_sync(read, metrics.port, "/other")).startswith("404")
    first, last = texts[0], metrics.text()
    assert "seedbed_rows_requested 8\n" in first
    assert re.search(r"^seedbed_rows_written_total [48]$", first, re.MULTILINE)
    assert "seedbed_rows_written_total 8\n" in last
    assert 'seedbed_calls_total{model="m",error=""} 8\n' in last
    assert 'seedbed_call_seconds_count{model="m"} 8\n' in last
    tokens = running.report.model_usage["m"]
    assert f'seedbed_tokens_total{{model="m",type="input"}} {tokens.input_tokens}\n' in last
    with pytest.raises(OSError, match="refused"):
        await trio.to_thread.run_sync(read, metrics.port)


def test_a_port_that_is_taken_is_an_error() -> None:
    """It is named before anything is built."""
    first = sb.BuildMetrics(0)
    with pytest.raises(sb.ConfigError, match=f"metrics cannot be served at port {first.port}"):
        sb.BuildMetrics(first.port)
    first.close()


def test_names_and_labels_have_the_form_of_prometheus() -> None:
    """Labels are quoted and escaped; a histogram has cumulative buckets, sum and count."""
    metrics = Metrics({"calls_total": ("counter", "Calls."), "seconds": ("histogram", "Seconds.")}, buckets=(1, 2))
    metrics.add("calls_total", ("model", 'a "b"\nc\t\\'))
    for value in (0.5, 1.5, 5.0):
        metrics.observe("seconds", value)
    assert exposition(metrics.help, metrics.samples).splitlines() == [
        "# HELP calls_total Calls.",
        "# TYPE calls_total counter",
        'calls_total{model="a \\"b\\"\\nc\t\\\\"} 1',
        "# HELP seconds Seconds.",
        "# TYPE seconds histogram",
        'seconds_bucket{le="1"} 1',
        'seconds_bucket{le="2"} 2',
        'seconds_bucket{le="+Inf"} 3',
        "seconds_count 3",
        "seconds_sum 7",
    ]


async def test_metrics_closed_before_they_are_served() -> None:
    """A build that ends at once, before its port is served, ends as any other."""
    metrics = sb.BuildMetrics(0)
    metrics(BuildStarted(time=0.0, rows=0, row_groups=0, columns=()))
    metrics.close()
    await trio.testing.wait_all_tasks_blocked()
    with closing(sb.BuildMetrics(metrics.port)):
        pass


def test_readers_are_closed_however_a_build_ends(tmp_path: Path) -> None:
    """`close` of a reader is called after a build that failed too."""
    closed: list[bool] = []

    class Reader:
        def __call__(self, event: object) -> None:
            match event:
                case RowGroupFinished():
                    raise RuntimeError

        def close(self) -> None:
            closed.append(True)

    columns = [sb.Column("n", lambda rows: [*rows], kind="from_scratch")]
    with pytest.raises(sb.BuildStopped):
        sb.build(columns, rows=2, out=tmp_path / "data", readers=[Reader()])
    assert closed == [True]
