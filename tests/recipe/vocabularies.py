"""A vocabulary with every column and processor type that the package has, and one kind of model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from seedbed.engine.config import RunConfig
from seedbed.errors import ConfigError
from seedbed.generators.registry import vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seedbed.recipe.load import Vocabulary


@attrs.frozen(kw_only=True)
class Toy:
    """A model that is never called."""

    type: ClassVar[str] = "toy"

    model: str
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    max_parallel_requests: int = 4
    api_key_env: str | None = None
    missing: str | None = None

    def __attrs_post_init__(self) -> None:
        """Refuse a ceiling that lets nothing through."""
        if self.max_parallel_requests < 1:
            raise ConfigError(f"max_parallel_requests must be at least 1, not {self.max_parallel_requests}")

    def key(self, domain: str) -> str:
        return f"toy/{self.model}/{domain}"

    def problems(self) -> list[str]:
        return [] if self.missing is None else [f"{self.missing} is not in the environment"]


def known(*, allow_code: bool = False) -> Vocabulary:
    """Give what recipes of these tests may be written with."""
    return vocabulary(models={"toy": Toy}, run=RunConfig, allow_code=allow_code)
