"""How large and how deep a document may be that a user, or a stranger, hands in: recipes and plans alike."""

from __future__ import annotations

import re
import tomllib
from typing import Any

# What is nested deeper is refused: most code follows a tree by recursion, and Python's stack is not endless.
MAX_DEPTH = 100

_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_DOTTED = re.compile(rf"^[ \t\[]*+(?:{_PART}){{{MAX_DEPTH}}}", re.MULTILINE)


def parse_toml(text: str) -> dict[str, Any]:
    """As `tomllib.loads`, with `RecursionError` for keys of too many parts, whose cost would be quadratic."""
    if _DOTTED.search(text):
        raise RecursionError(f"a key of more than {MAX_DEPTH} parts")
    return tomllib.loads(text)
