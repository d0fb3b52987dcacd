from __future__ import annotations

import io
from typing import Any

import pytest
from panel_picture import LATEST, PICTURE, picture, running
from rich.console import Console

from seedbed.observe import events
from seedbed.observe.lines import WIDTH, progress_line
from seedbed.observe.panel import Panel, draw
from seedbed.observe.progress import ProgressState, shorten


def drawn(state: ProgressState, width: int = 100, height: int = 40, **options: Any) -> list[str]:
    """The lines of the panel."""
    console = Console(file=io.StringIO(), width=width, _environ={}, **options)
    console.print(draw(state, title="questions", width=width, height=height))
    text: Any = console.file
    return text.getvalue().splitlines()


def begun(*columns: str, rows: int = 10, **fields: Any) -> ProgressState:
    """A run that has just begun."""
    state = ProgressState()
    given: dict[str, Any] = {"keys": dict.fromkeys(columns), **fields}
    state(events.BuildStarted(time=0.0, rows=rows, row_groups=1, columns=columns, **given))
    state(events.RowGroupAdmitted(time=0.0, row_group=0, rows=rows))
    state.update(1.0)
    return state


def test_the_picture_of_the_panel_is_current() -> None:
    """The picture that the README shows is what the panel looks like now."""
    message = f"{PICTURE.name} is not what the panel looks like: python tests/observe/panel_picture.py"
    assert PICTURE.read_text(encoding="utf-8") == picture(), message


@pytest.mark.parametrize(("width", "height"), [(200, 50), (110, 18), (80, 24), (60, 12), (40, 12), (20, 10)])
def test_it_fits_its_terminal(width: int, height: int) -> None:
    """No line is wider than the terminal, and there are no more lines than it has."""
    lines = drawn(running(), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height


def test_numbers_come_before_bars() -> None:
    """The bar of a column is the last thing on its line."""
    (line,) = (line for line in drawn(running(), height=12) if line.startswith("  question"))
    assert line.index("eta") < line.index("━")
    assert line.rstrip()[-1] in "━─"


def test_sampled_columns_share_a_line() -> None:
    """Columns that are generated from scratch are named on one line."""
    (line,) = (line for line in drawn(running()) if "sampled" in line)
    assert "topic, tone, author" in line
    assert not any(line.startswith("  topic ") for line in drawn(running(), height=12))


def test_a_model_has_its_alias() -> None:
    """Lines of models have the aliases of the recipe and not the throttle key with its URL."""
    state = begun("a", keys={"a": "https://example.com/v1 m chat"}, models={"https://example.com/v1 m chat": "writer"})
    state(events.TaskStarted(time=0.0, kind="cell", column="a", row_group=0, row=0, attempt=1))
    text = "\n".join([*drawn(state), progress_line(state)])
    assert "writer" in text
    assert "example.com" not in text


def test_long_names_are_shortened_in_the_middle() -> None:
    """Columns whose names differ at the end can still be told apart."""
    state = begun("a_question_about_the_topic_in_english", "a_question_about_the_topic_in_german")
    lines = drawn(state, width=80)
    assert any("a_question…n_english" in line for line in lines)
    assert any("a_question…in_german" in line for line in lines)
    assert [shorten("abcdef", width) for width in (6, 5, 2, 1, 0)] == ["abcdef", "ab…ef", "a…", "a", ""]


def test_long_names_displace_no_numbers() -> None:
    """A name is shortened before a number is left out, also of a throttle key that is a URL."""
    key = "https://api.example.com/v1/endpoints/region gpt-large-2026 chat"
    name = "a_question_about_the_topic_written_in_plain_english"
    text = "\n".join(drawn(begun(name, keys={name: key}, limits={key: 24}), width=80))
    for number in ("0/10", "0%", "0.0/s", "eta –", "0/24 in flight", "0 × 429", "0 tokens/s", "cost 0.00"):
        assert number in text


def test_work_in_progress_has_a_neutral_colour() -> None:
    """Red is for failures only."""
    state = begun("a")
    console = Console(file=io.StringIO(), record=True, force_terminal=True, width=100, _environ={})
    console.print(draw(state, title="x", width=100, height=30))
    assert "\x1b[31m" not in console.export_text(styles=True)


def test_the_end_has_totals_and_the_cost_was_predicted() -> None:
    """Tokens and cost so far and in total; at the end only what it was."""
    state = running()
    (line,) = (line for line in drawn(state) if "in total" in line)
    assert "tokens, cost 0.1" in line
    assert 1.5 * state.cost < (state.predicted_cost or 0.0) < 2 * state.cost
    state(events.BuildFinished(time=50.0, rows=999, dropped=1, error=None))
    state.update(50.0)
    text = "\n".join(drawn(state))
    assert "999 of 1,000 rows written, 1 dropped" in text
    assert "in total" not in text
    assert f"{state.tokens:,} tokens, cost" in text


def test_the_cost_of_a_column_that_has_not_begun_is_unknown() -> None:
    """Nothing is predicted before every column that calls a model has filled a row."""
    assert begun("a", "b", keys={"a": "k", "b": None}).predicted_cost is None


def test_room_is_used() -> None:
    """A high terminal has the latest row, a wide one percentiles and calls in flight over time."""
    lines = drawn(running(), 200, 50)
    text = "\n".join(lines)
    assert LATEST["author"] in text
    assert "p50" in text
    assert "▇█" in text
    assert "1 × score: the answer is not one of" in text
    assert "latest row" not in "\n".join(drawn(running(), 80, 12))


def test_columns_and_lines_of_the_environment_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS and LINES decide the size of the panel."""
    monkeypatch.setenv("COLUMNS", "44")
    monkeypatch.setenv("LINES", "9")
    stream = io.StringIO()
    panel = Panel(running(), stream, force_terminal=True, no_color=True)
    panel.show()
    panel.show_end()
    assert panel._console.size == (44, 9)
    assert "latest row" not in stream.getvalue()


def test_lines_are_short_whatever_happens() -> None:
    """Long names, reasons and many columns do not make a line longer."""
    names = [f"a_column_with_a_very_long_name_of_some_kind_{number}" for number in range(40)]
    keys = {
        name: f"https://a-server.example.com:8443/v1/of/some/kind a/model/with-a-long-name-{name}" for name in names
    }
    state = begun(*names, keys=keys)
    assert len(progress_line(state)) < WIDTH
    state(events.StopRequested(time=1.0, reason="too many errors: " + "the server said no " * 50))
    assert len(progress_line(state)) < WIDTH
    assert "stopping: too many errors" in progress_line(state)
    state(events.BuildFinished(time=2.0, rows=3, dropped=4, error="too many errors"))
    assert "too many errors" not in progress_line(state)  # whoever reports the error says it
    assert "rows 3/10 written, 4 dropped" in progress_line(state)
