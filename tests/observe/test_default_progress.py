"""Progress of builds in scripts: shown by default, on standard error only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import seedbed
from seedbed.errors import ConfigError
from seedbed.observe.lines import Lines
from seedbed.observe.panel import Panel
from seedbed.observe.show import open_display
from seedbed.testing import virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = """
import sys
import seedbed

def number(rows: range) -> list[int]:
    return list(rows)

columns = [seedbed.Column("number", number, kind="from_scratch"), seedbed.Column("double", lambda number: 2 * number)]
"""
BUILD = SCRIPT + "print(seedbed.build(columns, rows=3, out=sys.argv[1]).rows)\n"


def run(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script whose output goes to a pipe."""
    inherited = {name: value for name, value in os.environ.items() if name != "SEEDBED_PROGRESS"}
    own = {**inherited, "PYTHONPATH": str(Path(seedbed.__file__).parents[1]), **environment}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=own, capture_output=True, text=True, check=True, timeout=120)


def test_a_script_shows_lines_in_a_pipe(tmp_path: Path) -> None:
    """`build` and `resume` write short lines to standard error, nothing to standard output."""
    ended = run(BUILD, tmp_path / "out")
    assert ended.stdout == "3\n"
    (line,) = ended.stderr.splitlines()
    assert "rows 3/3 written" in line
    resumed = run(SCRIPT + "seedbed.resume(sys.argv[1], columns, rows=5)", tmp_path / "out")
    assert "rows 5/5 written" in resumed.stderr
    assert resumed.stdout == ""


def test_a_preview_shows_lines_in_a_pipe() -> None:
    """`preview` too."""
    assert "rows 2/2 written" in run(SCRIPT + "seedbed.preview(columns, rows=2)").stderr


def test_it_can_be_quiet(tmp_path: Path) -> None:
    """The option of a build and the environment variable switch it off."""
    assert run(BUILD.replace("out=", "progress='none', out="), tmp_path / "a").stderr == ""
    assert run(BUILD, tmp_path / "b", SEEDBED_PROGRESS="none").stderr == ""


class Stream:
    """Standard error, a terminal or not."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Without the variable that keeps tests quiet."""
    monkeypatch.delenv("SEEDBED_PROGRESS")
    return monkeypatch


def test_auto_is_the_panel_on_a_terminal_only(default: pytest.MonkeyPatch) -> None:
    """Standard error decides; the variable decides before it."""
    default.setattr(sys, "stderr", Stream(is_terminal=True))
    assert isinstance(open_display("auto", title="x"), Panel)
    assert isinstance(open_display("lines", title="x"), Lines)
    default.setenv("SEEDBED_PROGRESS", "lines")
    assert isinstance(open_display("auto", title="x"), Lines)
    assert isinstance(open_display("panel", title="x"), Panel)
    default.delenv("SEEDBED_PROGRESS")
    default.setattr(sys, "stderr", Stream(is_terminal=False))
    assert isinstance(open_display("auto", title="x"), Lines)
    default.setattr(sys, "stderr", None)  # as in a program without a console
    assert open_display("auto", title="x") is None


def test_an_unknown_display_is_reported(default: pytest.MonkeyPatch) -> None:
    """The message names the option or the variable, and what there is."""
    unknown: Any = "lnies"
    with pytest.raises(
        ConfigError, match="progress is one of auto, panel, lines, none, not 'lnies'; did you mean 'lines'"
    ):
        open_display(unknown, title="x")
    default.setenv("SEEDBED_PROGRESS", "off")
    with pytest.raises(ConfigError, match="SEEDBED_PROGRESS is one of"):
        open_display("auto", title="x")


def test_virtual_time_is_quiet(default: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Users' tests in virtual time print nothing; when asked, they do."""
    columns = [seedbed.Column("x", lambda: 1)]
    with virtual_time():
        seedbed.preview(columns, rows=2)
        assert capsys.readouterr().err == ""
        seedbed.preview(columns, rows=2, progress="lines")
    assert "rows 2/2" in capsys.readouterr().err


async def test_asynchronous_builds_are_quiet_unless_asked(
    default: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`build_async` belongs to programs that have their own output."""
    columns = [seedbed.Column("x", lambda: 1)]
    await seedbed.build_async(columns, rows=2, out=tmp_path / "a")
    assert capsys.readouterr().err == ""
    await seedbed.build_async(columns, rows=2, out=tmp_path / "b", progress="auto")
    assert "rows 2/2" in capsys.readouterr().err
