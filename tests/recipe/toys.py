"""A model that is never called, and the loader of recipe files that may use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

import attrs

from seedbed import checks
from seedbed.columns.spec import Grants
from seedbed.engine.config import RunConfig
from seedbed.models import MODEL_TYPES
from seedbed.recipe.file import load_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from seedbed.recipe.recipe import Recipe


@attrs.frozen(kw_only=True)
class Toy:
    """A model that is never called."""

    type: ClassVar[str] = "toy"

    model: str
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    max_parallel_requests: int = attrs.field(default=4, validator=checks.whole(1))
    api_key_env: str | None = None
    missing: str | None = None

    def key(self, domain: str) -> str:
        return f"toy/{self.model}/{domain}"

    def problems(self) -> list[str]:
        return [] if self.missing is None else [f"{self.missing} is not in the environment"]


def load(path: Path, *, allow_code: bool = False) -> Recipe:
    """Load a recipe file whose models are toys."""
    with patch.dict(MODEL_TYPES, {"toy": Toy}):
        return load_recipe(path, grants=Grants(code=allow_code), run_options=RunConfig)
