"""Profiles measured in real runs: from traces, from stored usage, and from rows of a probe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import seedbed as sb
from seedbed.observe.report import traces_frame, write_chrome_trace
from seedbed.simulation.profiles import measure, measure_path
from seedbed.store.dataset import save_traces
from seedbed.testing import serve_openai_sync, virtual_time

if TYPE_CHECKING:
    from pathlib import Path


def recipe(**behaviour: Any) -> sb.Recipe:
    """A question and its answer, which is skipped for one topic of two."""
    behaviour = {"latency": 2.0, "max_parallel_requests": 8, "output_price": 1.0, **behaviour}
    return sb.Recipe(
        models={"writer": sb.Scripted(**behaviour)},
        columns=[
            sb.Category("topic", values=["tea", "rain"]),
            sb.LLMText("question", model="writer", prompt="Ask about {{ topic }}."),
            sb.LLMText("answer", model="writer", prompt="Answer {{ question }}.", skip_when="topic == 'tea'"),
        ],
    )


def built(directory: Path, recipe: sb.Recipe, *, traces: bool = True) -> sb.Dataset:
    """A dataset as `seedbed run --profile` leaves it; in virtual time, so that measured times are exact."""
    with virtual_time():
        dataset = sb.build(recipe, rows=100, out=directory, config=sb.RunConfig(trace=traces, jitter_seed=1))
    assert dataset.report is not None
    if traces:
        save_traces(dataset.report.traces, directory)
    return dataset


def test_a_dataset_with_traces_has_a_whole_profile(tmp_path: Path) -> None:
    """Latencies, tokens, calls and skips of a run are those that the next one is simulated with."""
    dataset = built(tmp_path / "data", recipe())
    found = measure_path(tmp_path / "data").profiles
    question, answer = found["question"], found["answer"]
    assert set(question.latency["choice"]) == {2.0}
    assert question.calls == 1.0
    assert dataset.report is not None
    used = dataset.report.usage["question"]
    assert question.output_tokens == used.output_tokens / used.calls
    assert answer.skipped == pytest.approx(1 - dataset.report.usage["answer"].calls / 100)
    assert question.rate_limited == 0
    simulated = sb.simulate(recipe(latency=9.0), rows=100, seeds=1, measured_from=tmp_path / "data", overhead=0.0)
    assert simulated.seconds == pytest.approx(dataset.report.seconds, rel=0.15)
    assert simulated.base.assumptions == ()
    assert simulated.base.columns[0].origins["latency"] == "measured"


def test_a_given_profile_precedes_a_measured_one(tmp_path: Path) -> None:
    """The user's latency replaces that of the earlier run."""
    built(tmp_path / "data", recipe())
    found = sb.simulate(
        recipe(), rows=8, seeds=1, measured_from=tmp_path / "data", calls={"writer": {"latency": 30.0}}, overhead=0.0
    )
    assert found.seconds == pytest.approx(60.0)


def test_rate_limits_and_failures_are_measured(tmp_path: Path) -> None:
    """The shares of attempts that were rate-limited, or failed and were retried."""
    built(tmp_path / "data", recipe(rate_limit_share=0.2, error_share=0.1, error_latency=0.25))
    question = measure_path(tmp_path / "data").profiles["question"]
    assert question.rate_limited == pytest.approx(0.2, abs=0.15)
    assert question.failed == pytest.approx(0.1, abs=0.1)
    assert question.error_latency == pytest.approx(0.25)


def test_a_dataset_without_traces_has_tokens_only(tmp_path: Path) -> None:
    """The manifest of every dataset has the usage; latencies are assumed."""
    built(tmp_path / "data", recipe(), traces=False)
    question = measure_path(tmp_path / "data").profiles["question"]
    assert question.latency is None
    assert question.output_tokens > 0


def test_a_timeline_file_has_latencies(tmp_path: Path) -> None:
    """The file that --trace wrote has no tokens, but every task with its time."""
    dataset = built(tmp_path / "data", recipe())
    assert dataset.report is not None
    write_chrome_trace(dataset.report.traces, tmp_path / "trace.json")
    question = measure_path(tmp_path / "trace.json").profiles["question"]
    assert set(question.latency["choice"]) == {2.0}
    assert question.output_tokens is None


@pytest.mark.parametrize("text", ["[]", "{", json.dumps({"traceEvents": []}), "no"])
def test_other_files_are_rejected(tmp_path: Path, text: str) -> None:
    """The error names what is expected."""
    (tmp_path / "file.json").write_text(text, encoding="utf-8")
    with pytest.raises(sb.ConfigError, match="is neither a dataset nor a timeline that --trace wrote"):
        measure_path(tmp_path / "file.json")


def test_other_directories_are_rejected(tmp_path: Path) -> None:
    """A directory without a dataset has nothing to measure."""
    with pytest.raises(sb.ConfigError, match="is not a dataset whose run could be measured"):
        measure_path(tmp_path)


def test_several_calls_of_a_cell_are_known_from_usage(tmp_path: Path) -> None:
    """The time of a cell with two calls is divided by two."""

    @sb.column
    async def twice(topic: str, writer: sb.Model) -> str:
        return await writer.chat(await writer.chat(topic))

    made = sb.Recipe(models=recipe().models, columns=[sb.Category("topic", values=["tea"]), twice])
    built(tmp_path / "data", made)
    found = measure_path(tmp_path / "data").profiles["twice"]
    assert found.calls == 2.0
    assert set(found.latency["choice"]) == {2.0}


def test_many_latencies_are_sampled() -> None:
    """Of a long run about 2,000 latencies are used, over the whole range."""
    with virtual_time():
        report = sb.preview(recipe(), rows=5_000, config=sb.RunConfig(trace=True)).report
    profiles = measure(traces_frame(report.traces), report.usage)
    assert 2_000 <= len(profiles["question"].latency["choice"]) < 4_000
    assert report.requested == 5_000


def test_a_probe_makes_real_calls_and_reports_its_usage() -> None:
    """A few rows over HTTP: their latency and tokens are what the rest is simulated with."""
    with serve_openai_sync(latency=0.05) as server:
        model = sb.OpenAICompatible(base_url=server.url, model="m", max_parallel_requests=2, output_price=1.0)
        made = sb.Recipe(models={"writer": model}, columns=[sb.LLMText("text", model="writer", prompt="Say a word.")])
        found = sb.simulate(made, rows=40, probe=4, seeds=1)
        assert server.statistics.requests == 4
    assert found.probed is not None
    assert (found.probed.rows, found.probed.calls) == (4, 4)
    assert found.probed.cost > 0
    assert found.base.assumptions == ()
    # 20 calls of 50 ms one after the other, at least; however slow the machine, not a second and a half each.
    assert 1.0 <= found.seconds < 30.0


def test_a_column_with_another_model_has_the_profile_of_that_model(tmp_path: Path) -> None:
    """A profile measured with one model does not apply to another; one of another column with that model does."""
    models = {"slow": sb.Scripted(model="slow", latency=8.0), "quick": sb.Scripted(model="quick", latency=1.0)}
    made = sb.Recipe(
        models={**models, "new": sb.OpenAICompatible(base_url="http://127.0.0.1:9/v1", model="new")},
        columns=[
            sb.LLMText("first", model="slow", prompt="Say something."),
            sb.LLMText("second", model="quick", prompt="Say something."),
        ],
    )
    built(tmp_path / "data", made)
    found = sb.simulate(
        made, rows=4, seeds=1, measured_from=tmp_path / "data", vary={"columns.first.model": ["quick", "new"]}
    )
    quick, new = found.variants
    assert set(quick.estimate.columns[0].profile.latency["choice"]) == {1.0}
    assert quick.estimate.assumptions == ()
    assert new.estimate.assumptions == ("first (new): latency, output tokens",)
