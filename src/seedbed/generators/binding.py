"""The model of a column: as the engine must know it, and as a cell uses it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..models.distributions import check_distribution
from ..models.model import Model

if TYPE_CHECKING:
    from ..models.base import ModelSpec
    from ..models.dedupe import Dedupe
    from ..recipe.spec import ColumnSpec
    from .context import CellContext
    from .registry import Environment


def as_text(value: Any) -> str:
    """A cell's value as a prompt shows it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def alias_of(spec: ColumnSpec, environment: Environment) -> ModelSpec:
    """The model of a column's alias; the column's inference parameters must be such that they can be drawn."""
    try:
        (alias,) = spec.aliases()
        found = environment.model(alias)
        for name, value in getattr(spec, "parameters", {}).items():
            check_distribution(f"parameters.{name}", value)
    except ConfigError as error:
        raise ConfigError(f"column {spec.name!r}: {error}") from None
    return found


def model_options(spec: ColumnSpec, environment: Environment, domain: str) -> dict[str, Any]:
    """What the engine must know of a column's calls: the throttle key, and the alias' own cap where others share it."""
    model = alias_of(spec, environment)
    (alias,) = spec.aliases()
    key = model.key(domain)
    options: dict[str, Any] = {"key": key}
    caps = {other.max_parallel_requests for other in environment.models.values() if other.key(domain) == key}
    if len(caps) > 1:
        # The throttle's ceiling is the largest of them.
        options |= {"lane": f"{alias} {domain}", "lane_limit": model.max_parallel_requests}
    return options


def bind_model(spec: ColumnSpec, environment: Environment, context: CellContext, dedupe: Dedupe | None = None) -> Model:
    """The column's model, for one cell whose function awaits nothing after a chat that failed."""
    (alias,) = spec.aliases()
    return Model(
        alias,
        environment.model(alias),
        environment.client(alias),
        context,
        seed=environment.seed,
        dedupe=dedupe,
        scope=getattr(context, "scope", None),  # no part of what users' own functions may ask of a context
    )
