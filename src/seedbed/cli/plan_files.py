"""From the arguments of a plan command to a plan, its request and an engine."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from ..errors import ConfigError, InvalidPlan
from ..plans.builder import AuthoredPlan
from ..plans.engine import PlanEngine
from ..plans.format import parse_plan
from ..plans.opspec import OpRegistry, default_ops
from ..plans.registries import default_registries, load_registries
from ..plans.request import parse_request
from ..recipe.code import imports_from

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..plans.model import Plan, Registries
    from ..plans.request import Request
    from .plan_options import PlanSource, RequestLimits

T = TypeVar("T")


@attrs.frozen
class LoadedPlan:
    """A valid plan and the ops that it was checked against."""

    plan: Plan
    ops: OpRegistry

    def request(self, text: str) -> Request:
        """Read a request: JSON text, or - for standard input."""
        return parse_request(sys.stdin.read() if text.strip() == "-" else text, self.plan.registries)

    def engine(self, limits: RequestLimits, *, at_once: int = 1, max_queue: int = 0) -> PlanEngine:
        """An engine for this plan."""
        return PlanEngine(
            registries=self.plan.registries,
            ops=self.ops,
            max_concurrent_requests=at_once,
            max_queue=max_queue,
            cpu_threads=limits.cpu_threads,
            fusion=limits.fusion,
            grace=0,  # all requests are over by then, and nobody wants what their threads still make
        )


def load_plan(given: str, source: PlanSource) -> LoadedPlan:
    """Read a plan from a JSON file or, where code is allowed, from a function as FILE.py:FUNCTION."""
    file, name = _split(given)
    registries = read_registries(source)
    if name is None:
        try:
            return LoadedPlan(parse_plan(Path(file), registries), default_ops())
        except OSError as error:
            raise ConfigError(f"the plan {file!r} cannot be read: {error.strerror or error}") from error
    if not source.allow_code:
        raise ConfigError(f"the plan {given!r} is code, which is run only with --allow-code")
    found = authored_plans(Path(file))
    if name not in found:
        there = ", ".join(found) or "none"
        raise ConfigError(f"{file!r} has no plan {name!r}; there are: {there}")
    return compile_plan(found[name], source)


def compile_plan(authored: AuthoredPlan, source: PlanSource) -> LoadedPlan:
    """What a plan function makes; registries of the command line go before its own."""
    if source.registries is not None:
        authored = attrs.evolve(authored, registries=read_registries(source))
    return LoadedPlan(authored.plan(), default_ops() if authored.ops is None else authored.ops)


def authored_plans(file: Path) -> dict[str, AuthoredPlan]:
    """Run a Python file, as Python would, and give the plans in it by the names that they have there."""
    if not file.is_file():
        raise ConfigError(f"the plan file {str(file)!r} does not exist")
    try:
        with imports_from(file.resolve().parent):
            names: dict[str, Any] = runpy.run_path(str(file), run_name=file.stem)
    except SystemExit as error:
        # As an exit of ours it would say that all is well, if its status is 0.
        raise ConfigError(f"the plan file {str(file)!r} is no file of plans: it exits ({error.code})") from error
    return {name: value for name, value in names.items() if isinstance(value, AuthoredPlan)}


def read_registries(source: PlanSource) -> Registries:
    """The registries that were asked for."""
    if source.registries is None:
        return default_registries()
    try:
        return load_registries(source.registries)
    except OSError as error:
        raise ConfigError(
            f"the registries {str(source.registries)!r} cannot be read: {error.strerror or error}"
        ) from error


def find_problems(given: str, source: PlanSource) -> tuple[Plan | None, list[dict[str, str]]]:
    """A plan, if it is one, and everything that is wrong with it."""
    try:
        return load_plan(given, source).plan, []
    except InvalidPlan as error:
        return None, problems_data(error)


def problems_data(error: InvalidPlan) -> list[dict[str, str]]:
    """The problems of a plan as JSON values."""
    return [{"code": str(code), "path": path, "message": message} for code, path, message in error.problems]


def run_engine(engine: PlanEngine, work: Callable[[PlanEngine], Awaitable[T]]) -> T:
    """Open an engine, do something with it and close it."""

    async def opened() -> T:
        async with engine:
            return await work(engine)

    try:
        return trio.run(opened)
    except BaseExceptionGroup as group:
        # Ctrl-C arrives in whichever task runs, so that nurseries wrap it.
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        raise


def _split(given: str) -> tuple[str, str | None]:
    file, colon, name = given.rpartition(":")
    if colon and file.endswith(".py"):
        return file, name
    if given.endswith(".py"):
        raise ConfigError(f"a plan in Python is given as FILE.py:FUNCTION, not {given!r}")
    return given, None
