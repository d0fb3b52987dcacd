"""From text, bytes or a file to JSON values, with nothing lost on the way: repeated fields are remembered."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..graph.limits import parse_toml
from .problems import Code

if TYPE_CHECKING:
    from .problems import Problems

# What documents can be read from: values already parsed, JSON text, its bytes, or the path of a file.
Source = Mapping[str, Any] | str | bytes | os.PathLike[str]


class _Object(dict[str, Any]):
    """A JSON object that knows which of its fields were given more than once."""

    repeated: tuple[str, ...] = ()


def read_document(source: Source, problems: Problems) -> Any:
    """The JSON value of a source; None, with a problem said, where there is none to be had.

    A file that cannot be opened is the caller's `OSError`.
    """
    toml = False
    if isinstance(source, os.PathLike):
        path = Path(source)
        toml = path.suffix == ".toml"
        source = path.read_bytes()
    if isinstance(source, bytes):
        try:
            source = source.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            problems.add(
                Code.INVALID_JSON, "$", f"expected UTF-8, found {error.object[error.start]:#04x} at byte {error.start}"
            )
            return None
    if not isinstance(source, str):
        return source
    try:
        if toml:
            return parse_toml(source)
        return json.loads(source, object_pairs_hook=_object, parse_constant=_no_constant)
    except RecursionError:
        problems.add(Code.TOO_DEEP, "$", "expected a document that is not nested hundreds of levels deep")
    except ValueError as error:  # both decoders' errors, and integers of thousands of digits
        problems.add(Code.INVALID_JSON, "$", f"expected {'TOML' if toml else 'JSON'}: {error}")
    return None


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) != len(pairs):
        found.repeated = tuple(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
