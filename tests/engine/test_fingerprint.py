"""What a dataset was made from is the same in every process, and another one once its types or its code changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

import seedbed as sb

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
import attrs
import polars as pl
import pyarrow as pa
import seedbed as sb

class Doubles:
    def generate(self, n):
        return n * 2

class Waits:
    async def agenerate(self, n):
        return n * 3

@attrs.frozen
class Holds:
    factor: int = 5
    def generate(self, n):
        return n * self.factor

NAMED = Doubles()

def nothing(n):
    return None

number = sb.Category("n", values=[1, 2])
TYPES = [
    pl.Struct({"a": pl.Int64, "b": pl.Decimal(9, 2)}),
    pl.List(pl.Struct({"a": pl.Enum(["x"])})),
    pl.Datetime("us", "UTC"),
    list[pl.List(pl.Int8)],
    {"t4": pl.Array(pl.Float32, 3)},
    pa.struct([("a", pa.binary(4))]),
]
typed = sb.Recipe(columns=[number, *(sb.Custom(f"t{i}", nothing, dtype=dtype) for i, dtype in enumerate(TYPES))])
objects = sb.Recipe(columns=[number, *(sb.Custom(type(each).__name__, each) for each in (Doubles(), Waits(), Holds()))])
named = sb.Recipe(columns=[number, sb.Custom("c", NAMED, dtype=pl.Decimal(9, 2))])
"""
RECIPES = ("typed", "objects", "named")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the module and, by the name of each recipe, what another process built of it."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "made.py").write_text(MODULE, encoding="utf-8")
    program = f"import made, seedbed as sb\nfor name in {RECIPES}: sb.build(getattr(made, name), rows=3, out=name)"
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)
    return folder


@pytest.fixture
def directory(built: Path, tmp_path: Path) -> Path:
    """The same for one test alone."""
    return shutil.copytree(built, tmp_path / "here")


def module(monkeypatch: pytest.MonkeyPatch, old: str = "", new: str = "") -> Any:
    """The module as this process has it, with one edit."""
    assert old in MODULE
    found = types.ModuleType("made")
    monkeypatch.setitem(sys.modules, "made", found)
    exec(compile(MODULE.replace(old, new) if old else MODULE, "made.py", "exec"), vars(found))
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_another_process_can_resume(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same recipe, whatever types it declares and whatever objects fill its columns."""
    recipe = getattr(module(monkeypatch), name)
    frame = sb.build(recipe, rows=5, out=directory / name, resume=True).to_polars()
    assert len(frame) == 5
    if name == "objects":
        assert frame.rows() == [(n, n * 2, n * 3, n * 5) for n in frame["n"]]


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        ('"a": pl.Int64', '"a": pl.Int32', "t0"),
        ('"b": pl.Decimal(9, 2)', '"c": pl.Decimal(9, 2)', "t0"),
        ('pl.Enum(["x"])', 'pl.Enum(["y"])', "t1"),
        ('pl.Datetime("us", "UTC")', 'pl.Datetime("us", "Europe/Berlin")', "t2"),
        ("pl.List(pl.Int8)", "pl.List(pl.Int16)", "t3"),
        ("pl.Array(pl.Float32, 3)", "pl.Array(pl.Float32, 4)", "t4.dtype"),
        ("pa.binary(4)", "pa.binary(5)", "t5"),
    ],
)
def test_a_changed_type_is_reported(
    old: str, new: str, column: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However deep in the type the difference is."""
    recipe = module(monkeypatch, old, new).typed
    with pytest.raises(sb.ManifestError, match=rf"  - columns\.{column}.*: .* before, .* now"):
        sb.build(recipe, rows=5, out=directory / "typed", resume=True)


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        ("return n * 2", "return 2 + n", "Doubles"),
        ("return n * 3", "return 3 + n", "Waits"),
        ("return n * self.factor", "return n + self.factor", "Holds"),
    ],
)
def test_edited_objects_are_reported(
    old: str, new: str, column: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the code of their class, whether they can be called or not."""
    recipe = module(monkeypatch, old, new).objects
    told = rf"its code was edited: made:{column} .* before, made:{column} "
    with pytest.raises(sb.ManifestError, match=rf"  - columns\.{column}\.function: {told}"):
        sb.build(recipe, rows=5, out=directory / "objects", resume=True)


def test_the_stored_recipe_has_the_same_fingerprint(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads as the same types, and finds an object that its module has by name."""
    module(monkeypatch)
    frame = sb.resume(directory / "named", rows=5, allow_code=True).to_polars()
    assert frame.height == 5
    assert "function: made:NAMED" in (directory / "named" / ".seedbed" / "recipe.yaml").read_text(encoding="utf-8")


def test_objects_without_a_name(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe that is stored has only their class, which fills nothing: the error says what to do."""
    module(monkeypatch)
    with pytest.raises(
        sb.DatasetGenerationError, match=r"is not a function but <class 'made\.Doubles'>; .* write the recipe in Python"
    ):
        sb.resume(directory / "objects", rows=5, allow_code=True)
