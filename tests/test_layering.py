"""The import rule of docs/explanation/architecture.md, read from the source and not from what happens to be loaded."""

from __future__ import annotations

import ast
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

# A room imports from rooms with a lower number; rooms with the same number may import each other, but not in a circle.
LEVELS = {
    "graph": 1,
    "embed": 1,
    "runtime": 2,
    "recipe": 3,
    "generators": 3,
    "models": 3,
    "store": 3,
    "engine": 4,
    "plans": 4,
    "simulation": 5,
    "cluster": 5,
    "cli": 5,
    "testing": 5,
    "seedbed": 5,  # the public names
}
# All rooms may import these; what these may import is listed here.
COMMON: dict[str, frozenset[str]] = {"errors": frozenset(), "observe": frozenset({"errors", "graph"})}
# Two ways in that know nothing of each other.
STRANGERS = frozenset({"engine", "plans"})


@attrs.frozen
class Import:
    file: str
    line: int
    source: str  # the room that imports
    target: str  # the full name of what it imports

    @property
    def room(self) -> str:
        return room_of(self.target)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.source} imports {self.target}"


def room_of(module: str) -> str:
    """Name the room of a module of seedbed; the package itself is the room "seedbed"."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def is_type_checking(test: ast.expr) -> bool:
    """Tell whether a condition is TYPE_CHECKING, however it was imported."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def statements(node: ast.AST, *, types: bool = False) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield every import that can happen at run time, those inside of functions too, or with `types` all imports."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and is_type_checking(child.test) and not types:
            for other in child.orelse:
                yield from statements(ast.Module([other], []))
        else:
            yield from statements(child, types=types)


def imported(path: Path, text: str, *, types: bool = False) -> Iterator[Import]:
    """Yield what the module at `path` (below src/) imports, relative names made absolute."""
    package = path.parent.parts
    for node in statements(ast.parse(text), types=types):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from seedbed import graph` takes a room, `from seedbed import Column` one of the public names.
            targets = [
                f"seedbed.{alias.name}" if base == "seedbed" and alias.name in rooms() else base for alias in node.names
            ]
        source = room_of(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
        yield from (Import(str(path), node.lineno, source, target) for target in dict.fromkeys(targets))


def rooms() -> set[str]:
    """Name the rooms that there are and those that are to be."""
    return {path.stem for path in (SRC / "seedbed").iterdir()} | set(LEVELS) | set(COMMON)


def inside(imports: Iterable[Import]) -> list[Import]:
    """Keep what is imported from another room of seedbed."""
    return [found for found in imports if found.target.split(".")[0] == "seedbed" and found.source != found.room]


def complaint(found: Import) -> str | None:
    """Say which rule an import from another room breaks, if it breaks one."""
    source, target = found.source, found.room
    for room in (source, target):
        if room not in LEVELS and room not in COMMON:
            return f"{found}, but {room!r} has no place in LEVELS of {Path(__file__).name} and in architecture.md yet"
    if source in COMMON:
        allowed = " and ".join(sorted(COMMON[source])) or "nothing"
        return None if target in COMMON[source] else f"{found}, but of seedbed {source} may import {allowed}"
    if {source, target} == STRANGERS:
        return f"{found}, but engine and plans meet in graph and runtime only"
    if target in LEVELS and LEVELS[target] > LEVELS[source]:
        return f"{found}, but imports run the other way: {target} may import {source}"
    return None


def circle(imports: Iterable[Import]) -> list[Import]:
    """Find imports that lead from a room back to it through rooms of its own level."""
    level = {
        (found.source, found.room): found
        for found in imports
        if found.source in LEVELS and LEVELS[found.source] == LEVELS.get(found.room)
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
    """Read every import of the package."""
    paths = [*sorted((SRC / "seedbed").rglob("*.py")), SRC / "seedbed" / "__init__.pyi"]
    return [found for path in paths for found in imported(path.relative_to(SRC), path.read_text(encoding="utf-8"))]


def test_imports_run_one_way() -> None:
    """Every import between rooms follows the rule."""
    found = inside(everything())
    assert found, f"no import between rooms found below {SRC}"
    broken = [said for each in found if (said := complaint(each))]
    assert not broken, "\n".join(["imports against the rule:", *broken])


def test_rooms_do_not_need_each_other() -> None:
    """No room imports a room that in the end imports it."""
    found = circle(inside(everything()))
    assert not found, "\n".join(["rooms that need each other:", *map(str, found)])


def engine_imports(module: str) -> list[Import]:
    """Read what a module of the engine imports, for types too; `from . import a` counts as the module `a`."""
    path = Path("seedbed", "engine", f"{module}.py")
    return list(imported(path, (SRC / path).read_text(encoding="utf-8"), types=True))


def test_the_scheduler_knows_neither_trio_nor_the_store() -> None:
    """What decides imports no trio and no store, itself or through modules of the engine, not even for types."""
    pending, seen, broken = ["scheduler", "row_group"], set[str](), list[str]()
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        for found in engine_imports(module):
            parts = found.target.split(".")
            if parts[0] == "trio" or parts[:2] == ["seedbed", "store"]:
                broken.append(str(found))
            elif parts[:2] == ["seedbed", "engine"]:
                assert len(parts) > 2, f"{found}: name the module"
                pending.append(parts[2])
    assert {"budget", "salvage", "stateful", "tasks"} <= seen
    assert not broken, "\n".join(["imports of what performs by what decides:", *broken])


# Modules that need each other, if only for types; this list only gets shorter.
KNOWN_CYCLES = [
    {"errors", "observe.report", "store.dtypes", "store.records", "store.schema"},
    {"runtime.async_functions", "runtime.on_asyncio"},
    {"plans.ops", "plans.opspec"},
    {"simulation.result", "simulation.text"},
]


def module_imports() -> dict[str, set[str]]:
    """For each module of the package the modules that it imports, for types too."""
    files = {path.relative_to(SRC): path for path in sorted((SRC / "seedbed").rglob("*.py"))}
    names = {path: ".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files}
    known = set(names.values())
    found: dict[str, set[str]] = {}
    for path, file in files.items():
        package = path.parent.parts
        targets: set[str] = set()
        for node in statements(ast.parse(file.read_text(encoding="utf-8")), types=True):
            if isinstance(node, ast.Import):
                targets.update(alias.name for alias in node.names)
                continue
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from . import a` takes a module, `from .a import b` usually a name.
            targets.update(name if (name := f"{base}.{alias.name}") in known else base for alias in node.names)
        found[names[path]] = (targets & known) - {names[path]}
    return found


def cycles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Find the groups of modules that need each other."""

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


def test_modules_do_not_need_each_other() -> None:
    """No module imports one that in the end imports it, even for types alone; the known cycles only get fewer."""
    found = [{name.removeprefix("seedbed.") for name in cycle} for cycle in cycles(module_imports())]
    new = [cycle for cycle in found if not any(cycle <= known for known in KNOWN_CYCLES)]
    assert not new, "\n".join(["modules that need each other:", *map(str, map(sorted, new))])
    gone = [known for known in KNOWN_CYCLES if known not in found]
    assert not gone, f"remove from KNOWN_CYCLES or shorten there: {gone}"


def test_a_cycle_for_types_alone_is_found() -> None:
    """Modules that need each other are found, and no others."""
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def test_every_import_is_declared() -> None:
    """What the package imports is the standard library, itself or a dependency of pyproject.toml."""
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
    """Spell the name of a distribution as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("graph/a.py", "from ..runtime import lanes", "graph/a.py:1: graph imports seedbed.runtime, but imports run"),
        ("graph/a.py", "import trio\nfrom seedbed import runtime", "graph/a.py:2: graph imports seedbed.runtime"),
        ("graph/a.py", "import seedbed.runtime.lanes", "imports seedbed.runtime.lanes, but imports run the other way"),
        (
            "store/a.py",
            "def f():\n    from ..engine.cell import run",
            "store/a.py:2: store imports seedbed.engine.cell",
        ),
        ("engine/deep/a.py", "from ...plans.ops import op", "engine and plans meet in graph and runtime only"),
        ("plans/__init__.py", "from ..engine import cell", "engine and plans meet in graph and runtime only"),
        ("observe/a.py", "from ..runtime import lanes", "but of seedbed observe may import errors and graph"),
        ("errors.py", "from .observe.report import BuildReport", "but of seedbed errors may import nothing"),
        ("runtime/a.py", "from .. import Column", "runtime imports seedbed, but imports run the other way"),
        ("attic/a.py", "from ..errors import Retryable", "'attic' has no place in LEVELS"),
        ("graph/a.py", "if TYPE_CHECKING:\n    import x\nelse:\n    import seedbed.cli", "graph imports seedbed.cli"),
    ],
)
def test_a_broken_rule_is_named(path: str, text: str, message: str) -> None:
    """An import against the rule is reported with its file, its line and what it imports."""
    (found,) = inside(imported(Path("seedbed", path), text))
    assert message in (complaint(found) or "")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("graph/a.py", "from ..errors import ConfigError\nfrom ..observe.events import Event\nfrom .b import c"),
        ("observe/a.py", "from ..graph import Graph"),
        ("store/a.py", "import typing\nif typing.TYPE_CHECKING:\n    from ..engine.cell import Cell"),
        ("engine/a.py", "from ..store import manifest\nfrom .. import graph\nfrom . import cell"),
        ("__init__.py", "from .engine import build\nfrom .errors import Retryable"),
        ("cli/run.py", "import seedbed as sb"),
    ],
)
def test_what_the_rule_allows(path: str, text: str) -> None:
    """Imports downwards, of errors and observe, and those for type checkers alone are fine."""
    assert not [said for found in inside(imported(Path("seedbed", path), text)) if (said := complaint(found))]


def test_a_circle_is_named() -> None:
    """Rooms of one level that need each other are reported with the imports that make the circle."""
    texts = {
        "recipe/a.py": "from ..generators import b",
        "generators/b.py": "from ..models import c",
        "models/c.py": "from ..recipe import a",
    }
    found = [one for path, text in texts.items() for one in inside(imported(Path("seedbed", path), text))]
    assert circle(found[:2]) == []
    assert set(circle(found)) == set(found)
