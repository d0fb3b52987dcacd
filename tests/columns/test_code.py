"""Code that a recipe names as `module:name`, in modules beside the recipe."""

from __future__ import annotations

import importlib
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import seedbed as sb
from seedbed.columns.code import import_object
from seedbed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _forget_modules() -> Iterator[None]:
    """Forget the modules that another test wrote."""
    yield
    for name in [name for name in sys.modules if name.startswith("code_")]:
        del sys.modules[name]


def write(folder: Path, **files: str) -> None:
    """Write modules; `a__b` is the module `b` of the package `a`."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    importlib.invalidate_caches()


def test_modules_packages_and_relative_imports_beside_the_recipe(tmp_path: Path) -> None:
    """A module imports its neighbours by name, and a module of a package, with or without `__init__`, its own ones."""
    write(
        tmp_path,
        code_near="ONE = 1",
        code_top="from code_near import ONE\ndef f(): return ONE",
        code_package__base="TWO = 2",
        code_package__deep="from . import base\nfrom .base import TWO\nfrom code_near import ONE\nSUM = ONE + TWO",
    )
    assert import_object("code_top:f", base=tmp_path, where="x")() == 1
    assert import_object("code_package.deep:SUM", base=tmp_path, where="x") == 3
    (tmp_path / "code_regular").mkdir()
    (tmp_path / "code_regular" / "__init__.py").write_text("from .inner import X", encoding="utf-8")
    write(tmp_path, code_regular__inner="class X: y = 5")
    assert import_object("code_regular:X.y", base=tmp_path, where="x") == 5


def test_a_folder_without_modules_hides_no_installed_package(tmp_path: Path) -> None:
    """A data folder beside the recipe that has the name of a package does not hide that package."""
    (tmp_path / "wave").mkdir()
    sys.modules.pop("wave", None)
    assert import_object("wave:Error", base=tmp_path, where="x").__module__ == "wave"


def test_an_import_changes_nothing_for_other_threads(tmp_path: Path) -> None:
    """While a module beside the recipe is imported, `sys.path` is as before and other threads do not find it."""
    write(
        tmp_path,
        code_hidden="",
        code_slow="import sys\nPATH = list(sys.path)\nsys.started.set()\nsys.go_on.wait()\nimport code_hidden",
    )
    started, go_on = threading.Event(), threading.Event()
    sys.started, sys.go_on = started, go_on  # type: ignore[attr-defined]
    found: list[list[str]] = []
    path = list(sys.path)
    thread = threading.Thread(target=lambda: found.append(import_object("code_slow:PATH", base=tmp_path, where="x")))
    thread.start()
    try:
        assert started.wait(10)
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("code_hidden")
    finally:
        go_on.set()
        thread.join()
        del sys.started, sys.go_on  # type: ignore[attr-defined]
    assert found == [path]
    with pytest.raises(ConfigError, match=r"x: 'code_none' cannot be imported: ModuleNotFoundError"):
        import_object("code_none:f", base=tmp_path, where="x")


def test_folders_may_have_modules_of_the_same_name(tmp_path: Path) -> None:
    """Each of two recipes gets the module beside it, and what that module imports, in any order."""
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        write(folder, code_twin="import code_near\ndef f(): return code_near.NAME", code_near=f"NAME = {name!r}")
        write(folder, code_pack__deep=f"NAME = {name!r}")
    write(tmp_path / "one", code_only="")
    found = {}
    for _ in range(2):
        for name in ("one", "two"):
            function = import_object("code_twin:f", base=tmp_path / name, where="x")
            assert function() == name
            assert import_object("code_pack.deep:NAME", base=tmp_path / name, where="x") == name
            assert found.setdefault(name, function) is function  # imported once
    import_object("code_only:__name__", base=tmp_path / "one", where="x")
    with pytest.raises(ConfigError, match=r"ModuleNotFoundError: No module named 'code_only'"):
        import_object("code_only:__name__", base=tmp_path / "two", where="x")


def test_an_imported_module_may_import_from_another_folder(tmp_path: Path) -> None:
    """After the nested import, modules of the first folder are found again."""
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.mkdir()
    outer.mkdir()
    write(inner, code_near="NAME = 'inner'")
    nested = f"import_object('code_near:NAME', base=pathlib.Path({str(inner)!r}), where='x')"
    write(
        outer,
        code_near="NAME = 'outer'",
        code_late="NAME = 'late'",
        code_nest="import pathlib, code_near\nfrom seedbed.columns.code import import_object\n"
        f"FIRST = {nested}\nimport code_late\nimport code_near as again\nSAME = again is code_near",
    )
    assert import_object("code_nest:FIRST", base=outer, where="x") == "inner"
    assert import_object("code_nest:SAME", base=outer, where="x") is True


def test_a_module_named_like_an_imported_one_is_rejected(tmp_path: Path) -> None:
    """A module beside the recipe with the name of an imported module is rejected; the message names both files."""
    write(tmp_path, hashlib="def f(): return 1", code_near="import json\ndef f(): return json.dumps(1)", json="")
    with pytest.raises(ConfigError) as caught:
        import_object("hashlib:f", base=tmp_path, where="x")
    assert str(caught.value) == (
        f"x: the module 'hashlib' beside the recipe ({tmp_path}/hashlib.py) has the name of a module that is already "
        f"imported ({sys.modules['hashlib'].__file__}); rename the one beside the recipe"
    )
    assert import_object("code_near:f", base=tmp_path, where="x")() == "1"
    assert import_object("hashlib:sha256", base=tmp_path / "elsewhere", where="x") is sys.modules["hashlib"].sha256


CELLS = """
import code_near
from seedbed import column
import polars as pl

class Object:
    def generate(self, n): return n + code_near.ONE
thing = Object()

def plain(n): return n + code_near.ONE
@column(process=True)
def decorated(n: int) -> int: return n + code_near.ONE
@column(process=True, requires=["n"])
def whole(frame: pl.DataFrame) -> list[int]: return [n + code_near.ONE for n in frame["n"]]
@column
def n(rows: range) -> list[int]: return list(rows)
async def slow(n): return n
"""
RECIPE = """
name: processes
columns:
  - {name: n, type: custom, function: "code_cells:n"}
  - {name: a, type: custom, function: "code_cells:plain", process: true}
  - {name: b, type: custom, function: "code_cells:decorated"}
  - {name: c, type: custom, function: "code_cells:whole"}
  - {name: d, type: custom, function: "code_cells:thing", process: true}
"""


def test_processes_import_modules_beside_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions, columns and objects with `generate` run in processes, for two recipes with modules of one name."""
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    recipes = {}
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, code_cells=CELLS, code_near=f"ONE = {number}")
        (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
        recipes[number] = sb.load_recipe(folder / "recipe.yaml", allow_code=True)
    for number, recipe in recipes.items():
        dataset = sb.build(recipe, rows=2, out=away / str(number), config=sb.RunConfig(max_processes=1))
        rows = dataset.to_polars().to_dicts()
        assert rows == [dict(n=n, **dict.fromkeys("abcd", n + number)) for n in range(2)]


def test_an_async_function_beside_the_recipe_is_rejected_for_a_process(tmp_path: Path) -> None:
    """Its coroutine would be sent back in place of its value."""
    write(tmp_path, code_cells=CELLS, code_near="ONE = 1")
    text = RECIPE.replace("code_cells:plain", "code_cells:slow")
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(sb.DatasetGenerationError, match=r"column 'a' has process=True with an async function"):
        sb.build(sb.load_recipe(tmp_path / "recipe.yaml", allow_code=True), rows=2, out=tmp_path / "out")
