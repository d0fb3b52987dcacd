"""`seedbed plan list`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import Machine  # noqa: TC001  cyclopts reads the annotations
from .plan_options import PlanSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..plans.model import Plan, Registries
    from ..plans.opspec import OpSpec, ParamSpec


def list_plans(directory: Path = Path(), /, *, source: PlanSource | None = None, machine: Machine | None = None) -> int:
    """List the plans of a directory, the ops that plans may use, and the registries.

    JSON files that have nodes are plans. Python files are run only with --allow-code.

    Parameters
    ----------
    directory
        Where to look for plans; folders in it are left out.

    """
    from ..errors import ConfigError
    from ..plans.opspec import default_ops
    from . import output
    from .plan_files import read_registries

    source = source or PlanSource()
    if not directory.is_dir():
        raise ConfigError(f"{str(directory)!r} is not a directory")
    registries = read_registries(source)
    plans = [found for path in sorted(directory.iterdir()) for found in _plans(path, source)]
    # After the plans: a file with plans may have registered ops.
    found = {
        "plans": plans,
        "ops": [_op(op, registries) for op in sorted(default_ops(), key=lambda op: op.name)],
        "registries": _registries(registries),
    }
    if machine is not None and machine.json:
        output.print_json(found)
    else:
        _tell(found)
    return 0


def _plans(path: Path, source: PlanSource) -> list[dict[str, Any]]:
    if path.suffix == ".json" and path.is_file():
        return [_facts(str(path), lambda: _read(path, source))] if _is_plan(path) else []
    if path.suffix == ".py" and source.allow_code:
        from .plan_files import authored_plans, compile_plan

        try:
            authored = authored_plans(path)
        except Exception as error:  # noqa: BLE001  a file is anybody's code, and one that raises must not hide the others
            return [_raised(str(path), error)]
        return [
            _facts(f"{path}:{name}", lambda each=each: compile_plan(each, source).plan)  # type: ignore[misc]
            for name, each in authored.items()
        ]
    return []


def _read(path: Path, source: PlanSource) -> Plan:
    from .plan_files import load_plan

    return load_plan(str(path), source).plan


def _is_plan(path: Path) -> bool:
    import json

    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "nodes" in document


def _facts(place: str, load: Callable[[], Plan]) -> dict[str, Any]:
    from ..errors import InvalidPlan
    from .plan_files import problems_data

    try:
        plan = load()
    except InvalidPlan as error:
        return _broken(place, problems_data(error))
    except Exception as error:  # noqa: BLE001  a plan function is anybody's code
        return _raised(place, error)
    return {
        "plan": place,
        "name": plan.name,
        "nodes": len(plan.nodes),
        "outputs": list(plan.outputs),
        "ops": sorted({node.op for node in plan.nodes}),
        "problems": [],
    }


def _broken(place: str, problems: list[dict[str, str]]) -> dict[str, Any]:
    return {"plan": place, "name": None, "nodes": None, "outputs": [], "ops": [], "problems": problems}


def _raised(place: str, error: Exception) -> dict[str, Any]:
    return _broken(place, [{"code": "RAISED", "path": "$", "message": f"{type(error).__name__}: {error}"}])


def _op(op: OpSpec, registries: Registries) -> dict[str, Any]:
    few, many = op.inputs
    own = {name: spec for name, spec in op.params.items() if name != "trace"}
    return {
        "name": op.name,
        "aliases": list(op.aliases),
        "inputs": str(few) if few == many else f"{few} to {many}",
        "params": {name: _param(spec) for name, spec in own.items()},
        "gives": op.gives.value,
        "writes": [
            *(registries.keys[key].name if key in registries.keys else str(key) for key in sorted(op.writes)),
            *(name for name, spec in own.items() if spec.writes),
        ],
        "runs": "loop" if op.run_async is not None else "inline" if op.run_inline else "cpu",
    }


def _param(spec: ParamSpec) -> str:
    words = [spec.endpoint_kind or "", spec.kind.value] if spec.endpoint_kind else [spec.kind.value]
    if spec.choices:
        words = [" or ".join(spec.choices)]
    if spec.minimum is not None and spec.maximum is not None:
        words.append(f"{spec.minimum:,} to {spec.maximum:,}")
    elif spec.minimum is not None:
        words.append(f"at least {spec.minimum:,}")
    if not spec.required:
        import json

        words.append(f"(default {json.dumps(spec.default)})")
    return " ".join(words)


def _registries(registries: Registries) -> dict[str, list[dict[str, Any]]]:
    import attrs

    def data(value: Any) -> dict[str, Any]:
        found = attrs.asdict(value)
        return {**found, "type": value.type.value} if "type" in found else found

    return {
        "keys": [data(each) for each in registries.keys.values()],
        "params": [data(each) for each in registries.params.values()],
        "endpoints": [data(each) for each in registries.endpoints.values()],
    }


def _tell(found: dict[str, Any]) -> None:
    from . import output

    if found["plans"]:
        rows = [
            (each["plan"], each["name"] or "–", each["nodes"], ", ".join(each["outputs"]), _state(each["problems"]))
            for each in found["plans"]
        ]
        output.print_table(("plan", "name", "nodes", "outputs", ""), rows, title="plans")
    else:
        output.console(error=True).print("no plans here")
    ops = [
        (
            *(each["name"], each["inputs"], "; ".join(f"{name}: {spec}" for name, spec in each["params"].items())),
            *(each["gives"], ", ".join(each["writes"]), each["runs"]),
        )
        for each in found["ops"]
    ]
    output.print_table(("op", "inputs", "params", "rows", "writes", "runs"), ops, title="ops")
    keys = [
        (
            *(str(each["id"]), each["name"], each["type"], "yes" if each["nullable"] else "no"),
            *("–" if each["default"] is None else str(each["default"]), "yes" if each["writable"] else "no"),
        )
        for each in found["registries"]["keys"]
    ]
    output.print_table(("id", "name", "type", "nullable", "default", "writable"), keys, title="keys")
    params = [
        (str(each["id"]), each["name"], each["type"], "yes" if each["nullable"] else "no")
        for each in found["registries"]["params"]
    ]
    output.print_table(("id", "name", "type", "nullable"), params, title="params")
    endpoints = [
        (each["id"], each["name"], each["kind"], each["host"], str(each["port"]), *each["policy"].values())
        for each in found["registries"]["endpoints"]
    ]
    heads = ("id", "name", "kind", "host", "port", "max inflight", "connect timeout ms", "request timeout ms")
    output.print_table(heads, endpoints, title="endpoints")


def _state(problems: list[dict[str, str]]) -> str:
    if not problems:
        return "valid"
    if problems[0]["code"] == "RAISED":
        return f"RAISED: {problems[0]['message']}"
    return f"INVALID_PLAN, {len(problems)} problem{'s' if len(problems) != 1 else ''}: {problems[0]['message']}"
