from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import attrs
import pytest

from seedbed.errors import ConfigError
from seedbed.generators import plugins
from seedbed.generators.column import Column
from seedbed.generators.registry import Environment, make_column, make_processor, maker, processor_types, spec_types
from seedbed.recipe.expression import Expression
from seedbed.recipe.processors import ProcessorSpec
from seedbed.recipe.spec import ColumnSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"

# Runs in a process of its own, where nothing is loaded yet.
USE_IT = """
import seedbed
from seedbed.generators.registry import make_column, make_processor, planning_environment, vocabulary
from seedbed.recipe.load import load_recipe

recipe = load_recipe("weather.yaml", vocabulary(models={}))
environment = planning_environment(recipe)
columns = recipe.resolve(lambda spec: make_column(spec, environment))
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
    """Give a directory with the example plug-in installed."""
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
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a directory on the path whose plug-ins are found, and forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    plugins.forget_plugins()
    yield tmp_path
    plugins.forget_plugins()


def install(folder: Path, module: str, text: str, group: str = "seedbed.generators", value: str | None = None) -> None:
    """Put a package with an entry point into a directory, as an installer would."""
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    info = folder / f"{module}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\n{module} = {value or module}\n", encoding="utf-8")


def test_a_broken_plugin_is_named(installed: Path) -> None:
    """A plug-in that cannot be imported gives one error that names it, each time that a plug-in might be needed."""
    install(installed, "broken_plugin_a", "raise RuntimeError('oh no')")
    install(installed, "broken_plugin_b", "x = 3", group="seedbed.processors", value="broken_plugin_b:x")
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            spec_types()
        assert (
            "plug-in 'broken_plugin_a' of broken_plugin_a 1.2 (seedbed.generators: broken_plugin_a) cannot be loaded: "
            "RuntimeError: oh no; repair or uninstall it"
        ) in str(caught.value)
        assert "(seedbed.processors: broken_plugin_b:x) is neither a module nor a function but 3" in str(caught.value)
    # Who needs no plug-in is not troubled.
    assert make_column(Expression("a", "1"), Environment()).name == "a"


def test_a_function_registers(installed: Path) -> None:
    """An entry point may be a function, which is called once."""
    text = """
from typing import ClassVar
import attrs
from seedbed.generators.registry import processor_maker
from seedbed.recipe.processors import ProcessorSpec

@attrs.frozen(kw_only=True)
class Same(ProcessorSpec):
    type: ClassVar[str] = "same_as_before"

calls = []
def register():
    calls.append(1)
    processor_maker(Same)(lambda spec, environment: lambda frame: frame)
"""
    install(installed, "function_plugin", text, group="seedbed.processors", value="function_plugin:register")
    same = processor_types()["same_as_before"]
    assert processor_types()["same_as_before"] is same
    assert sys.modules["function_plugin"].calls == [1]
    assert make_processor(same(), Environment())[:2] == ("post_batch", "same_as_before")


def test_a_type_has_one_spec(installed: Path) -> None:
    """A plug-in cannot take the name of a type that is there already."""

    @attrs.frozen
    class Mine(ColumnSpec):
        type: ClassVar[str] = "expression"

    with pytest.raises(ConfigError, match=r"type 'expression' of .*Mine is there already, from .*Expression"):
        maker(Mine)(lambda spec, environment: Column(spec.name, len))


def test_a_spec_that_nobody_makes(installed: Path) -> None:
    """A spec class without a maker is named with its column."""

    @attrs.frozen
    class Orphan(ColumnSpec):
        type: ClassVar[str] = "orphan"

    class OrphanProcessor(ProcessorSpec):
        type = "orphan"

    with pytest.raises(ConfigError, match=r"column 'a': nothing is registered that makes a column of .*Orphan"):
        make_column(Orphan("a"), Environment())
    with pytest.raises(ConfigError, match=r"orphan: nothing is registered that makes a processor of .*OrphanProcessor"):
        make_processor(OrphanProcessor(), Environment())


def test_clients_are_for_builds() -> None:
    """Asking for a client before a build runs, or for a model that is not there, is an error that says so."""
    with pytest.raises(ConfigError, match="the client of model 'a' is open only while a build runs"):
        Environment().client("a")
    with pytest.raises(ConfigError, match="model 'wrter' is not in models; did you mean 'writer'"):
        Environment(models={"writer": object()}).model("wrter")  # type: ignore[dict-item]
