"""Recipes that several tests simulate; no server listens at their addresses."""

from __future__ import annotations

from typing import Any

import seedbed as sb

NOWHERE = "http://127.0.0.1:9/v1"


def model(name: str = "small", **options: Any) -> sb.OpenAICompatible:
    """A model that would fail if it were called; without its key it could not even be."""
    options = {"max_parallel_requests": 4, "api_key_env": "SEEDBED_TEST_NO_SUCH_KEY", **options}
    return sb.OpenAICompatible(base_url=NOWHERE, model=name, **options)


def chain(*names: str, **options: Any) -> sb.Recipe:
    """A column of topics, and texts of one model that each need the one before."""
    columns: list[Any] = [sb.Category("topic", values=["tea", "bread", "rain"])]
    for before, name in zip(("topic", *names), names, strict=False):
        columns.append(sb.LLMText(name, model="writer", prompt=f"About {{{{ {before} }}}}."))
    return sb.Recipe(models={"writer": model(**options)}, columns=columns)
