"""Functions over whole frames at three moments of a run."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl


class Stage(enum.Enum):
    """When a processor runs."""

    PRE_BATCH = "pre_batch"  # once a row group's columns from scratch are there
    POST_BATCH = "post_batch"  # once all its columns are there, before it is written
    AFTER_GENERATION = "after_generation"  # once, over the whole dataset


def _stage(value: Stage | str) -> Stage:
    try:
        return Stage(value)
    except ValueError:
        allowed = ", ".join(repr(stage.value) for stage in Stage)
        raise ConfigError(f"stage must be one of {allowed}, not {value!r}") from None


def _apply(_: object, __: object, value: Any) -> None:
    if not callable(value):
        raise ConfigError(f"a processor's apply must be a function of a frame, not {value!r}")


@attrs.frozen(kw_only=True)
class Processor:
    """A synchronous function from frame to frame, run off the loop.

    Pre-batch: gets the columns made from scratch, may add, remove and change rows and must keep the columns; if it
    raises, that row group is skipped. Post-batch: gets all columns and may change rows and columns; if it raises, the
    run stops. After generation: gets a `polars.LazyFrame` of the whole dataset and returns a frame, lazy or not, which
    is written beside the parts.
    """

    stage: Stage = attrs.field(converter=_stage)
    apply: Callable[[Any], pl.DataFrame | pl.LazyFrame] = attrs.field(validator=_apply)
    name: str = ""

    @property
    def label(self) -> str:
        """Its name, or its function's."""
        return self.name or getattr(self.apply, "__name__", type(self.apply).__name__)
