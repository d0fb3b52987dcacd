"""What packages never do according to docs/explanation/architecture.md, read from the source."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "seedbed"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")


@functools.cache
def nodes(package: str) -> list[tuple[str, ast.AST]]:
    """Every node of the syntax trees of a package, with its file."""
    paths = sorted((SRC / package).rglob("*.py"))
    return [
        (str(path.relative_to(SRC)), node)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]


def modules(package: str) -> set[tuple[str, str]]:
    """The modules that a package imports, for types too, as (file, name); relative names begin with their dots."""
    found: set[tuple[str, str]] = set()
    for file, node in nodes(package):
        if isinstance(node, ast.Import):
            found.update((file, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found.update((file, "." * node.level + name) for name in names)
    return found


def packages(package: str) -> set[tuple[str, str]]:
    """The other packages of seedbed that a package imports, for types too, as (file, name)."""
    found = set()
    for file, name in modules(package):
        level = len(name) - len(name.lstrip("."))
        if level == len(Path(file).parts):  # from the root of seedbed
            found.add((file, name.lstrip(".").partition(".")[0]))
        elif name.startswith("seedbed."):
            found.add((file, name.split(".")[1]))
    return found


@pytest.mark.parametrize("package", ["graph", "recipe", "store"])
def test_packages_that_never_await(package: str) -> None:
    """They import no trio and have no coroutine."""
    assert not [file for file, name in modules(package) if name.partition(".")[0] == "trio"]
    waiting = (ast.AsyncFunctionDef, ast.AsyncWith, ast.AsyncFor, ast.Await)
    assert not [file for file, node in nodes(package) if isinstance(node, waiting)]


@pytest.mark.parametrize("package", ["columns", "recipe", "store"])
def test_packages_that_start_no_tasks(package: str) -> None:
    """Only what runs a build or a request opens nurseries."""
    starting = {"open_nursery", "start_soon", "spawn_system_task"}
    assert not [file for file, node in nodes(package) if isinstance(node, ast.Attribute) and node.attr in starting]


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("runtime", {"checks", "errors", "graph", "observe"}),
        ("plans", {"checks", "errors", "graph", "observe", "runtime"}),
    ],
)
def test_packages_that_know_few_others(package: str, others: set[str]) -> None:
    """They import these packages of seedbed and no others, even for types."""
    assert not {(file, name) for file, name in packages(package) if name not in others}


@pytest.mark.parametrize("package", ["cli", "testing"])
def test_packages_that_no_other_imports(package: str) -> None:
    """No package imports them."""
    everyone = [path.name for path in SRC.iterdir() if path.is_dir() and path.name not in (package, "__pycache__")]
    assert not {(file, name) for other in everyone for file, name in packages(other) if name == package}


def test_the_page_names_every_package() -> None:
    """Each package has its row in the table."""
    rows = set(re.findall(r"^\| `(\w+)/` \|", PAGE, re.MULTILINE))
    assert rows == {path.name for path in SRC.iterdir() if (path / "__init__.py").exists()}


def test_every_file_on_the_page_exists() -> None:
    """A path in backticks leads to a file of seedbed, a bare name to one in `engine/` or `plans/`."""
    named = set(re.findall(r"`([\w/-]+\.(?:py|pyi|md))`", PAGE))
    bases = [SRC, SRC / "engine", SRC / "plans", ROOT, ROOT / "docs" / "reference"]
    assert len(named) > 50
    assert not [name for name in named if not any((base / name).is_file() for base in bases)]


def test_every_name_is_in_the_file_that_the_page_states() -> None:
    """Where the page says "`name` in `file`", the file defines or uses that name."""
    stated = re.findall(r"`(\w+)` in `([\w/]+\.py)`", PAGE)
    assert len(stated) > 8
    assert not [
        (name, path) for name, path in stated if not re.search(rf"\b{name}\b", (SRC / path).read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("package", ["graph", "runtime", "simulation"])
def test_every_module_of_the_table_is_listed(package: str) -> None:
    """The table of modules is complete for the packages that it covers; an `__init__.py` may be omitted."""
    found = {path.relative_to(SRC).as_posix() for path in (SRC / package).rglob("*.py") if path.name != "__init__.py"}
    assert found <= set(re.findall(r"^\| `([\w/]+\.py)` \|", PAGE, re.MULTILINE))
