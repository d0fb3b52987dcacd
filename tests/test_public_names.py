"""The public names of `seedbed`, and what importing it loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import seedbed

COLUMN = """
import seedbed as sb

@sb.column
def shout(word: str) -> str:
    return f"{word.upper()} {sb.Recipe.__name__}"
"""


def run(code: str) -> None:
    """Run a program in an interpreter that has imported nothing yet."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_every_name_can_be_imported() -> None:
    """The names and modules in the stub are those of the package, and a star imports them."""
    stub = ast.parse(Path(seedbed.__file__).with_name("__init__.pyi").read_text(encoding="utf-8"))
    (listed,) = [ast.literal_eval(each.value) for each in stub.body if isinstance(each, ast.Assign)]
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    modules = {each.name: f"seedbed.{node.module}" for node in imports for each in node.names}
    assert modules == seedbed._MODULES  # type: ignore[attr-defined]
    assert sorted(seedbed.__all__) == sorted(listed) == sorted(modules)
    assert dir(seedbed) == sorted(listed)
    space: dict[str, object] = {}
    exec("from seedbed import *", space)
    assert space.keys() >= set(listed)


def test_dir_shows_public_names_only() -> None:
    """`dir(seedbed)` lists the public names, whatever was imported before."""
    assert seedbed.errors.ConfigError is seedbed.ConfigError
    assert dir(seedbed) == sorted(seedbed.__all__)


def test_packages_are_attributes() -> None:
    """Without an import of their own; an unknown attribute is the usual error."""
    assert seedbed.errors.ConfigError is seedbed.ConfigError
    with pytest.raises(AttributeError, match="module 'seedbed' has no attribute 'biuld'"):
        _ = seedbed.biuld  # type: ignore[attr-defined]
    assert not hasattr(seedbed, "_hidden")


def test_a_name_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in any module, also `build`."""
    before = seedbed.build
    with monkeypatch.context() as patch:
        patch.setattr(seedbed, "build", len)
        assert seedbed.build is len  # type: ignore[comparison-overlap]
    assert seedbed.build is before


def test_importing_it_loads_nothing() -> None:
    """A name is imported when it is first used."""
    run(
        "import sys, seedbed; heavy = {'polars', 'pyarrow', 'numpy', 'trio', 'jinja2', 'attrs'};"
        "assert not heavy & set(sys.modules); seedbed.ConfigError; assert not heavy & set(sys.modules);"
        "seedbed.Recipe; assert 'polars' in sys.modules"
    )


def test_the_help_of_the_command_does_not_import_polars() -> None:
    """`seedbed --help` imports nothing heavy."""
    run(
        "import sys; from seedbed.cli import main\n"
        "sys.argv = ['seedbed', '--help']\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "assert 'polars' not in sys.modules"
    )


def test_columns_that_use_the_package_can_be_pickled(tmp_path: Path) -> None:
    """A column whose body uses `sb` is pickled by reference from a module, and by value from a program."""
    (tmp_path / "own_columns.py").write_text(COLUMN, encoding="utf-8")
    run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import pickle, cloudpickle, own_columns\n"
        "for pickler in (pickle, cloudpickle):\n"
        "    again = pickle.loads(pickler.dumps(own_columns.shout))\n"
        "    assert again is own_columns.shout\n"
    )
    pickled = tmp_path / "column.pickle"
    run(f"{COLUMN}\nimport cloudpickle\nopen({str(pickled)!r}, 'wb').write(cloudpickle.dumps(shout))")
    run(f"import pickle; assert pickle.load(open({str(pickled)!r}, 'rb'))('a') == 'A Recipe'")
