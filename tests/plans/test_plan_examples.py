from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed.plans.builder import AuthoredPlan
from seedbed.plans.format import parse_plan

PLANS = Path(__file__).parents[2] / "examples" / "plans"
NODES = {
    "complex_dag": 10,
    "diamond": 4,
    "mixed_pipeline": 6,
    "parallel_fanout": 3,
    "simple_viewer": 1,
    "viewer_filter": 2,
}


def test_every_example_exists_as_python_and_as_json() -> None:
    """Each example has both files."""
    assert sorted(path.stem for path in PLANS.glob("*.py")) == sorted(NODES)
    assert sorted(path.stem for path in PLANS.glob("*.json")) == sorted(NODES)


@pytest.mark.parametrize("name", NODES)
def test_python_and_json_agree(name: str) -> None:
    """The JSON file is exactly the compiled Python file, and it is valid."""
    authored = runpy.run_path(str(PLANS / f"{name}.py"))[name]
    assert isinstance(authored, AuthoredPlan)
    assert authored.text() == (PLANS / f"{name}.json").read_text(encoding="utf-8")
    plan = parse_plan(PLANS / f"{name}.json")
    assert plan == authored.plan()
    assert (plan.name, len(plan.nodes)) == (name, NODES[name])


def test_running_an_example_prints_its_json() -> None:
    """Running the file regenerates the JSON."""
    command = [sys.executable, str(PLANS / "diamond.py")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown == (PLANS / "diamond.json").read_text(encoding="utf-8")


def test_the_listing_has_every_example() -> None:
    """The table in the README of the folder has the number of nodes of each plan."""
    page = (PLANS / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` | {count} |" in page for name, count in NODES.items())
