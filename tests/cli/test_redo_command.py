"""`seedbed redo` and `seedbed run --reuse` list what they generate, and generate nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from command import seedbed, started
from test_terminal import TERMINAL, everything, open_terminal

import seedbed as sb

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = """\
models:
  writer: {type: scripted, input_price: 1, output_price: 2}
columns:
  - {name: topic, type: category, values: [tea, bread, rain]}
  - {name: text, type: llm-text, model: writer, prompt: "About {{ topic }}"}
  - {name: review, type: llm-text, model: writer, prompt: "Review {{ text }}"}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe with two model columns, one after the other, and its finished dataset `out`."""
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    assert seedbed("run", path, "-n", "6", "-o", tmp_path / "out").code == 0
    return path


def columns_of(text: str) -> dict[str, list[str]]:
    """The lines of the table of estimates, by column."""
    lines = [line.split() for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines if line and line[0] in ("topic", "text", "review")}


def test_redo_lists_cells_and_cost_and_regenerates(recipe: Path) -> None:
    """A column that nothing depends on is generated alone; the table has the cells and what they will cost."""
    out = recipe.parent / "out"
    before = sb.Dataset.open(out).to_polars()
    ended = seedbed("redo", out, "--column", "review")
    assert ended.code == 0, ended.err
    listed = columns_of(ended.err)
    assert [listed[name][:2] for name in listed] == [["0", "6"], ["0", "6"], ["6", "0"]]
    assert "6 cells, estimated cost" in ended.err
    assert "12 cells were taken over" in ended.out
    after = sb.Dataset.open(out).to_polars()
    assert after.drop("review").equals(before.drop("review"))
    usage = sb.Dataset.open(out).report.usage
    assert {name: usage[name].calls for name in ("text", "review")} == {"text": 6, "review": 12}
    ended = seedbed("redo", out, "--column", "text", "--where", "topic == 'tea'", "--yes", "--json")
    assert ended.code == 0, ended.err
    tea = before["topic"].to_list().count("tea")
    assert columns_of(ended.err)["review"][:2] == [str(tea), str(6 - tea)]
    assert ended.json["reused_cells"] == 18 - 2 * tea


def test_redo_with_a_changed_recipe(recipe: Path) -> None:
    """What the recipe file changes is generated again, and the file takes the place of the stored one."""
    out = recipe.parent / "out"
    recipe.write_text(RECIPE.replace("Review", "Judge"))
    ended = seedbed("resume", out, "--rows", "6")
    assert ended.code == 0, ended.err
    ended = seedbed("redo", out, "--recipe", recipe)
    assert ended.code == 0, ended.err
    assert columns_of(ended.err)["review"][:2] == ["6", "0"]
    assert "Judge" in (out / ".seedbed" / "recipe.yaml").read_text()
    ended = seedbed("redo", out, "--recipe", recipe)
    assert (ended.code, "nothing to redo" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--column", "reviw"], "no column named 'reviw'; did you mean 'review'?"),
        (["--column", "review", "--where", "topc == 'tea'"], "where: no column named 'topc'"),
        (["--abandon", "--column", "review"], "--abandon takes back what was begun"),
    ],
)
def test_mistakes(recipe: Path, arguments: list[str], message: str) -> None:
    """They are named, and nothing is changed."""
    ended = seedbed("redo", recipe.parent / "out", *arguments)
    assert ended.code == 2
    assert message in ended.err


def test_a_redo_that_ended_early(recipe: Path) -> None:
    """The message names the command that continues it; it can be taken back."""
    out = recipe.parent / "out"
    before = sb.Dataset.open(out).to_polars()
    ended = seedbed("redo", out, "--column", "text", "--max-tokens", "150")
    assert ended.code != 0
    assert f"seedbed resume {out}" in ended.err
    assert sb.Dataset.open(out).to_polars().equals(before)
    ended = seedbed("redo", out, "--column", "review")
    assert f"an unfinished redo of 'text': finish it (seedbed resume {out})" in ended.err
    assert "unfinished redo" in seedbed("inspect", out).out
    assert "holds the dataset as it was" in seedbed("redo", out, "--abandon").out
    assert "has no unfinished redo" in seedbed("redo", out, "--abandon").out
    assert sb.Dataset.open(out).to_polars().equals(before)


def test_a_new_dataset_takes_over(recipe: Path) -> None:
    """Only what the recipe changes is generated, and rows that the other dataset has not."""
    out, new = recipe.parent / "out", recipe.parent / "new"
    recipe.write_text(RECIPE.replace("Review", "Judge"))
    ended = seedbed("run", recipe, "-n", "8", "-o", new, "--reuse", out)
    assert ended.code == 0, ended.err
    assert [row[:2] for row in columns_of(ended.err).values()] == [["2", "6"], ["2", "6"], ["8", "0"]]
    assert "12 cells were taken over" in ended.out
    old, made = sb.Dataset.open(out).to_polars(), sb.Dataset.open(new).to_polars()
    assert made.height == 8
    assert made.head(6)["text"].to_list() == old["text"].to_list()


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 2), (b"y\n", 0)])
def test_a_user_is_asked(recipe: Path, answer: bytes, code: int) -> None:
    """On a terminal nothing is generated without a yes."""
    out = recipe.parent / "out"
    ours, theirs = open_terminal()
    with started(
        "redo", out, "--column", "review", stdin=theirs, stdout=theirs, stderr=theirs, env=TERMINAL
    ) as process:
        os.close(theirs)
        os.write(ours, answer)
        text = everything(ours)
        assert process.wait(timeout=60) == code, text
    assert "Generate them? [y/N]" in text
    assert sb.Dataset.open(out).report.usage["review"].calls == (12 if code == 0 else 6)
