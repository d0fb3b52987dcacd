"""README.md agrees with what it describes; tests/test_docs.py runs its Python and follows its links."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from typing import TYPE_CHECKING

import readme
import yaml

from seedbed import Dataset
from seedbed.cli import main
from seedbed.cli.init import templates
from seedbed.models import OpenAICompatible

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TEXT = readme.README.read_text(encoding="utf-8")
COMMANDS = [
    line.partition("#")[0].strip()
    for block in re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


def test_the_table_of_peers_is_that_of_the_measured_figures() -> None:
    """Whoever replaces the figures runs tests/readme.py."""
    assert readme.filled(TEXT) == TEXT, "run `python tests/readme.py`"
    assert re.search(r"^\| seedbed( [\d.]+)? \| 8,000 \|", TEXT, re.MULTILINE)


def test_the_table_takes_the_largest_work_of_a_benchmark_run() -> None:
    """Figures of `nox -s bench_peers`, with several sizes and limits and with memory, give one line for each peer."""
    rows = [
        {
            "": name,
            "version": version,
            "rows": rows,
            "at once": at_once,
            "wall ÷ ideal": at_once / 10,
            "CPU per call, ms": rows / at_once,
            "peak memory, MB": float(rows),
        }
        for rows in (500, 2_000)
        for at_once in (32, 128)
        for name, version in (("seedbed", readme.HERE), ("DataDesigner", "1.0"))
    ]
    assert readme.peers_table(json.loads(json.dumps({"tables": [{"title": "", "rows": rows}]}))) == (
        "|  | calls | 32 calls at once | 128 calls at once | CPU per call | peak memory |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| seedbed | 8,000 | 3.20 × | 12.80 × | 15.62–62.50 ms | 2,000 MB |\n"
        "| DataDesigner 1.0 | 8,000 | 3.20 × | 12.80 × | 15.62–62.50 ms | 2,000 MB |\n"
    )
    rows[0]["version"] = "0.9"
    older = readme.peers_table({"tables": [{"title": "", "rows": rows}]})
    assert older.endswith(
        "\nThe figures of seedbed are those of version 0.9; the command below measures this checkout.\n"
    )


def test_the_real_model_is_one() -> None:
    """The six lines of YAML are a model that a recipe accepts."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(block.splitlines()) == 6
    given = yaml.safe_load(block)["models"]["writer"]
    assert given.pop("type") == "openai"
    assert OpenAICompatible(**given).base_url == "https://api.example.com/v1"


def test_there_are_two_commands_to_begin_and_to_test() -> None:
    """One command installs and shows a dataset, one installs and passes all tests."""
    (first,) = [command for command in COMMANDS if "pip install" in command]
    assert "seedbed run examples/quickstart/reviews.yaml" in first
    assert "bash .ci/run" in COMMANDS
    assert (readme.ROOT / ".ci" / "run").exists()


def test_commands_of_the_first_minutes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands after the installation do what they say, in the order of the page."""
    run = COMMANDS[0].partition(".venv/bin/seedbed ")[2]
    commands = [run, *(command[len("seedbed ") :] for command in COMMANDS if command[:8] == "seedbed ")]
    (tmp_path / "examples").symlink_to(readme.ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert main(shlex.split(command)) == 0, command


def test_the_number_of_recipes_is_right() -> None:
    """The page counts the cookbook in words."""
    words = {8: "eight", 9: "nine", 10: "ten"}
    assert f"{words[len(templates())]} complete ones" in TEXT


def test_trio_is_mentioned_once() -> None:
    """Under how it works, where it is linked."""
    assert len(re.findall(r"\btrio\b(?!\.readthedocs)", TEXT)) == 1


def test_the_mistakes_of_the_tutorial_are_found_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mistakes are named with their lines; a filter that removes all rows is corrected without another call."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(readme.ROOT / "examples" / "quickstart", "my-reviews")
    recipe = tmp_path / "my-reviews" / "reviews.yaml"
    sound = recipe.read_text(encoding="utf-8").replace("latency: {uniform: [0.1, 0.4]}", "latency: 0")
    wrong = sound.replace("mood, type: category", "mood, typ: categry")
    recipe.write_text(wrong, encoding="utf-8")
    assert main(["check", str(recipe)]) == 2
    assert "columns[1]" in capsys.readouterr().out
    wrong = sound.replace("a {{ mood }} customer", "a {{ mod }} customer").replace("check.is_valid", "check.is_vald")
    recipe.write_text(wrong, encoding="utf-8")
    assert main(["check", str(recipe)]) == 2
    problems = capsys.readouterr().out
    assert "did you mean 'mood'" in problems
    assert "did you mean 'is_valid'" in problems
    filtered = "processors:\n  - {type: filter, expr: quality.relevance + quality.tone >= %s}\n"
    run = ["run", str(recipe), "-n", "20", "-o", "data", "--head", "0"]
    recipe.write_text(sound + filtered % 12, encoding="utf-8")
    assert main(run) == 4  # the dataset is empty
    assert "20 removed by 'filter'" in capsys.readouterr().out
    before = Dataset.open("data").report
    recipe.write_text(sound + filtered % 6, encoding="utf-8")
    assert main([*run, "--resume"]) == 0
    resumed = Dataset.open("data")
    assert before is not None
    assert resumed.report is not None
    assert resumed.report.usage == before.usage
    assert resumed.rows > 0
