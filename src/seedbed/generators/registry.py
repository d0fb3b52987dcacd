"""From a recipe's spec to the engine's column: one maker per spec class, ours and those of plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

if TYPE_CHECKING:
    from ..models.base import ModelClient, ModelSpec
    from ..recipe.spec import ColumnSpec
    from .column import Column


@attrs.frozen(kw_only=True)
class Environment:
    """What a maker may need besides the spec.

    `client` gives the open client of an alias while a build runs (not before). `base` is where relative paths of a
    recipe file begin; `artifacts` is the dataset's directory, where files such as images go (None in a preview: then
    bytes stay in the cell). `allow_code` is whether the user lets the recipe import code.
    """

    seed: int = 0
    models: Mapping[str, ModelSpec] = attrs.field(factory=dict)
    client: Callable[[str], ModelClient]
    base: Path = Path()
    artifacts: Path | None = None
    allow_code: bool = False


Maker = Callable[[Any, Environment], "Column"]
M = TypeVar("M", bound=Maker)

_makers: dict[type, Maker] = {}
_types: dict[str, type] = {}


def maker(spec: type[ColumnSpec]) -> Callable[[M], M]:
    """Register the function that makes a column of a spec: `make(spec, environment) -> Column`."""

    def register(make: M) -> M:
        _makers[spec] = make
        _types[spec.type] = spec
        return make

    return register


def make_column(spec: ColumnSpec, environment: Environment) -> Column:
    """The engine's column for a spec. Raises `ConfigError` (or `DatasetGenerationError`) for a spec that is wrong."""
    return _makers[type(spec)](spec, environment)


def spec_types() -> Mapping[str, type]:
    """The spec class of each type name that a recipe file may use."""
    return dict(_types)
