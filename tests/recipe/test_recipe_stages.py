"""Recipes with stages: what is wrong with them is found before anything runs, all at once and with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

import seedbed as sb
from seedbed.cli import main
from seedbed.columns.documents import read_document
from seedbed.engine.source import make_source
from seedbed.recipe.file import recipe_text

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """\
models: {m: {type: scripted}}
stages:
  - name: docs
    columns:
      - {name: title, type: category, values: [a, b]}
      - {name: parts, type: expression, expr: "[title, title]", dtype: "list[str]"}
  - name: items
    from: docs
    each: "{{ parts }}"
    columns:
      - {name: text, type: llm-text, model: m, prompt: "{{ title }} {{ item }} {{ _k }}"}
  - name: sets
    from: items
    group: {by: [title], size: 3}
    columns:
      - {name: count, type: expression, expr: "items | length"}
"""


def problems_of(text: str, tmp_path: Path) -> list[str]:
    """The problems of a recipe file, each with its line."""
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    place = str
    try:
        recipe = sb.load_recipe(path)
        place = read_document(path).placed  # a recipe does not know its lines in the file
        make_source(recipe)
    except sb.DatasetGenerationError as error:
        return [place(problem).removeprefix(str(path)) for problem in error.problems]
    return []


def test_a_recipe_is_written_as_it_was_read(tmp_path: Path) -> None:
    """The file that is stored with a dataset is the same recipe."""
    (tmp_path / "recipe.yaml").write_text(GOOD)
    recipe = sb.load_recipe(tmp_path / "recipe.yaml")
    (tmp_path / "again.yaml").write_text(recipe_text(recipe))
    assert sb.load_recipe(tmp_path / "again.yaml").stages == recipe.stages
    assert [stage.stage for stage in make_source(recipe).stages] == ["docs", "items", "sets"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("from: docs", "from: dox", ":8: stages[1].from: unknown stage 'dox'; did you mean 'docs'?"),
        ("from: docs", "from: items", ":8: stages[1].from: stage 'items' cannot take its rows from itself"),
        (
            "from: docs",
            "from: docs\n    rows: 3",
            "stages[1].rows: the rows come from stage 'docs'; give either 'rows' or",
        ),
        ('each: "{{ parts }}"', "rows: null", "stages[1].from: needs 'each' (a number of rows"),
        ('each: "{{ parts }}"', 'each: "{{ title }}"', ":9: stages[1].each: '{{ title }}' is text and not a list"),
        (
            'each: "{{ parts }}"',
            'each: "{{ part }}"',
            "stages[1].each: stage 'docs' has no column 'part'; did you mean",
        ),
        ('each: "{{ parts }}"', "each: 0", ":9: stages[1].each: each must be a number of rows, 1 or more, or an expr"),
        ('each: "{{ parts }}"', 'each: "{{ parts }"', ":9: stages[1].each: each: '{{ parts }' is not an expression"),
        ('each: "{{ parts }}"', "each: 2\n    item: x", "stages[1].item: names the column with the item of a list"),
        ("each:", "item: title\n    each:", "stages[1].item: 'title' is also a column of stage 'docs'"),
        (
            "by: [title]",
            "by: [titel]",
            "stages[2].group.by: stage 'items' has no column 'titel'; did you mean 'title'?",
        ),
        ("size: 3", "size: 0", ":14: stages[2].group: size must be a whole number, 1 or more, not 0"),
        ("size: 3", "sise: 3", ":14: stages[2].group: group has no field 'sise'; did you mean 'size'?"),
        ("size: 3", "remainder: gone", "stages[2].group: remainder must be 'keep' or 'drop', not 'gone'"),
        ("group:", "each: 2\n    group:", "stages[2].group: give either 'each' or 'group'"),
        ("name: sets", "name: Items", "stages[2].name: duplicate stage 'Items'"),
        ("name: sets", "name: a/b", ":12: stages[2].name: the name of a stage is up to 64 letters"),
        ("{name: text,", "{name: parts,", ":11: stages[1].columns[0]: column 'parts' is also a column of stage 'docs'"),
        (
            "{name: text,",
            "{name: _row,",
            ":11: stages[1].columns[0]: column '_row': this name is for a column of seedbed's",
        ),
        (
            "{{ title }} {{ item",
            "{{ titel }} {{ item",
            "stages[1]: column 'text' requires 'titel', which no column gen",
        ),
        ("[title, title]", "[text]", "stages[0]: column 'parts' requires 'text', which no column generates"),
        ("stages:", "output: sats\nstages:", ":2: output: unknown stage 'sats'; did you mean 'sets'?"),
        (
            "stages:",
            "columns: [{name: x, type: uuid}]\nstages:",
            ":2: columns: in a recipe with stages it is a field of",
        ),
        ("stages:", "accept: title\nstages:", ":2: accept: in a recipe with stages it is a field of a stage"),
        (
            "    each:",
            "    max_candidates: 3\n    accept: text\n    each:",
            "max_candidates: is for stages with a number of rows",
        ),
    ],
)
def test_a_mistake_is_one_problem_with_its_place(old: str, new: str, problem: str, tmp_path: Path) -> None:
    """It says what was found and what is expected; nothing else is reported because of it."""
    assert problems_of(GOOD, tmp_path) == []
    assert old in GOOD
    found = problems_of(GOOD.replace(old, new, 1), tmp_path)
    assert len(found) == 1, found
    assert problem in found[0]


def test_processors_that_do_not_fit_stages(tmp_path: Path) -> None:
    """Before others take rows, these must be there; and rows that come from others are what they are."""
    text = GOOD.replace("each:", "processors: [{type: filter, stage: pre_batch, expr: _k > 0}]\n    each:", 1)
    (found,) = problems_of(text, tmp_path)
    assert "a pre_batch processor is for stages with 'rows': the rows of this one are those of 'docs'" in found
    text = GOOD.replace(
        "    each:", "    processors: [{type: filter, stage: after_generation, expr: _k > 0}]\n    each:", 1
    )
    (found,) = problems_of(text, tmp_path)
    assert "other stages take the rows of this one before all of them are there; use post_batch" in found
    text = GOOD.replace("    each:", "    processors: [{type: filter, expr: title == 'a'}]\n    each:", 1)
    (found,) = problems_of(text, tmp_path)
    assert "unknown column 'title' at stage post_batch" in found


def test_stages_in_a_circle(tmp_path: Path) -> None:
    """The circle is named once, wherever it begins."""
    text = GOOD.replace("  - name: docs\n", "  - name: docs\n    from: sets\n    each: 1\n", 1)
    (found,) = problems_of(text, tmp_path)
    assert "from: circular dependency between stages: " in found
    assert {"docs", "items", "sets"} <= set(found.replace("→", " ").split())


def test_all_problems_at_once(tmp_path: Path) -> None:
    """Those of stages, of their columns and of fields in one go."""
    text = GOOD.replace("from: docs", "from: docs\n    rows: 1").replace("size: 3", "size: x")
    text = text.replace("type: category", "type: categry")
    assert len(problems_of(text, tmp_path)) == 3


def test_numbers_of_rows(tmp_path: Path) -> None:
    """One number for the only stage that has one, else one by name; the recipe may have it."""
    first = sb.Stage("first", columns=[sb.Category("a", values=[1])])
    second = sb.Stage("second", columns=[sb.Category("b", values=[1])])
    made = sb.Stage("made", from_="first", each=2, columns=[sb.Expression("c", "a")])
    two = sb.Recipe(stages=[first, second, made])
    rows: list[tuple[Any, str]] = [
        (None, "the number of rows of stage 'first' is missing: give rows in the recipe, or -n first=N"),
        (3, "several stages with rows of their own: give the number of each: first=N, second=N"),
        ({"made": 3, "first": 1, "second": 1}, "'made', which is no stage with a number of rows; its rows come from"),
        ({"frist": 3}, "'frist', which is no stage with a number of rows; did you mean 'first'?"),
    ]
    for given, message in rows:
        with pytest.raises(sb.ConfigError, match=message.replace("(", r"\(")):
            sb.build(two, rows=given, out=tmp_path / "out")
    report = sb.build(two, rows={"first": 3, "second": "2"}, out=tmp_path / "out").report
    assert {name: each.written for name, each in report.stages.items()} == {"first": 3, "second": 2, "made": 6}
    own = sb.Recipe(stages=[attrs.evolve(first, rows=4), made])
    assert sb.build(own, out=tmp_path / "own").rows == 8


def test_the_command_takes_rows_by_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-n STAGE=N`, once for each; the result and `inspect` name the stages."""
    (tmp_path / "recipe.yaml").write_text(GOOD)
    path, out = str(tmp_path / "recipe.yaml"), str(tmp_path / "out")
    assert main(["run", path, "-n", "docs=4", "-o", out, "--progress", "none", "--head", "0"]) == 0
    assert "docs: 4 of 4 rows; items: 8 of 8 rows; sets: " in capsys.readouterr().out
    assert main(["resume", out, "-n", "6", "--progress", "none", "--head", "0"]) == 0
    assert main(["inspect", out, "--stage", "items"]) == 0
    assert "stage docs: 6 of 6 rows" in capsys.readouterr().out
    assert main(["run", path, "-n", "docs=4", "-n", "3", "-o", out]) != 0
    assert "-n takes one number, or STAGE=N once for each stage" in capsys.readouterr().err


def test_the_graph_shows_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each stage is a node, between what decides its rows and its columns."""
    (tmp_path / "recipe.yaml").write_text(GOOD)
    assert main(["graph", str(tmp_path / "recipe.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "stage items<br/>items._row<br/>items._parent<br/>items._k<br/>item" in shown
    assert main(["graph", str(tmp_path / "recipe.yaml"), "--svg", str(tmp_path / "graph.svg")]) == 0
    assert "from items, groups of 3 of one title" in (tmp_path / "graph.svg").read_text()
