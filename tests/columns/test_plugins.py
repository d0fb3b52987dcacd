from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import attrs
import polars as pl
import pytest

import seedbed as sb
from seedbed.columns.base import Column
from seedbed.columns.expression import Expression
from seedbed.columns.spec import (
    ColumnSpec,
    Environment,
    ProcessorSpec,
    make_column,
    make_processor,
    processor_types,
    spec_types,
)
from seedbed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"

# Runs in a process of its own, where nothing is loaded yet.
USE_IT = """
import seedbed
from seedbed.columns.spec import make_column, make_processor
from seedbed import load_recipe

recipe = load_recipe("weather.yaml")
environment = recipe.environment()
columns = recipe.resolve(environment)
triples = [make_processor(spec, environment) for spec in recipe.processors]
processors = [seedbed.Processor(stage=stage, name=name, apply=apply) for stage, name, apply in triples]
for row in seedbed.preview(columns, rows=3, processors=processors).to_polars().to_dicts():
    print(row)
"""
RECIPE = """
seed: 7
columns:
  - {type: expression, name: city, expr: "Oslo{{ '' }}"}
  - {type: temperature, name: noon, city: city, means: {Oslo: 6}}
processors:
  - {type: round_numbers, digits: 1}
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A directory with the example plug-in installed."""
    target = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(target), str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_the_example_is_installed_and_used(target: Path, tmp_path: Path) -> None:
    """The types of an installed plug-in are used in a recipe like seedbed's own, with the same values each time."""
    (tmp_path / "weather.yaml").write_text(RECIPE, encoding="utf-8")
    path = ":".join([str(target), *sys.path])
    command = [sys.executable, "-c", USE_IT]
    first, second = (
        subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    rows = first.stdout.splitlines()
    assert len(rows) == 3
    assert len(set(rows)) == 3
    assert all(row.startswith("{'city': 'Oslo', 'noon': ") for row in rows)
    assert second.stdout == first.stdout


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the path whose plug-ins are found."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(folder: Path, module: str, text: str, group: str = "seedbed.columns", value: str | None = None) -> None:
    """Put a package with an entry point into a directory, as an installer would."""
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    info = folder / f"{module}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\n{module} = {value or module}\n", encoding="utf-8")


def test_a_broken_plugin_is_named(installed: Path) -> None:
    """Plug-ins that cannot be loaded are all named in one error, at every lookup of a type."""
    install(installed, "broken_plugin_a", "raise RuntimeError('oh no')")
    install(installed, "broken_plugin_b", "x = 3", group="seedbed.processors", value="broken_plugin_b:x")
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            spec_types()
        assert (
            "plug-in 'broken_plugin_a' of broken_plugin_a 1.2 (seedbed.columns: broken_plugin_a) cannot be loaded: "
            "RuntimeError: oh no; repair or uninstall it"
        ) in str(caught.value)
        assert "(seedbed.processors: broken_plugin_b:x) is neither a module nor a spec class but 3" in str(caught.value)
    # A recipe in Python needs no plug-in and is not affected.
    assert make_column(Expression("a", "1"), Environment()).name == "a"


def test_plugins_are_found_once_for_a_recipe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding plug-ins reads files of every installed package, so a file of many columns does it no more often."""
    lookups: list[str] = []

    def find(*, group: str) -> Iterable[EntryPoint]:
        lookups.append(group)
        return entry_points(group=group)

    monkeypatch.setattr("seedbed.columns.spec.entry_points", find)
    counts = []
    for columns in (1, 50):
        fields = [{"name": f"c{n}", "type": "expression", "expr": "1"} for n in range(columns)]
        (tmp_path / "r.json").write_text(json.dumps({"columns": fields}), encoding="utf-8")
        sb.load_recipe(tmp_path / "r.json")
        counts.append(len(lookups))
        lookups.clear()
    assert counts[0] == counts[1]


SAME = """
from typing import ClassVar
import attrs
from seedbed.columns.spec import ProcessorSpec

@attrs.frozen(kw_only=True)
class Same(ProcessorSpec):
    type: ClassVar[str] = "NAME"

    def to_function(self, environment):
        return lambda frame: frame
"""


def test_an_entry_point_may_name_a_spec(installed: Path) -> None:
    """An entry point may name one spec class in place of a module."""
    install(
        installed,
        "spec_plugin",
        SAME.replace("NAME", "same_as_before"),
        group="seedbed.processors",
        value="spec_plugin:Same",
    )
    same = processor_types()["same_as_before"]
    assert processor_types()["same_as_before"] is same
    assert make_processor(same(), Environment())[:2] == ("post_batch", "same_as_before")


def test_a_type_has_one_spec(installed: Path) -> None:
    """A plug-in cannot replace a type that exists."""
    install(installed, "thief_plugin", SAME.replace("NAME", "expression"))
    with pytest.raises(ConfigError, match=r"duplicate type 'expression': thief_plugin\.Same and .*\.Expression"):
        spec_types()


def test_the_type_in_a_spec_takes_precedence() -> None:
    """`dtype` of a spec overrides the type that its `to_column` declares; other outputs have the declared types."""

    @attrs.frozen
    class Pair(ColumnSpec):
        type: ClassVar[str] = "pair"

        def to_column(self, environment: Environment) -> Column:
            types = {self.name: str, f"{self.name}_too": str}
            return Column(self.name, dict, requires=(), side_effects=f"{self.name}_too", dtype=types)

    assert make_column(Pair("a"), Environment()).dtypes() == {"a": str, "a_too": str}
    assert make_column(Pair("a", dtype="Int32"), Environment()).dtypes() == {"a": pl.Int32, "a_too": str}
    assert make_column(Pair("a", dtype={"a_too": int}), Environment()).dtypes() == {"a": str, "a_too": int}


def test_a_spec_without_its_method(installed: Path) -> None:
    """A spec class that does not define its method is named with its column."""

    @attrs.frozen
    class Orphan(ColumnSpec):
        type: ClassVar[str] = "orphan"

    class OrphanProcessor(ProcessorSpec):
        type = "orphan"

    with pytest.raises(ConfigError, match=r"column 'a': Orphan has no method to_column"):
        make_column(Orphan("a"), Environment())
    with pytest.raises(ConfigError, match=r"orphan: OrphanProcessor has no method to_function"):
        make_processor(OrphanProcessor(), Environment())


def test_clients_are_open_only_while_a_build_runs() -> None:
    """A client before a build, and an unknown model, raise an error that names the cause."""
    with pytest.raises(ConfigError, match="the client of model 'a' is open only while a build runs"):
        Environment().client("a")
    with pytest.raises(ConfigError, match="model 'wrter' is not in models; did you mean 'writer'"):
        Environment(models={"writer": object()}).model("wrter")  # type: ignore[dict-item]
