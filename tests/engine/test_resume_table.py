"""The table of docs/reference/resume.md knows every field and says of each what the guard does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

import seedbed as sb
from seedbed.columns.spec import processor_types, spec_types
from seedbed.engine.api import BuildOptions, PreviewOptions
from seedbed.engine.fingerprint import columns_fingerprint
from seedbed.models import MODEL_TYPES
from seedbed.recipe.recipe import is_operational

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "resume.md").read_text(encoding="utf-8")


def names(cell: str) -> list[str]:
    """What a cell of a table says in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def table(heading: str) -> dict[str, list[str]]:
    """The rows of the table under this first line, by their first cell."""
    lines = PAGE[PAGE.index(heading) :].splitlines()[2:]
    rows = [re.split(r" ?\| ?", line)[1:-1] for line in lines[: lines.index("") if "" in lines else None]]
    return {first: rest for first, *rest in rows}


def told(heading: str, row: str, common: str | None = None) -> tuple[set[str], set[str]]:
    """The fields that may change and those that must stay, with what all have in common."""
    rows = table(heading)
    may, must = rows[f"`{row}`"]
    more = rows[common] if common else ["", ""]
    return {*names(may), *names(more[0])}, {*names(must), *names(more[1])}


def how_and_what(kind: type[Any]) -> tuple[set[str], set[str]]:
    """The fields of a spec that its fingerprint leaves out, and the others."""
    fields = [field for field in attrs.fields(kind) if field.init]
    operational = {each.alias for each in fields if is_operational(each)}
    return operational, {each.alias for each in fields} - operational


@pytest.mark.parametrize(
    ("heading", "name", "kind"),
    [
        *(("| column |", name, kind) for name, kind in spec_types().items() if kind.__module__.startswith("seedbed.")),
        *(("| model |", name, kind) for name, kind in MODEL_TYPES.items()),
        *(("| processor |", name, kind) for name, kind in processor_types().items() if "seedbed." in kind.__module__),
    ],
)
def test_every_field_of_a_recipe(heading: str, name: str, kind: type[Any]) -> None:
    """Each field of a column, model or processor is in the table once, where the fingerprint has it."""
    may, must = told(heading, name, "all")
    assert (may, must) == how_and_what(kind)


@pytest.mark.parametrize("heading", ["| column |", "| model |", "| processor |"])
def test_only_the_listed_changes_are_reported(heading: str) -> None:
    """The table names no type that there is not."""
    known = {*spec_types(), *MODEL_TYPES, *processor_types()}
    assert {name for row in table(heading) if row != "all" for name in names(row)} <= known


def test_every_field_of_the_recipe() -> None:
    """So are those of `Recipe`; only `models` may change in part."""
    may, must = told("| | may change | must stay |\n|---|---|---|\n| `Recipe`", "Recipe")
    assert may | must == {field.name for field in attrs.fields(sb.Recipe)}
    assert may & must == {"models"}


def test_every_option() -> None:
    """Each option of a run is in the table once."""
    found = [name for row in table("| option |") for name in names(row)]
    assert sorted(found) == sorted(field.name for field in attrs.fields(sb.RunConfig))


def test_every_argument() -> None:
    """So is each argument of what builds."""
    found = {name for row in list(table("| of `build`,")) for name in names(row)}
    builders = (sb.build, sb.build_async, sb.open_build, sb.resume)
    given = {name for each in builders for name in inspect.signature(each).parameters}
    assert found == (given | set(BuildOptions.__annotations__) | set(PreviewOptions.__annotations__)) - {
        "directory",
        "options",
    }


def test_every_field_of_a_column() -> None:
    """What of a `Column` must stay is in its fingerprint, and the rest is in the table too."""
    may, must = told("| | may change | must stay |\n|---|---|---|\n| `Column`", "Column")
    fields = {field.name for field in attrs.fields(sb.Column) if field.init}
    assert may | must == fields
    assert not may & must
    skip = sb.Column("b", lambda a: a, skip=Rule())
    fingerprint = columns_fingerprint([skip], [])
    counted = {*fingerprint["columns"][0], *(place.rpartition(".")[2] for place in fingerprint["code"])}
    assert counted == must


class Rule:
    """Skips nothing."""

    requires = ("a",)

    @staticmethod
    def decide(_: object) -> bool:
        return False


def test_every_field_of_a_processor() -> None:
    """All that a `Processor` has counts."""
    may, must = told("| | may change | must stay |\n|---|---|---|\n| `Column`", "Processor")
    assert (may, must) == (set(), {field.name for field in attrs.fields(sb.Processor)})
    fingerprint = columns_fingerprint([], [sb.Processor(stage="post_batch", apply=lambda frame: frame)])
    code = {place.rpartition(".")[2] for place in fingerprint["code"]}
    assert {"stage", *fingerprint["post_batch"][0], *code} == must
