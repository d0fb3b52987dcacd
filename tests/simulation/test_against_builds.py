"""A simulation against the build itself, which runs in virtual time with a scripted model that takes as long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seedbed as sb
from seedbed.simulation.calls import LEARNED
from seedbed.testing import virtual_time

LATENCIES = st.sampled_from([0.25, 1.0, 2.5])


@st.composite
def recipes(draw: st.DrawFn) -> sb.Recipe:
    """Up to four columns of two models, each of which needs some of those before it."""
    models = {
        alias: sb.Scripted(model=alias, latency=draw(LATENCIES), max_parallel_requests=draw(st.integers(1, 20)))
        for alias in ("writer", "critic")
    }
    columns: list[Any] = [sb.Category("c0", values=["tea", "rain"])]
    for number in range(1, draw(st.integers(2, 5))):
        needs = draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=2, unique=True))
        prompt = " ".join(f"About {{{{ c{need} }}}}." for need in needs)
        columns.append(sb.LLMText(f"c{number}", model=draw(st.sampled_from(sorted(models))), prompt=prompt))
    return sb.Recipe(models=models, columns=columns)


@settings(max_examples=settings.default.max_examples // 10)  # type: ignore[union-attr]
@given(recipe=recipes(), rows=st.integers(1, 60), buffer_size=st.sampled_from([5, 20, 1000]))
def test_a_simulation_takes_as_long_as_the_build(recipe: sb.Recipe, rows: int, buffer_size: int) -> None:
    """Whatever the graph, the limits and the row groups: the same engine gives the same time, and the same calls."""
    config = sb.RunConfig(buffer_size=buffer_size)

    async def build() -> sb.BuildReport:
        async with sb.open_build(recipe, rows=rows, config=config) as running:
            return await running.wait()

    with virtual_time() as clock:
        report = clock.run(build)
    found = sb.simulate(recipe, rows=rows, config=config, seeds=1, overhead=0.0)
    # Tasks of one instant run in any order, which may cost or spare a call's time at the end of a row group.
    longest = max(model.latency for model in recipe.models.values())  # type: ignore[attr-defined]
    assert found.seconds == pytest.approx(report.seconds, rel=0.05, abs=longest)
    assert {each.column: each.calls.mean for each in found.base.columns} == {
        name: used.calls for name, used in report.usage.items()
    }
    if rows <= LEARNED:  # every prompt was rendered
        first = found.base.columns[[each.column for each in found.base.columns].index("c1")]
        assert first.input_tokens.mean == report.usage["c1"].input_tokens
