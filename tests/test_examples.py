"""The examples run as a user runs them."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import duckdb
import pytest

import seedbed.cli.init as init_module
from seedbed import Dataset
from seedbed.cli import main
from seedbed.cli.init import templates

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parent.parent / "examples"
COOKBOOK = EXAMPLES / "cookbook"


def test_plain_columns_build_a_dataset_and_show_it(tmp_path: Path) -> None:
    """It ends with a complete dataset, prints rows of it, and reports rate limits and drops."""
    command = [sys.executable, str(EXAMPLES / "plain_columns.py")]
    for _ in range(2):  # the second run replaces what the first left
        shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    dataset = Dataset.open(tmp_path / "data" / "reviews")
    dataset.verify()
    assert dataset.complete
    assert dataset.rows == 196
    assert {drop.reason for drop in dataset.drops} == {"stars: the judge gave no number"}
    assert "196 of 200 rows, 4 dropped" in shown
    assert "batch_0000003.parquet" in shown


@attrs.frozen
class Cooked:
    """A recipe of the cookbook, built with its scripted models."""

    name: str
    dataset: Dataset

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.dataset.to_polars().to_dicts()


@pytest.fixture
def cook(tmp_path: Path) -> Callable[[str], Cooked]:
    """Write a template, run it, and open what it made; nothing of it may have been dropped."""

    def run(name: str) -> Cooked:
        assert main(["init", str(tmp_path / name), "--template", name]) == 0
        path, out = str(tmp_path / name / "recipe.yaml"), tmp_path / "data"
        options = ["--progress", "none", "--head", "0", "--allow-code"]
        assert main(["run", path, "-n", "24", "-o", str(out), *options]) == 0
        dataset = Dataset.open(out)
        assert dataset.complete
        assert not [drop for drop in dataset.drops if drop.kind != "rejected"]
        assert dataset.rows >= (3 if name == "quizzes" else 8)
        return Cooked(name, dataset)

    return run


def conversation(messages: list[dict[str, str]]) -> list[str]:
    """The roles of the messages, none of which is empty."""
    assert all(message["content"].strip() for message in messages)
    return [message["role"] for message in messages]


def test_instructions_have_requests_and_answers(cook: Callable[[str], Cooked]) -> None:
    """Requests are answered as rewritten if they were; all passed the judge, and none is there twice."""
    rows = cook("instructions").rows
    for row in rows:
        assert row["request"] == (row["evolved"] or row["instruction"])
        assert (row["evolved"] is not None) == row["evolve"]
        assert row["quality"]["helpful"] >= 4
        assert conversation(row["messages"]) == ["user", "assistant"]
        assert row["messages"][0]["content"] == row["request"]
    assert {row["evolve"] for row in rows} == {True, False}
    assert len({row["request"] for row in rows}) == len(rows)


def test_sql_is_bound_to_its_tables(cook: Callable[[str], Cooked]) -> None:
    """Every statement runs on its tables; the one that names a missing column was repaired."""
    rows = cook("text-to-sql").rows
    for row in rows:
        with duckdb.connect() as database:
            database.execute(row["ddl"])
            database.execute(row["sql"])
    repaired = [row["sql"] for row in rows if row["domain"] == "a bicycle shop"]
    assert repaired
    assert all("o.total" in sql and "o.amount" not in sql for sql in repaired)


def test_rag_questions_quote_their_passages(cook: Callable[[str], Cooked]) -> None:
    """Each passage has several questions; what can be answered quotes it, what cannot has neither quote nor answer."""
    cooked = cook("rag-questions")
    for row in cooked.rows:
        assert bool(row["quote"]) == bool(row["answer"]) == row["answerable"]
        assert row["quote"] in row["passage"]
    assert {row["answerable"] for row in cooked.rows} == {True, False}
    passages = {row["_row"]: row["passage"] for row in cooked.dataset.stage("passages")}
    assert len(passages) == 24
    assert all(row["passage"] == passages[row["_parent"]] for row in cooked.rows)
    assert max(Counter(row["_parent"] for row in cooked.rows).values()) > 1


def test_quizzes_have_five_questions_of_a_subject(cook: Callable[[str], Cooked]) -> None:
    """No question is in two of them."""
    cooked = cook("quizzes")
    for row in cooked.rows:
        assert [each["subject"] for each in row["questions"]] == [row["subject"]] * 5
        assert all(each["item"]["question"] in row["text"] for each in row["questions"])
        assert row["hard"] == sum(each["level"] == "hard" for each in row["questions"])
    used = [number for row in cooked.rows for number in row["_parent"]]
    assert len(used) == len(set(used)) == 5 * len(cooked.rows)


def test_chats_end_when_the_customer_is_content(cook: Callable[[str], Cooked]) -> None:
    """Each side speaks in turn, the assistant has the last word, and the first message is about the case."""
    rows = cook("chat").rows
    for row in rows:
        assert conversation(row["messages"]) == ["user", "assistant"] * (len(row["messages"]) // 2)
        is_settled = "settles it" in row["messages"][-2]["content"]
        assert len(row["messages"]) == 6 or is_settled
        assert not any("settles it" in message["content"] for message in row["messages"][:-2])
    assert {len(row["messages"]) for row in rows} == {4, 6}
    assert any("postage" not in str(row) and "shoes" in row["messages"][0]["content"] for row in rows)


def test_tools_are_called_where_they_are_needed(cook: Callable[[str], Cooked]) -> None:
    """The first call is of the row's tool, or there is none; wrong arguments are corrected."""
    rows = cook("tool-calls").rows
    for row in rows:
        roles = [message["role"] for message in row["messages"]]
        calls = [call["function"] for message in row["messages"] for call in message["tool_calls"] or ()]
        results = [message["content"] for message in row["messages"] if message["role"] == "tool"]
        assert roles == ["system", "user", *["assistant", "tool"] * len(calls), "assistant"]
        if row["situation"] == "no tool is needed":
            assert not calls
        else:
            assert calls[0]["name"] == row["tool"]
            assert row["messages"][-1]["content"].endswith(results[-1])
        # The script sometimes has "eighty" for a price, which the types of the function reject.
        assert ["eighty" in call["arguments"] for call in calls] == [result.startswith("Error: ") for result in results]
    assert {len(row["messages"]) for row in rows} >= {3, 5}
    assert "none" in {row["tool"] for row in rows}


def test_preferences_are_the_best_and_the_worst(cook: Callable[[str], Cooked]) -> None:
    """Every pair has a clear winner."""
    rows = cook("preferences").rows
    for row in rows:
        assert set(row) >= {"prompt", "chosen", "rejected", "margin"}
        assert row["margin"] >= 3
        assert "It just works" not in row["chosen"]
        assert "An example" not in row["rejected"]


def test_labels_are_balanced_and_agreed_on(cook: Callable[[str], Cooked]) -> None:
    """No label has more rows than its share, and those that nobody disputes have exactly that."""
    counts = Counter(row["label"] for row in cook("classification").rows)
    assert set(counts) == {"billing", "cancellation", "technical", "delivery", "account", "praise"}
    assert max(counts.values()) == 4 == counts["billing"] == counts["praise"]


def test_code_passes_its_tests(cook: Callable[[str], Cooked]) -> None:
    """Solutions pass their tests, also here, and those that the script got wrong are not in the dataset."""
    cooked = cook("code-with-tests")
    for row in cooked.rows:
        names: dict[str, Any] = {}
        exec(f"{row['solution']}\n{row['tests']}", names)
        tests = [value for name, value in names.items() if name.startswith("test_")]
        assert tests
        for test in tests:
            test()
        assert "default=0" not in row["solution"]
    assert cooked.dataset.rows < 24


def test_problems_are_as_many_as_requested_and_distinct(cook: Callable[[str], Cooked]) -> None:
    """Exactly as many rows as were requested, all accepted by the judge, and no two problems almost the same."""
    cooked = cook("distinct-problems")
    rows = cooked.rows
    assert len(rows) == 24
    assert all(row["verdict"]["solvable"] == "yes" and row["solution"] for row in rows)
    parts = [{row["problem"].casefold()[at : at + 5] for at in range(len(row["problem"]) - 4)} for row in rows]
    alike = [len(one & two) / len(one | two) for one, two in itertools.combinations(parts, 2)]
    assert max(alike) < 0.85  # 0.8 in the recipe, as MinHash estimates it
    reasons = Counter(drop.column for drop in cooked.dataset.drops)
    assert reasons["near_duplicates"] > 0
    assert reasons['verdict.solvable == "yes"'] > 0


def test_each_recipe_of_the_cookbook_is_listed_and_tested() -> None:
    """The page of the cookbook and the tests above name each template, and the folders of both are one."""
    names = set(templates())
    assert names == {path.name for path in COOKBOOK.iterdir() if path.is_dir()}
    page = (COOKBOOK / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[`(.+?)`\]", page, re.MULTILINE)) == names
    tested = set(re.findall(r'cook\("(.+?)"\)', Path(__file__).read_text(encoding="utf-8")))
    assert tested == names


def test_templates_of_the_command_are_the_examples() -> None:
    """The installed templates have the files of examples/cookbook, to the byte."""
    installed = Path(init_module.__file__).parent / "templates"
    for folder in (path for path in COOKBOOK.iterdir() if path.is_dir()):
        for path in (each for each in folder.iterdir() if each.is_file()):
            assert (installed / folder.name / path.name).read_bytes() == path.read_bytes()


def test_the_wheel_has_the_templates(tmp_path: Path) -> None:
    """A wheel that is built from the source distribution holds the files, to which the sources have a link."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*command, "-t", "sdist"], cwd=EXAMPLES.parent, capture_output=True, check=True)
    (sources,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / sources.name.removesuffix(".tar.gz")
    subprocess.run([*command, "-t", "wheel"], cwd=folder, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        for name in templates():
            recipe = packed.read(f"seedbed/cli/templates/{name}/recipe.yaml")
            assert recipe == (COOKBOOK / name / "recipe.yaml").read_bytes()


def test_init_names_what_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown templates and existing files are errors that name the next step; nothing is overwritten."""
    assert main(["init", "--list"]) == 0
    assert "preferences" in capsys.readouterr().out
    assert main(["init", "--template", "classifcation"]) == 2
    assert "did you mean 'classification'" in capsys.readouterr().err
    assert main(["init", str(tmp_path / "own"), "--template", "chat"]) == 0
    (tmp_path / "own" / "recipe.yaml").write_text("mine", encoding="utf-8")
    assert main(["init", str(tmp_path / "own"), "--template", "chat"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "own" / "recipe.yaml").read_text(encoding="utf-8") == "mine"
