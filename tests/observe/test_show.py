from __future__ import annotations

import io
import os
from typing import Any

import pytest
import trio

import seedbed
from seedbed.observe.display import Display, would_wait
from seedbed.observe.lines import Lines, progress_line
from seedbed.observe.panel import Panel
from seedbed.observe.progress import ProgressState, duration, money, per_second
from seedbed.runtime.throttle import KeyLimits


class Recorded(Display):
    """A display that stores what it shows, and can be set to raise."""

    def __init__(self) -> None:
        super().__init__(ProgressState())
        self.seen: list[float] = []
        self.closed: list[int] = []  # rows written
        self.broken: Exception | None = None

    def show(self) -> None:
        if self.broken is not None:
            raise self.broken
        self.seen.append(self.state.elapsed)

    def show_end(self) -> None:
        self.closed.append(self.state.written)
        if self.broken is not None:
            raise self.broken


async def build(show: Display, seconds: float = 4.5, *, others: int = 0, **options: Any) -> None:
    """Run a build of one slow cell, beside other columns that are done at once."""

    async def slow() -> int:
        await trio.sleep(seconds)
        return 1

    columns = [seedbed.Column(f"c{number}", lambda: 0) for number in range(others)]
    columns.append(seedbed.Column("x", slow, key="key"))
    async with seedbed.open_build(columns, rows=1, readers=[show], **options) as running:
        await running.wait()


async def test_it_refreshes_while_nothing_happens(autojump_clock: object) -> None:
    """The display is refreshed at steady intervals without events, and once at the end."""
    view = Recorded()
    await build(view)
    assert [round(each) for each in view.seen] == [0, 1, 2, 3, 4]
    assert view.closed == [1]


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "gone"), ValueError("closed file")])
async def test_a_view_that_raises_does_not_end_the_run(error: Exception, autojump_clock: object) -> None:
    """An exception of a view ends the display; the run continues to its end."""
    view = Recorded()
    view.broken = error
    await build(view)
    view.close()
    assert not view.seen


async def test_closing_twice_shows_the_end_once(autojump_clock: object) -> None:
    """The caller may close a display that the run has closed."""
    view = Recorded()
    await build(view)
    view.close()
    assert len(view.closed) == 1


async def test_lines_come_every_ten_seconds_and_at_the_end(autojump_clock: object) -> None:
    """A pipe gets one line with all columns every ten seconds, and one at the end."""
    stream = io.StringIO()
    await build(Lines(ProgressState(), stream), seconds=25)
    lines = stream.getvalue().splitlines()
    assert [line.partition(" |")[0] for line in lines] == [
        "[10s] rows 0/1 written",
        "[20s] rows 0/1 written",
        "[25s] rows 1/1 written",
    ]
    assert "| x 0% 0.0/s eta – | key: 1/– in flight" in lines[0]


async def test_a_full_pipe_does_not_block_the_run(autojump_clock: object) -> None:
    """While the pipe is full, lines are skipped."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as stream:
        assert not would_wait(stream)
        while not would_wait(stream):
            os.write(writing, b"x" * 4096)
        lines = Lines(ProgressState(), stream)
        lines.show()
        lines.show()
        assert b"rows" not in reader.read1(1 << 20)


async def test_the_panel_has_bars_and_keys(autojump_clock: object) -> None:
    """A terminal gets a bar for each column and a line for each key, drawn in place."""
    stream = io.StringIO()
    panel = Panel(ProgressState(), stream, title="reviews", force_terminal=True, width=100, height=30)
    await build(panel, limits={"key": KeyLimits(max_parallel_requests=4)})
    text = stream.getvalue()
    for part in (
        "reviews",
        "0/1",
        "─",
        "1/4 in flight",
        "0 × 429",
        "0 tokens/s",
        "cost",
        "1 of 1 rows written",
        "done",
    ):
        assert part in text
    assert "\x1b[1A" in text  # it goes up again to draw over itself
    assert text.endswith("\x1b[?25h")  # and leaves the cursor as it was


async def test_a_terminal_with_few_lines_shows_running_columns(autojump_clock: object) -> None:
    """With more columns than lines, running columns are shown and the others are counted."""
    stream = io.StringIO()
    panel = Panel(ProgressState(), stream, force_terminal=True, width=100, height=12)
    await build(panel, others=20)
    assert "more columns" in stream.getvalue()
    assert "  x " in stream.getvalue()


def test_line_breaks_are_replaced() -> None:
    """Line breaks in a reason do not break the line."""
    state = ProgressState()
    state.stopping = "a\nb"
    assert "\n" not in progress_line(state)
    assert "a b" in progress_line(state)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0s"),
        (0.2, "1s"),
        (59, "59s"),
        (65, "1m05s"),
        (7380, "2h03m"),
        (273600, "3d04h"),
        (float("inf"), "–"),
    ],
)
def test_durations_have_at_most_two_units(seconds: float | None, text: str) -> None:
    """Days and hours, hours and minutes, minutes and seconds, or seconds; a dash for an unknown duration."""
    assert duration(seconds) == text


def test_rates_and_costs_are_rounded_by_size() -> None:
    """Small numbers keep their digits, large ones do not."""
    assert [per_second(1.25), per_second(1234.5)] == ["1.2/s", "1,234/s"]
    assert [money(0), money(0.00312), money(1234.5)] == ["0.00", "0.0031", "1,234.50"]
