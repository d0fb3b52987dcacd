"""The text, timeline and page of a simulation, and the syntax of variants."""

from __future__ import annotations

import pytest
from recipes import chain

import seedbed as sb
from seedbed.simulation.result import (
    Spread,
    Track,
    page,
    seconds_text,
    spread_text,
    timeline_lines,
)
from seedbed.simulation.stage import parse_vary


def track(in_flight: list[float], limit: list[float] | None = None) -> Track:
    """A key with a ceiling of eight."""
    return Track(key="k", ceiling=8, in_flight=tuple(in_flight), limit=tuple(limit or [8.0] * len(in_flight)))


def test_the_timeline_is_as_high_as_what_was_in_flight() -> None:
    """A full column of blocks is the ceiling, half a column half of it, none nothing."""
    lines = timeline_lines(track([8, 4, 1, 0]), 90.0, height=2)
    assert lines == ["8 ┤█   ", "0 ┤██▂ ", "  └────", "   0s1m30s"]


def test_the_timeline_shows_the_limit_of_the_throttle() -> None:
    """The limit that the throttle found is a dashed line, unless the calls reach it."""
    lines = timeline_lines(track([2, 4], [4, 4]), 9.0, height=2)
    assert lines[:2] == ["8 ┤  ", "0 ┤▄█"]
    assert timeline_lines(track([1, 1], [5, 5]), 9.0, height=2)[0] == "8 ┤╌╌"


def test_the_timeline_is_squeezed_to_its_width() -> None:
    """Neighbours are put together by their mean."""
    assert timeline_lines(track([8, 0, 8, 8]), 9.0, width=2, height=1)[0] == "8 ┤▄█"


def test_spreads_are_shown_where_seeds_differ() -> None:
    """By the largest difference from the mean, in percent; seeds that agree have none."""
    wide, narrow = Spread(mean=100, low=90, high=105), Spread(mean=100, low=99.9, high=100.1)
    assert spread_text(wide, "{:,.0f}".format) == "100 ±10%"
    assert spread_text(narrow, "{:,.0f}".format) == "100"


def test_short_times_have_a_decimal() -> None:
    """Below a minute, tenths of seconds are shown."""
    assert [seconds_text(each) for each in (0.25, 59.9, 61, 3700)] == ["0.2s", "59.9s", "1m01s", "1h01m"]


def test_the_page_holds_everything() -> None:
    """One file with figures, timelines, variants and assumptions; it loads nothing, and all text is escaped."""
    found = sb.simulate(
        chain("a<b>"),
        rows=4,
        seeds=1,
        vary={"models.writer.max_parallel_requests": [2]},
        calls={"writer": {"failed": 0}},
    )
    text = page(found, "tea & bread")
    assert text.startswith("<!DOCTYPE html>")
    assert "tea &amp; bread" in text
    assert "a&lt;b&gt;" in text
    assert "<b>a" not in text
    assert len(found.base.timeline) == 1
    assert "writer: calls in flight" in text
    assert "█" in text
    assert "models.writer.max_parallel_requests=2" in text
    assert "assumed, because neither given nor measured" in text
    assert "http" not in text.replace("http://127.0.0.1:9/v1", "")


@pytest.mark.parametrize(
    ("text", "path", "values"),
    [
        ("models.writer.max_parallel_requests=32,64", "models.writer.max_parallel_requests", [32, 64]),
        ("columns.answer.model=small,large", "columns.answer.model", ["small", "large"]),
        ("run.cell_timeout=null,2.5", "run.cell_timeout", [None, 2.5]),
        (
            "profile.writer.latency=lognormal(0.8,0.5),2",
            "profile.writer.latency",
            ["lognormal(0.8,0.5)", 2],
        ),
    ],
)
def test_variants_are_parsed(text: str, path: str, values: list[object]) -> None:
    """Values are YAML, and a comma in brackets separates nothing."""
    assert parse_vary(text) == (path, values)


@pytest.mark.parametrize("text", ["run.buffer_size", "run.buffer_size=", "run.buffer_size=[1"])
def test_invalid_variants_are_rejected(text: str) -> None:
    """A path without values, or values that are not YAML."""
    with pytest.raises(sb.ConfigError, match=r"PATH=VALUE|is not a list of YAML values"):
        parse_vary(text)


def test_every_kind_of_change_and_every_combination() -> None:
    """Limits, options, the model of a column and profiles can be varied together."""
    recipe = sb.Recipe(
        models={"writer": sb.Scripted(latency=1.0), "other": sb.Scripted(model="other", latency=2.0)},
        columns=[sb.LLMText("text", model="writer", prompt="Say something.")],
    )
    found = sb.simulate(
        recipe,
        rows=8,
        seeds=1,
        overhead=0.0,
        vary={
            "columns.text.model": ["writer", "other"],
            "profile.other.latency": [3.0],
            "run.max_submitted_tasks": [4],
        },
    )
    assert [each.estimate.seconds.mean for each in found.variants] == [pytest.approx(2.0), pytest.approx(6.0)]
    assert [each.estimate.columns[0].model for each in found.variants] == ["writer", "other"]
