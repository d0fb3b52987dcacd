"""What a plan may ask of the engine beyond the format, and the check of what it says to each capability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .problems import Code, Problems, shown, under

if TYPE_CHECKING:
    from collections.abc import Mapping

ON_ERROR: Final = "seedbed.on_error.v1"
ON_ERROR_POLICIES: Final = ("fail", "empty", "default")

SUPPORTED: Final = (ON_ERROR,)


def check_capabilities(value: object, path: str, problems: Problems) -> tuple[str, ...]:
    """The capabilities that a plan requires, each of which must be supported."""
    names: list[str] = []
    for index, item in enumerate(problems.items(value, path) or []):
        name = problems.text(item, f"{path}[{index}]")
        if name is None:
            continue
        names.append(name)
        if name not in SUPPORTED:
            hint = problems.hint(name, SUPPORTED)
            problems.add(
                Code.UNSUPPORTED_CAPABILITY, f"{path}[{index}]", f"the engine does not support {shown(name)}{hint}"
            )
    if names != sorted(set(names)):
        problems.add(Code.CAPABILITIES_NOT_SORTED, path, "expected names that are sorted and each there once")
    return tuple(names)


def check_extensions(
    value: object, path: str, capabilities: tuple[str, ...], problems: Problems, *, of_node: bool
) -> Mapping[str, Any]:
    """The extensions of a plan or of a node; each belongs to a capability that the plan requires."""
    extensions: dict[str, Any] = {}
    for name, payload in (problems.entries(value, path) or {}).items():
        at = under(path, name)
        if name not in capabilities:
            message = f"expected {shown(name)} to be in capabilities_required"
            problems.add(Code.CAPABILITY_NOT_REQUIRED, at, message)
        # What an unsupported capability is told cannot be judged; that it is unsupported was said where it is required.
        if name == ON_ERROR:
            extensions[name] = _on_error(payload, at, problems, of_node=of_node)
    return extensions


def _on_error(payload: object, path: str, problems: Problems, *, of_node: bool) -> Mapping[str, Any]:
    if not of_node:
        problems.add(Code.INVALID_VALUE, path, f"{ON_ERROR} is said of a node, not of the plan")
        return {}
    fields = problems.fields(payload, path, required=["policy"]) or {}
    policy = problems.choice(fields["policy"], f"{path}.policy", ON_ERROR_POLICIES) if "policy" in fields else None
    return {"policy": policy}
