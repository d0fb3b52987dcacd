"""Row counts: the forms that -n takes, and the output of a run that does not start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from command import recipe

from seedbed.cli import main
from seedbed.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "rows"), [("7", 7), ("1e1", 10), ("0.02k", 20), ("1_0", 10), ("0.00001M", 10), ("0.01K", 10)]
)
def test_a_row_count_may_have_an_exponent_or_a_unit(
    text: str, rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1e6 and 100k are numbers of rows."""
    assert main(["preview", str(recipe(tmp_path)), "-n", text, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["requested"] == rows


@pytest.mark.parametrize("text", ["", "k", "1.5", "many", "nan", "inf", "infk", "1e999999999", "5x", "-1"])
def test_anything_else_is_rejected(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option, the forms that it takes and the text."""
    assert main(["preview", str(recipe(tmp_path)), "-n", text]) == ExitCode.BAD_INPUT
    error = capsys.readouterr().err
    assert f"-n takes a number of rows, 0 or more, such as 1000, 1e6 or 100k, not {text!r}" in error


def test_resume_takes_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An optional row count has the same forms."""
    out = str(tmp_path / "out")
    assert main(["run", str(recipe(tmp_path)), "-n", "5", "-o", out]) == ExitCode.OK
    assert main(["resume", out, "-n", "0.01k", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["requested"] == 10


def test_an_error_before_the_first_row_is_printed_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that does not start prints no line of progress."""
    out = str(tmp_path / "out")
    assert main(["run", str(recipe(tmp_path)), "-n", "5", "-o", out]) == ExitCode.OK
    capsys.readouterr()
    assert main(["run", str(recipe(tmp_path)), "-n", "5", "-o", out]) == ExitCode.BAD_INPUT
    assert "rows 0/0" not in capsys.readouterr().err
