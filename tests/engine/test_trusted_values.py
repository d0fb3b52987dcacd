"""When a resumed build may unpickle values of user-defined types: if code of the user takes part in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

import seedbed as sb
from seedbed.columns.spec import Access, Grants
from seedbed.engine.plan import plan_build
from seedbed.engine.source import make_source

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

SAMPLER = sb.Category("topic", values=["a", "b"])


@attrs.frozen
class _Plugin(type(SAMPLER)):  # type: ignore[misc]
    """A column kind that another distribution would register."""


def _unchanged(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def _trusts(recipe: sb.Recipe, **options: object) -> bool:
    return plan_build(make_source(recipe, **options), rows=1).runs_own_code  # type: ignore[arg-type]


def test_a_recipe_without_code_trusts_nothing() -> None:
    """Nothing of such a recipe returns values of user-defined types."""
    assert not _trusts(sb.Recipe(columns=[SAMPLER]))


def test_a_processor_of_the_user_counts() -> None:
    """The rows that a pre-batch processor returned are in the journal, with whatever it put there."""
    processor = sb.Processor(stage="pre_batch", apply=_unchanged)
    assert _trusts(sb.Recipe(columns=[SAMPLER]), processors=[processor])


@pytest.mark.parametrize(("grants", "trusted"), [(None, True), (Grants(), False), (Grants(code=True), True)])
def test_a_plugin_counts_where_code_is_allowed(tmp_path: Path, grants: Grants | None, trusted: bool) -> None:
    """A recipe file that names an installed plug-in may come from someone else: it needs `--allow-code`."""
    access = None if grants is None else Access(folder=tmp_path, grants=grants)
    recipe = sb.Recipe(columns=[_Plugin("topic", values=["a", "b"])])
    assert _trusts(attrs.evolve(recipe, access=access)) is trusted
