"""The reference has all types, fields and public names, each field with an example, and the examples are recipes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import reference
import yaml

import seedbed
import seedbed.testing
from seedbed.columns.judge import Score
from seedbed.engine.source import load_recipe
from seedbed.recipe import file

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
HOW = "run `python tests/reference.py` (CONTRIBUTING.md, “Document a field”)"
PAGES = reference.pages()
TYPES = {
    f"{kind} {name}": cls
    for kind, types in reference.TYPES.items()
    for name, cls in types().items()
    if cls.__module__.startswith("seedbed.")  # not of a plug-in that happens to be installed
}
PARTS = {"function": seedbed.FunctionTool, "MCP server": seedbed.MCPServer, "speaker": seedbed.Speaker}
FIELDS = {
    f"{what}: {field.name}": (what, field)
    for what, cls in {**TYPES, "run": seedbed.RunConfig, "score": Score, **PARTS}.items()
    for field in reference.fields(cls, in_files=True)
}
# Values that no file has.
ONLY_IN_PYTHON = {("column seed", "frame")}
# What the examples read.
FILES = {
    "products.csv": "product,price\nkettle,30\nteapot,8\n",
    "archive.csv": "product;price\nkettle;30\nteapot;8\ncup;2\nsaucer;1\n",
    "pricing.py": """from seedbed import Model
def with_tax(price): return price * 1.2
def price_of(drink: str) -> float: return 2.5
def place_order(drink: str) -> int: return 1
def is_plausible(product, price): return price > 0
async def summarise(product, model: "Model"): return {}
class TemporaryError(Exception): pass
""",
}


def page_id(path: Path) -> str:
    """The name of a page in the list of tests."""
    return path.stem


def test_every_type_has_its_section() -> None:
    """Each type of column, model and processor has a section with its fields."""
    documented = {what for _, what, _ in reference.blocks()}
    missing = sorted(set(TYPES) - documented)
    assert not missing, f"add <!-- reference: {missing[0]} --> to a page of docs/reference/, then {HOW}"


def python_names() -> dict[str, Any]:
    """The objects of the Python API that the pages show, by path."""
    parts = [what for _, what, _ in reference.blocks() if what.startswith(("seedbed.", "errors "))]
    names = [name for what in parts for name in what.split() if name != "errors"]
    return {name: reference.find_object(name.partition(":")[0]) for name in names}


def test_every_public_name_is_in_the_reference() -> None:
    """Each public name of `seedbed` and `seedbed.testing` is a type of a recipe or on a page about Python."""
    bases = [reference.find_object(what[7:]) for _, what, _ in reference.blocks() if what.startswith("fields ")]
    shown = [*TYPES.values(), *bases, *python_names().values()]
    on_pages = "".join((ROOT / "docs" / "reference" / f"{page}.md").read_text() for page in ("simulation", "errors"))
    missing = [
        f"{module.__name__}.{name}"
        for module in (seedbed, seedbed.testing)
        for name in module.__all__
        if getattr(module, name) not in shown and not re.search(rf"`(seedbed\.)?{name}`", on_pages)
    ]
    assert not missing, f"add {', '.join(missing)} to a <!-- reference: … --> of docs/reference/python-*.md, then {HOW}"


def documents(page: Path) -> list[dict[str, Any]]:
    """The examples of a page."""
    return [
        yaml.load(found, Loader=yaml.BaseLoader)
        for found in reference.EXAMPLE.findall(page.read_text(encoding="utf-8"))
    ]


def used_fields() -> Iterator[tuple[str, str]]:
    """Each field that an example uses, and what it belongs to."""
    for document in (document for page in PAGES for document in documents(page)):
        for kind, key in (("column", "columns"), ("processor", "processors")):
            for each in document.get(key, ()):
                yield from ((f"{kind} {each['type']}", name) for name in each)
                speakers = each.get("speakers", ())
                yield from (("speaker", name) for speaker in speakers for name in speaker)
                for tool in (tool for tool in each.get("tools", ()) if isinstance(tool, dict)):
                    yield from (("function" if "function" in tool else "MCP server", name) for name in tool)
                for score in each.get("scores", {}).values():
                    if isinstance(score, dict):
                        yield from (("score", name) for name in score)
        for model in document.get("models", {}).values():
            yield from ((f"model {model['type']}", name) for name in model)
        yield from (("run", name) for name in document.get("run", ()))


def test_every_field_has_an_example() -> None:
    """Each field is used in an example: one of its own type or, if other types share it, one of those."""
    used = set(used_fields()) | ONLY_IN_PYTHON
    owners = {
        what: {field.name: field.owner for field in reference.fields(cls, in_files=True)}
        for what, cls in {**TYPES, **PARTS}.items()
    }
    shown = {(owners[what][name], name) for what, name in used if name in owners.get(what, {})}
    missing = [
        label
        for label, (what, field) in FIELDS.items()
        if (what, field.name) not in used and (field.owner, field.name) not in shown
    ]
    assert not missing, f"use {', '.join(missing)} in an example on its page of docs/reference/"


@pytest.mark.parametrize("page", [page for page in PAGES if reference.EXAMPLE.search(page.read_text())], ids=page_id)
def test_examples_are_recipes(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of a page, put together, are a recipe without a problem."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    for name in ("EXAMPLE_API_KEY", "ANTHROPIC_API_KEY", "VALIDATOR_API_KEY"):
        monkeypatch.setenv(name, "secret")
    merged: dict[str, Any] = {"models": {}, "columns": [], "processors": [], "run": {}}
    for text in reference.EXAMPLE.findall(page.read_text(encoding="utf-8")):
        for key, value in yaml.safe_load(text).items():
            merged[key].update(value) if isinstance(value, dict) else merged[key].extend(value)
    merged["columns"] = merged["columns"] or [{"name": "row", "type": "uuid"}]
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(merged))
    recipe = load_recipe(path, allow_code=True)
    assert recipe.problems(recipe.environment(), unreadable={}) == []


def test_keys_of_a_recipe_are_documented(tmp_path: Path) -> None:
    """The page about recipe files has every key, and its example is a recipe without a problem."""
    page = (ROOT / "docs" / "reference" / "recipe-file.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(file._KEYS)
    path = tmp_path / "recipe.yaml"
    path.write_text(reference.EXAMPLE.findall(page)[0])
    recipe = load_recipe(path)
    assert recipe.problems(recipe.environment(), unreadable={}) == []
