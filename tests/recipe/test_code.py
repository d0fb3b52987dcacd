"""Code that a recipe names as `module:name`, in modules beside the recipe."""

from __future__ import annotations

import importlib
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from seedbed.errors import ConfigError
from seedbed.recipe.code import import_object

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _forget_modules() -> Iterator[None]:
    """Import nothing that a test made in another test."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
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
    """A folder of data beside the recipe that is named like a package does not take its place."""
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
