"""Simulations of recipes in which not every row counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import seedbed as sb

if TYPE_CHECKING:
    from pathlib import Path


def recipe(**rules: Any) -> sb.Recipe:
    """A question, a verdict about it and, for accepted ones, an answer."""
    return sb.Recipe(
        models={"writer": sb.OpenAICompatible(base_url="http://127.0.0.1:9", model="m", output_price=1.0)},
        columns=[
            sb.Category("topic", values=["tea", "rain"]),
            sb.LLMText("question", model="writer", prompt="Ask about {{ topic }}."),
            sb.LLMText("verdict", model="writer", prompt="Is this good: {{ question }}?"),
            sb.LLMText("answer", model="writer", prompt="Answer: {{ question }}"),
        ],
        **rules,
    )


def calls(found: sb.Simulation, column: str) -> float:
    """The mean number of calls of a column."""
    return next(each.calls.mean for each in found.base.columns if each.column == column)


def test_candidates_and_cost_follow_the_share_that_is_accepted() -> None:
    """As many candidates as it takes, and calls of later columns for accepted rows only."""
    found = sb.simulate(recipe(accept="verdict == 'yes'"), rows=200, accepted=0.25, seeds=2)
    assert found.base.written.mean == 200
    assert found.base.candidates is not None
    assert found.base.candidates.mean == pytest.approx(800, rel=0.15)
    assert calls(found, "verdict") == pytest.approx(800, rel=0.15)
    assert calls(found, "answer") == pytest.approx(200, rel=0.15)
    assert "candidates" in str(found)
    everything = sb.simulate(recipe(), rows=200, seeds=1)
    assert everything.base.candidates is None
    assert found.base.seconds.mean > everything.base.seconds.mean


def test_a_share_that_is_not_known_is_assumed_and_said() -> None:
    """Over placeholders the rule means nothing; a limit of candidates is reported as the end of the run."""
    found = sb.simulate(recipe(accept="verdict == 'yes'"), rows=100, seeds=1)
    assert any("accept reads placeholders; 50% of the candidates are accepted" in note for note in found.base.notes)
    short = sb.simulate(recipe(accept="verdict == 'yes'", max_candidates=110), rows=100, accepted=0.1, seeds=1)
    assert short.base.stopped is not None
    assert "110 candidates gave" in short.base.stopped


def test_a_rule_over_sampled_values_is_simulated_as_it_is() -> None:
    """Samplers run, so that their rule decides; duplicates are part of a share that is given."""
    found = sb.simulate(recipe(accept="topic == 'tea'"), rows=100, seeds=1)
    assert found.base.candidates is not None
    assert found.base.candidates.mean == pytest.approx(200, rel=0.3)
    assert calls(found, "question") == pytest.approx(100, rel=0.3)
    unique = sb.simulate(recipe(unique="question"), rows=100, accepted=0.5, seeds=1)
    assert unique.base.candidates is not None
    assert calls(unique, "answer") == pytest.approx(unique.base.candidates.mean, rel=0.15)


def test_the_share_is_measured_in_an_earlier_run(tmp_path: Path) -> None:
    """A dataset that was built with the rule knows its share."""
    source = sb.Recipe(
        models={"writer": sb.Scripted()},
        columns=[
            sb.Uniform("level", low=0, high=10),
            sb.LLMText("question", model="writer", prompt="Level {{ level }}."),
            sb.Expression("good", "level > 6 and question"),
        ],
        accept="level > 6",
    )
    dataset = sb.build(source, rows=60, out=tmp_path / "out", progress="none", config=sb.RunConfig(trace=True))
    found = sb.simulate(source, rows=60, measured_from=dataset.path, seeds=1)
    assert found.base.candidates is not None
    assert found.base.candidates.mean == pytest.approx(150, rel=0.3)
    with pytest.raises(sb.ConfigError, match="accepted must be a share above 0"):
        sb.simulate(source, rows=60, accepted=0)
