"""Cards: what the hub reads, what Croissant describes, and what a recipe may not give away."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import mlcroissant
import pytest
import yaml
from sample_rows import number

import seedbed as sb
from seedbed.cli import main
from seedbed.publish.card import CardOptions, make_card

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = """
name: questions
seed: 11
models:
  m:
    type: scripted
    model: small
    input_price: 2
columns:
  - {name: topic, type: category, values: [tea, "a | b", "<script>alert(1)</script>"]}
  - {name: question, type: llm-text, model: m, prompt: "Ask about {{ topic }}: ```x```"}
  - {name: tags, type: llm-structured, model: m, prompt: "Tags of {{ question }}",
     schema: {type: array, items: {type: string}}}
  - {name: facts, type: llm-structured, model: m, prompt: "x {{ topic }}",
     schema: {type: object, properties: {n: {type: integer}, good: {type: boolean}}, required: [n, good]}}
"""


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> sb.Dataset:
    """A dataset of a recipe file."""
    folder = tmp_path_factory.mktemp("card")
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    return sb.build(sb.load_recipe(folder / "recipe.yaml"), rows=20, out=folder / "data")


def metadata_of(readme: str) -> dict[str, Any]:
    """The YAML at the beginning of a README."""
    _, block, _ = readme.split("---\n", 2)
    return dict(yaml.safe_load(block))


def test_a_readme_has_the_metadata_of_the_hub(questions: sb.Dataset) -> None:
    """Licence, language, size, tags and the files of the split are what the hub reads."""
    options = CardOptions(license="cc-by-4.0", languages=("en",), tags=("tea", "synthetic"))
    assert metadata_of(make_card(questions, options).readme) == {
        "pretty_name": "questions",
        "license": "cc-by-4.0",
        "language": ["en"],
        "size_categories": ["n<1K"],
        "tags": ["synthetic", "seedbed", "tea"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "*.parquet"}]}],
    }


def test_a_readme_says_how_the_rows_came_about(questions: sb.Dataset) -> None:
    """Columns with their models, counts, usage and its cost, the seed, and the recipe in a fence that it cannot end."""
    readme = make_card(questions).readme
    assert "| `question` | `string` | llm-text, by `small` |" in readme
    assert "| in the dataset | 20 |" in readme
    usage = questions.report.model_usage["m"]
    assert f"| `m` | `small` | scripted | {usage.calls} |" in readme
    assert f"{usage.cost:,.4f} |" in readme
    assert "- Seed: 11." in readme
    assert "````yaml\nname: questions" in readme


def test_dropped_rows_are_in_the_card(dataset: sb.Dataset) -> None:
    """Each reason has its number of rows; a dataset of Python columns has a card too."""
    readme = make_card(dataset).readme
    assert "| 5 | fails: ValueError: no seven (sample_rows.py, line" in readme
    assert "## Recipe" not in readme


def test_texts_of_others_cannot_change_the_card(tmp_path: Path) -> None:
    """Names and reasons with markup stay text in their cell of a table."""

    def bad(n: int) -> int:
        raise ValueError("a | b <img src=x onerror=alert(1)>\n# heading")

    columns = [sb.Column("n", number, kind="from_scratch"), sb.Column("b|c", bad, requires="n")]
    with pytest.raises(sb.AllRowsDropped):
        sb.build(columns, rows=2, out=tmp_path / "data", config=sb.RunConfig(shutdown_error_rate=1))
    readme = make_card(sb.Dataset.open(tmp_path / "data")).readme
    assert "<img" not in readme
    assert "\n# heading" not in readme


def test_keys_in_a_recipe_are_not_published(tmp_path: Path) -> None:
    """Values of headers, users and queries of URLs are left out of the card."""
    model = {
        "type": "openai",
        "base_url": "http://me:pass@127.0.0.1:9/v1?key=abc",
        "model": "x",
        "headers": {"x-key": "s3cret"},
    }
    text = yaml.safe_dump({"name": "n", "models": {"m": model}, "columns": [{"name": "u", "type": "uuid"}]})
    built = sb.build([sb.Column("u", number, kind="from_scratch")], rows=1, out=tmp_path / "data")
    (built.path / ".seedbed/recipe.yaml").write_text(text)
    card = make_card(built)
    for secret in ("s3cret", "pass@", "key=abc"):
        assert secret not in card.readme + card.croissant
    assert "http://127.0.0.1:9/v1" in card.readme


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the library that it reads JSON-LD with
def test_croissant_is_valid_and_reads_the_rows(questions: sb.Dataset, tmp_path: Path) -> None:
    """The reference implementation finds no error, conforms to 1.1, and its records are the rows."""
    shutil.copytree(questions.path, tmp_path / "copy")
    (tmp_path / "copy" / "croissant.json").write_text(make_card(questions).croissant, encoding="utf-8")
    read = mlcroissant.Dataset(jsonld=str(tmp_path / "copy" / "croissant.json"))
    assert not read.metadata.issues.errors
    assert "http://mlcommons.org/croissant/1.1" in str(read.metadata.conforms_to)
    records = list(read.records("rows"))
    assert [each["rows/topic"].decode() for each in records] == questions.to_polars()["topic"].to_list()
    assert [each["rows/facts"]["rows/facts/n"] for each in records] == questions.to_polars()["facts"].struct[
        "n"
    ].to_list()


def test_croissant_has_checksums_and_provenance(questions: sb.Dataset) -> None:
    """Files have their SHA-256, and the activity names seed, counts and cost."""
    found = json.loads(make_card(questions).croissant)
    part = questions.path / questions.parts[0].name
    assert found["distribution"][0]["sha256"] == hashlib.sha256(part.read_bytes()).hexdigest()
    activity = found["prov:wasGeneratedBy"]
    assert "seed 11: 20 of 20 rows; cost " in activity["prov:label"]
    assert activity["prov:used"]["prov:value"].startswith("name: questions")
    assert any("small: " in agent["prov:label"] for agent in found["prov:wasAttributedTo"])


def test_the_command_writes_where_loaders_do_not_look(
    questions: sb.Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """The card is in .seedbed/card/, and a second one replaces it."""
    for title in ("One", "Two"):
        assert main(["card", str(questions.path), "--title", title, "--language", "en", "--license", "mit"]) == 0
    folder = questions.path / ".seedbed" / "card"
    assert capsys.readouterr().out.splitlines()[:2] == [str(folder / "README.md"), str(folder / "croissant.json")]
    assert "# Two" in (folder / "README.md").read_text()
    assert json.loads((folder / "croissant.json").read_text())["inLanguage"] == ["en"]
    assert [path.suffix for path in questions.path.iterdir() if path.is_file()] == [".parquet"]


def test_commands_take_a_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Export, card and push take the output stage or a named one, and a card describes the columns of that stage."""
    (tmp_path / "recipe.yaml").write_text(STAGED, encoding="utf-8")
    data = tmp_path / "data"
    dataset = sb.build(sb.load_recipe(tmp_path / "recipe.yaml"), rows=5, out=data)
    readme = make_card(dataset).readme
    assert "# quiz\n" in readme
    assert "| `question` | `string` | llm-text, by `small` |" in readme
    assert "`_parent`" in readme
    assert main(["card", str(data), "--stage", "docs"]) == 0
    folder = data / ".seedbed/stages/docs/.seedbed/card"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "# quiz: docs\n" in readme
    assert "| `text` | `string` | llm-text, by `small` |" in readme
    assert "| `m` | `small` | scripted | 5 |" in readme
    assert "stages:" in readme  # of the recipe
    croissant = json.loads((folder / "croissant.json").read_text(encoding="utf-8"))
    assert {each["name"] for each in croissant["recordSet"][0]["field"]} == {"_row", "text"}

    capsys.readouterr()
    assert main(["export", str(data), str(tmp_path / "docs.jsonl"), "--stage", "docs"]) == 0
    lines = (tmp_path / "docs.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == [*dataset.stage("docs").to_polars()["text"]]
    assert main(["push", str(data), "hf://a/b", "--stage", "docs", "--journal", "--dry-run", "--json"]) == 0
    sent = [
        each["name"]
        for each in json.loads(capsys.readouterr().out.partition("5 rows in")[2].partition("\n")[2])["files"]
    ]
    assert sent[0] == "data/train-00000-of-00001.parquet"
    assert ".seedbed/recipe.yaml" in sent
    for command in (["export", str(data), "x.csv"], ["card", str(data)], ["push", str(data), "hf://a/b", "--dry-run"]):
        assert main([*command, "--stage", "dosc"]) == 2
        assert "no stage 'dosc'; it has 'docs', 'asked'" in capsys.readouterr().err


STAGED = """
name: quiz
models:
  m: {type: scripted, model: small}
stages:
  - name: docs
    columns: [{name: text, type: llm-text, model: m, prompt: "Write."}]
  - name: asked
    from: docs
    each: 2
    columns: [{name: question, type: llm-text, model: m, prompt: "Ask about {{ text }}"}]
"""
