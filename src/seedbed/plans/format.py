"""The way in for plans that are JSON documents."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..errors import InvalidPlan
from .documents import read_document
from .opspec import default_ops
from .problems import Problems
from .registries import default_registries
from .validate import validate_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .documents import Source
    from .model import Plan, Registries
    from .opspec import OpRegistry


def parse_plan(data: Source, registries: Registries | None = None, ops: OpRegistry | None = None) -> Plan:
    """Read a plan from a mapping, JSON text, its bytes or the path of a file.

    Raises one `InvalidPlan` with everything that is wrong. A plan that passes can only fail for reasons of data,
    endpoints and time.
    """
    problems = Problems()
    document = read_document(data, problems)
    plan = None
    if not problems.found:
        plan = validate_plan(
            document,
            default_registries() if registries is None else registries,
            default_ops() if ops is None else ops,
            problems,
        )
    if plan is None or problems.found:
        raise InvalidPlan(problems.found)
    return plan


def plan_text(document: Mapping[str, Any]) -> str:
    """A plan's document as JSON text, a line for each node and each tree: the same text for the same plan."""
    lines = []
    for name, value in document.items():
        if value and isinstance(value, list) and name == "nodes":
            items = ",\n".join(f"  {_compact(item)}" for item in value)
            lines.append(f' "{name}": [\n{items}]')
        elif value and name in ("expr_table", "pred_table"):
            items = ",\n".join(f"  {json.dumps(key)}: {_compact(tree)}" for key, tree in value.items())
            lines.append(f' "{name}": {{\n{items}}}')
        else:
            lines.append(f" {json.dumps(name)}: {_compact(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
