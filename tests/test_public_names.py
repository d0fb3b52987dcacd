"""The names of `import seedbed`: which there are, and what importing it does."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import seedbed


def run(code: str) -> None:
    """Run a program in an interpreter that has imported nothing yet."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_every_name_is_there() -> None:
    """What the stub says to type checkers is what there is, and can be imported with a star."""
    stub = ast.parse(Path(seedbed.__file__).with_name("__init__.pyi").read_text(encoding="utf-8"))
    (listed,) = [ast.literal_eval(each.value) for each in stub.body if isinstance(each, ast.Assign)]
    assert sorted(seedbed.__all__) == sorted(listed)
    space: dict[str, object] = {}
    exec("from seedbed import *", space)
    assert space.keys() >= set(listed)
    assert set(listed) <= set(dir(seedbed))


def test_packages_are_there_too() -> None:
    """As attributes, without an import of their own; what is not there is told as always."""
    assert seedbed.errors.ConfigError is seedbed.ConfigError
    with pytest.raises(AttributeError, match="module 'seedbed' has no attribute 'biuld'"):
        _ = seedbed.biuld  # type: ignore[attr-defined]
    assert not hasattr(seedbed, "_hidden")


def test_build_is_the_function_whatever_was_imported() -> None:
    """The package of the same name never takes its place."""
    run(
        """
import importlib, sys

def fresh():
    for name in [name for name in sys.modules if name.partition(".")[0] == "seedbed"]:
        del sys.modules[name]

def check():
    import seedbed
    from seedbed import build
    from seedbed.engine import api
    assert build is seedbed.build is api.build, seedbed.build

check()
for first in ("seedbed.engine.api", "seedbed.engine.guard", "seedbed.cli.run", "seedbed.simulation.api"):
    fresh()
    importlib.import_module(first)
    check()
    importlib.import_module("seedbed.engine.signals")
    check()
"""
    )


def test_a_name_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in any module, also `build`."""
    before = seedbed.build
    with monkeypatch.context() as patch:
        patch.setattr(seedbed, "build", len)
        assert seedbed.build is len  # type: ignore[comparison-overlap]
    assert seedbed.build is before


def test_importing_it_loads_nothing() -> None:
    """What a name needs is imported when it is first asked for."""
    run(
        "import sys, seedbed; heavy = {'polars', 'pyarrow', 'numpy', 'trio', 'jinja2', 'attrs'};"
        "assert not heavy & set(sys.modules); seedbed.ConfigError; assert not heavy & set(sys.modules);"
        "seedbed.Recipe; assert 'polars' in sys.modules"
    )
