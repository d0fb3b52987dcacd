"""The import rule of docs/explanation/architecture.md, read from the source; type-only imports count."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"

# A package imports packages with a lower number; those with the same number may import each other, without cycles.
LEVELS = {
    "graph": 1,
    "runtime": 2,
    "models": 3,
    "store": 3,
    "columns": 4,
    "recipe": 5,
    "engine": 6,
    "plans": 6,
    "simulation": 7,
    "cluster": 7,
    "publish": 7,
    "view": 7,
    "cli": 7,
    "testing": 7,
    "seedbed": 7,  # the public names
}
# All packages may import these; what these may import is listed here.
COMMON: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "checks": frozenset({"errors"}),
    "observe": frozenset({"errors", "graph"}),
}
# They have the same level, but never import each other.
INDEPENDENT = frozenset({"engine", "plans"})
# Type-only imports against the rule, as (package, module); this list only gets shorter.
EXCEPTIONS = [("errors", "seedbed.observe.report")]


@attrs.frozen
class Import:
    file: str
    line: int
    source: str  # the package that imports
    target: str  # the full name of what it imports

    @property
    def package(self) -> str:
        return package_of(self.target)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.source} imports {self.target}"


def package_of(module: str) -> str:
    """The package of seedbed that a module belongs to; "seedbed" for the public names."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imported(path: Path, text: str) -> Iterator[Import]:
    """Yield the imports of the module at `path` (below src/), anywhere in it; relative names are resolved."""
    package = path.parent.parts
    source = package_of(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from . import a` imports a module, `from .a import b` usually a name.
            targets = [name if (name := f"{base}.{alias.name}") in modules() else base for alias in node.names]
        else:
            continue
        yield from (Import(str(path), node.lineno, source, target) for target in dict.fromkeys(targets))


@functools.cache
def modules() -> frozenset[str]:
    """The names of all modules and packages of seedbed."""
    paths = [path.relative_to(SRC).with_suffix("") for path in (SRC / "seedbed").rglob("*.py")]
    return frozenset(".".join(path.parts).removesuffix(".__init__") for path in paths)


def between_packages(imports: Iterable[Import]) -> list[Import]:
    """The imports of other packages of seedbed."""
    return [found for found in imports if found.target.split(".")[0] == "seedbed" and found.source != found.package]


def violation(found: Import) -> str | None:
    """Describe the rule that an import of another package breaks; None if it breaks none."""
    source, target = found.source, found.package
    for package in (source, target):
        if package not in LEVELS and package not in COMMON:
            return f"{found}, but {package!r} is missing in LEVELS of {Path(__file__).name} and in architecture.md"
    if source in COMMON:
        allowed = " and ".join(sorted(COMMON[source])) or "nothing"
        return None if target in COMMON[source] else f"{found}, but of seedbed {source} may import {allowed}"
    if {source, target} == INDEPENDENT:
        return f"{found}, but engine and plans never import each other"
    if target in LEVELS and LEVELS[target] > LEVELS[source]:
        return f"{found}, but {target} may import {source}, not the reverse"
    return None


def package_cycle(imports: Iterable[Import]) -> list[Import]:
    """Find imports that lead from a package back to it through packages of its level."""
    level = {
        (found.source, found.package): found
        for found in imports
        if found.source in LEVELS and LEVELS[found.source] == LEVELS.get(found.package)
    }
    sorter = TopologicalSorter[str]()
    for source, target in level:
        sorter.add(source, target)
    try:
        sorter.prepare()
    except CycleError as error:
        return [level[source, target] for target, source in pairwise(error.args[1])]
    return []


def everything() -> list[Import]:
    """Every import of seedbed."""
    paths = [*sorted((SRC / "seedbed").rglob("*.py")), SRC / "seedbed" / "__init__.pyi"]
    return [found for path in paths for found in imported(path.relative_to(SRC), path.read_text(encoding="utf-8"))]


def test_imports_run_one_way() -> None:
    """Every import between packages follows the rule, except the listed ones."""
    broken = {found: why for found in between_packages(everything()) if (why := violation(found))}
    new = [why for found, why in broken.items() if (found.source, found.target) not in EXCEPTIONS]
    assert not new, "\n".join(["imports against the rule:", *new])
    obsolete = set(EXCEPTIONS) - {(found.source, found.target) for found in broken}
    assert not obsolete, f"remove from EXCEPTIONS: {obsolete}"


def test_packages_do_not_depend_on_each_other() -> None:
    """No package imports one that imports it, directly or through others."""
    found = package_cycle(between_packages(everything()))
    assert not found, "\n".join(["packages that depend on each other:", *map(str, found)])


def test_the_scheduler_knows_neither_trio_nor_the_store() -> None:
    """The modules that decide import neither trio nor the store, directly or through other modules of the engine."""
    imports: dict[str, list[Import]] = {}
    for found in everything():
        if found.source == "engine":
            imports.setdefault(Path(found.file).stem, []).append(found)
    pending, seen, broken = ["scheduler", "row_group"], set[str](), list[str]()
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        for found in imports[module]:
            parts = found.target.split(".")
            if parts[0] == "trio" or parts[:2] == ["seedbed", "store"]:
                broken.append(str(found))
            elif parts[:2] == ["seedbed", "engine"]:
                assert len(parts) > 2, f"{found}: name the module"
                pending.append(parts[2])
    assert {"budget", "failures", "stateful", "tasks"} <= seen
    assert not broken, "\n".join(["the scheduler imports:", *broken])


# Modules that import each other, if only for types; this list only gets shorter.
KNOWN_CYCLES: list[set[str]] = []


def module_imports() -> dict[str, set[str]]:
    """For each module of seedbed the modules that it imports."""
    found: dict[str, set[str]] = {module: set() for module in modules()}
    for each in everything():
        module = ".".join(Path(each.file).with_suffix("").parts).removesuffix(".__init__")
        if each.target in found and each.target != module:
            found[module].add(each.target)
    return found


def cycles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Find the groups of modules that import each other."""

    def reached(start: str) -> set[str]:
        seen, pending = set[str](), [start]
        while pending:
            new = imports[pending.pop()] - seen
            seen |= new
            pending.extend(new)
        return seen

    reach = {module: reached(module) for module in imports}
    found: list[set[str]] = []
    for module in imports:
        if module in reach[module] and not any(module in each for each in found):
            found.append({other for other in reach[module] if module in reach[other]})
    return found


def test_modules_do_not_depend_on_each_other() -> None:
    """No module imports one that imports it, directly or through others; the known cycles only get fewer."""
    found = [{name.removeprefix("seedbed.") for name in cycle} for cycle in cycles(module_imports())]
    new = [cycle for cycle in found if not any(cycle <= known for known in KNOWN_CYCLES)]
    assert not new, "\n".join(["modules that import each other:", *map(str, map(sorted, new))])
    obsolete = [known for known in KNOWN_CYCLES if known not in found]
    assert not obsolete, f"remove from KNOWN_CYCLES or shorten there: {obsolete}"


def test_a_cycle_of_modules_is_found() -> None:
    """Modules that import each other are found, and no others."""
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def test_every_import_is_declared() -> None:
    """Every import is of the standard library, of seedbed or of a dependency in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [requirement for extra in project.get("optional-dependencies", {}).values() for requirement in extra]
    declared = {plain(re.split(r"[^\w.-]", requirement)[0]) for requirement in [*project["dependencies"], *extras]}
    distributions = packages_distributions()
    undeclared = [
        str(found)
        for found in everything()
        if (top := found.target.split(".")[0]) not in sys.stdlib_module_names | {"seedbed"}
        and not declared.intersection(map(plain, distributions.get(top, [top])))
    ]
    assert not undeclared, "\n".join(["imports that pyproject.toml does not declare:", *undeclared])


def plain(name: str) -> str:
    """Normalise the name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        (
            "graph/a.py",
            "from ..runtime import lanes",
            "graph/a.py:1: graph imports seedbed.runtime.lanes, but runtime may",
        ),
        ("graph/a.py", "import trio\nfrom seedbed import runtime", "graph/a.py:2: graph imports seedbed.runtime"),
        ("graph/a.py", "import seedbed.runtime.lanes", "imports seedbed.runtime.lanes, but runtime may import graph"),
        (
            "store/a.py",
            "def f():\n    from ..engine.cell import run",
            "store/a.py:2: store imports seedbed.engine.cell",
        ),
        ("engine/deep/a.py", "from ...plans.ops import op", "engine and plans never import each other"),
        ("plans/__init__.py", "from ..engine import cell", "engine and plans never import each other"),
        ("observe/a.py", "from ..runtime import lanes", "but of seedbed observe may import errors and graph"),
        ("errors.py", "from .observe.report import BuildReport", "but of seedbed errors may import nothing"),
        (
            "runtime/a.py",
            "from .. import Column",
            "runtime imports seedbed, but seedbed may import runtime, not the reverse",
        ),
        ("attic/a.py", "from ..errors import Retryable", "'attic' is missing in LEVELS"),
        ("graph/a.py", "if TYPE_CHECKING:\n    import seedbed.cli", "graph/a.py:2: graph imports seedbed.cli"),
    ],
)
def test_a_broken_rule_is_named(path: str, text: str, message: str) -> None:
    """An import against the rule is reported with its file, its line and what it imports."""
    (found,) = between_packages(imported(Path("seedbed", path), text))
    assert message in (violation(found) or "")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("graph/a.py", "from ..errors import ConfigError\nfrom ..observe.events import Event\nfrom .b import c"),
        ("observe/a.py", "from ..graph import Graph"),
        ("engine/a.py", "from ..store import manifest\nfrom .. import graph\nfrom . import cell"),
        ("__init__.py", "from .engine import build\nfrom .errors import Retryable"),
        ("cli/run.py", "import seedbed as sb"),
    ],
)
def test_allowed_imports(path: str, text: str) -> None:
    """Imports downwards and of errors and observe."""
    assert not [why for found in between_packages(imported(Path("seedbed", path), text)) if (why := violation(found))]


def test_a_cycle_of_packages_is_named() -> None:
    """Packages of one level that import each other are reported with the imports of the cycle."""
    texts = {
        "models/a.py": "from ..store import b",
        "store/b.py": "from ..models import a",
    }
    found = [one for path, text in texts.items() for one in between_packages(imported(Path("seedbed", path), text))]
    assert package_cycle(found[:1]) == []
    assert set(package_cycle(found)) == set(found)
