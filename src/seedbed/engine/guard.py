"""Check whether a directory may be resumed: which fields may have changed since the last run, and which may not.

docs/reference/resume.md has the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import ManifestError
from ..recipe.code_digest import same_code
from .fingerprint import CODE, DATA

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..store.records import Header

# Characters that are shown of a long value, and how many of them stand before the first that differs.
_SHOWN = 80
_BEFORE = 30
_NOTHING = object()


def check_resumable(
    header: Header, fingerprint: Mapping[str, Any], *, outputs: Sequence[str], rows: int, accept_changes: bool = False
) -> Header:
    """The header of a directory that this build may go on with, as it is to be from now on; `ManifestError` if not.

    It is another one if there are more rows, or if changes of code or data were accepted.
    """
    there, here = dict(header.fingerprint), json.loads(json.dumps(fingerprint))
    elsewhere = [*_code_differences(there.pop(CODE, {}), here.pop(CODE, {}))]
    elsewhere += _differences("", there.pop(DATA, {}), here.pop(DATA, {}))
    found = [*_differences("", there, here)]
    if not found:  # then it is code or data that makes other columns
        found += _differences("outputs", list(header.columns), list(outputs))
    if rows < header.rows:
        found.append(f"rows: {header.rows} there, {rows} here; a dataset can grow, but rows are not taken away")
    if found or (elsewhere and not accept_changes):
        lines = "\n".join(f"  - {each}" for each in (*found, *elsewhere))
        hint = "" if found else "\nto go on all the same and keep what is there: --accept-changes (accept_changes=True)"
        raise ManifestError(f"the directory belongs to another build and cannot be resumed by this one:\n{lines}{hint}")
    if rows > header.rows:
        layout = header.layout.grown(rows)
        header = attrs.evolve(header, rows=layout.rows, segments=layout.segments)
    return attrs.evolve(header, fingerprint=fingerprint) if elsewhere else header


def _code_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    # What is code on one side only is said by the fields of the column itself.
    for place in here:
        if place in there and not same_code(there[place], here[place]):
            yield f"{place}: its code was edited: {_code(there[place])} there, {_code(here[place])} here"


def _code(told: Mapping[str, str]) -> str:
    return f"{told['name']} ({told.get('digest', 'not in Python')})"


def _differences(path: str, there: Any, here: Any) -> Iterator[str]:
    there, here = _by_name(there), _by_name(here)
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        if there.keys() == here.keys() and list(there) != list(here) and path == "columns":
            yield f"{path}: in the order {', '.join(there)} there, {', '.join(here)} here"
        for name in dict.fromkeys((*there, *here)):
            inner = f"{path}.{name}" if path else str(name)
            yield from _differences(inner, there.get(name, _NOTHING), here.get(name, _NOTHING))
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for index, (old, new) in enumerate(zip(there, here, strict=True)):
            yield from _differences(f"{path}[{index}]", old, new)
    elif there != here:
        old, new = _shown(there, here)
        yield f"{path}: {old} there, {new} here"


def _by_name(value: Any) -> Any:
    """A list of things that have names, each its own, as a mapping; anything else as it is."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) and "name" in each for each in value):
        return value
    named = {each["name"]: each for each in value}
    return named if value and len(named) == len(value) else value


def _shown(there: Any, here: Any) -> tuple[str, str]:
    """Both sides; long ones only around the first character that differs."""
    old, new = (each if isinstance(each, str) else repr(each) for each in (there, here))
    pairs = enumerate(zip(old, new, strict=False))
    differs = next((at for at, (one, other) in pairs if one != other), min(len(old), len(new)))
    is_long = max(len(old), len(new)) > _SHOWN and _NOTHING not in (there, here)
    start = max(0, differs - _BEFORE) if is_long else 0
    return _excerpt(there, old, start), _excerpt(here, new, start)


def _excerpt(value: Any, text: str, start: int) -> str:
    if value is _NOTHING:
        return "nothing"
    shown = "…" * (start > 0) + text[start : start + _SHOWN] + "…" * (len(text) > start + _SHOWN)
    return repr(shown) if isinstance(value, str) else shown
