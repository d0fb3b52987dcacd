"""The commands say how many candidates were accepted and what a row costs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from seedbed.cli import main
from seedbed.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RECIPE = """
models:
  writer: {type: scripted, answers: "{choice:yes|no|no}", input_price: 1.0}
columns:
  - {name: n, type: uniform, low: 0, high: 1}
  - {name: answer, type: llm-text, model: writer, prompt: "{{ n }}"}
accept: answer == "yes"
"""


def write(folder: Path, more: str = "") -> str:
    """A recipe file."""
    path = folder / "recipe.yaml"
    path.write_text(RECIPE + more, encoding="utf-8")
    return str(path)


def test_run_and_inspect_report_candidates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON, in the run that built it and later."""
    recipe, out = write(tmp_path), str(tmp_path / "out")
    assert main(["run", recipe, "-n", "40", "-o", out, "--progress", "lines"]) == 0
    captured = capsys.readouterr()
    assert "rows 40/40 written" in captured.err
    assert "% accepted" in captured.err
    assert "40 of 40 rows" in captured.out
    assert "cost of a row, rejected candidates included" in captured.out
    assert main(["inspect", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept = found["written"] + found["surplus"] + found["rejected"] + found["dropped"] + found["unfinished"]
    assert found["candidates"] == kept
    assert 0.2 < found["acceptance_rate"] < 0.5
    assert found["cost_per_row"] > 0
    assert main(["inspect", out]) == 0
    assert "rejected" in capsys.readouterr().out


def test_exhausted_candidates_have_an_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says how to continue; a partial dataset is a success that says why it is small."""
    recipe, out = write(tmp_path, "max_candidates: 45\n"), str(tmp_path / "out")
    assert main(["run", recipe, "-n", "40", "-o", out, "--progress", "none"]) == ExitCode.EXHAUSTED == 17
    assert "resume with a larger max_candidates" in capsys.readouterr().err
    recipe = write(tmp_path, "max_candidates: 45\non_exhausted: partial\n")
    assert main(["run", recipe, "-n", "40", "-o", out, "--resume", "--progress", "none", "--json"]) == 0
    assert "45 candidates gave" in json.loads(capsys.readouterr().out)["exhausted"]


def test_problems_of_rules_are_reported_with_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All at once: an unknown column, a wrong type, a misspelled field."""
    path = tmp_path / "recipe.yaml"
    rules = "unique: [anser]\nnear_duplicates: {off: answer}\nmax_candidates: 0\n"
    path.write_text(RECIPE.replace('answer == "yes"', "answr == 1") + rules, encoding="utf-8")
    assert main(["check", str(path)]) == ExitCode.BAD_INPUT
    found = capsys.readouterr()
    text = found.err + found.out
    for line, message in (
        (7, "accept: unknown column 'answr'; did you mean 'answer'?"),
        (8, "unique: unknown column 'anser'; did you mean 'answer'?"),
        (9, "near_duplicates: unknown field 'off'; did you mean 'of'?"),
        (10, "max_candidates: max_candidates must be a whole number, 1 or more, not 0"),
    ):
        assert f"recipe.yaml:{line}: {message}" in text
