"""The recipe that is stored with a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import seedbed as sb
from seedbed.engine.source import store_recipe

if TYPE_CHECKING:
    from pathlib import Path


def test_a_lost_recipe_file_is_written_again(tmp_path: Path) -> None:
    """A process may die before the file is there: the manifest has the recipe too."""
    recipe = sb.Recipe(columns=[sb.Category("a", values=["x", "y"])], name="kept", run={"buffer_size": 2})
    before = sb.build(recipe, rows=3, out=tmp_path / "d").to_polars()
    kept = tmp_path / "d" / ".seedbed" / "recipe.yaml"
    text = kept.read_text(encoding="utf-8")
    kept.unlink()
    assert sb.resume(tmp_path / "d").to_polars().equals(before)
    assert kept.read_text(encoding="utf-8") == text


def test_a_recipe_that_cannot_be_stored(tmp_path: Path) -> None:
    """Is told with the directory."""
    with pytest.raises(sb.StoreError, match=r"the recipe cannot be stored in .*gone"):
        store_recipe(tmp_path / "gone", "columns: []")
