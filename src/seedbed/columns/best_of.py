"""The best of several answers, and pairs of a better and a worse one, by the scores that a judge gave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from .. import checks
from ..checks import is_number
from ..errors import CellError, Permanent
from ..graph import Kind
from ..store.values import python_rows
from .base import Column
from .spec import ColumnSpec
from .templates import compile_condition

if TYPE_CHECKING:
    import polars as pl

    from .fields import Text
    from .spec import Environment


@attrs.frozen(kw_only=True)
class _ScoredSpec(ColumnSpec):
    """The fields of columns that choose among the items of a list by their scores."""

    of: str = attrs.field(validator=checks.name)
    """The column that holds the list, such as the answers of a column with `n`."""
    by: str = attrs.field(validator=checks.name)
    """The column that holds a score for each item, or the path to it in a list of verdicts: `verdicts.helpful`."""

    def texts(self) -> dict[str, Text]:
        root, *fields = self.by.split(".")
        if not fields or not all(part.isidentifier() for part in (root, *fields)):
            return super().texts()
        # As a template would name the field of an item.
        path = compile_condition(".".join((f"{root}[0]", *fields)), where=f"column {self.name!r}, by")
        return {**super().texts(), "by": path}

    def to_column(self, environment: Environment) -> Column:  # noqa: ARG002
        root = self.by.partition(".")[0]

        def fill(frame: pl.DataFrame) -> list[Any]:
            return [self._cell(row[self.of], row[root]) for row in python_rows(frame)]

        return Column(self.name, fill, kind=Kind.FULL_COLUMN, requires=(self.of, root), schemas=self._schemas())

    def _schemas(self) -> dict[str, Mapping[str, Any]]:
        return {}

    def _cell(self, items: Any, verdicts: Any) -> Any:
        try:
            ranked = self._ranked(items, verdicts)
        except CellError as error:
            return error  # only that row fails
        return None if not ranked else self._choose(ranked)

    def _ranked(self, items: Any, verdicts: Any) -> list[tuple[float, Any]]:
        """The items that have a score, best first; of equal ones the earlier first."""
        if items is None or verdicts is None:
            return []
        where = f"column {self.name!r}"
        if not isinstance(items, list) or not isinstance(verdicts, list) or len(items) != len(verdicts):
            raise Permanent(
                f"{where}: {self.of!r} and {self.by!r} must be lists of one length, not {_lengths(items, verdicts)}"
            )
        scored: list[tuple[float, Any]] = []
        for item, verdict in zip(items, verdicts, strict=True):
            score = _at(verdict, self.by.split(".")[1:])
            if score is not None and not is_number(score):
                raise Permanent(f"{where}: {self.by!r} is no number but {score!r}")
            if score is not None and item is not None:
                scored.append((score, item))
        return sorted(scored, key=lambda each: -each[0])

    def _choose(self, ranked: Sequence[tuple[float, Any]]) -> Any:
        raise NotImplementedError


@attrs.frozen(kw_only=True)
class BestOf(_ScoredSpec):
    """The item of a list with the highest score; of equal ones the first. Null if no item has a score."""

    type: ClassVar[str] = "best-of"

    def _choose(self, ranked: Sequence[tuple[float, Any]]) -> Any:
        return ranked[0][1]


@attrs.frozen(kw_only=True)
class PreferencePair(_ScoredSpec):
    """The item of a list with the highest score and the one with the lowest: `chosen`, `rejected` and their `margin`.

    Null if there are no two items with scores that differ by at least `min_margin`.
    """

    type: ClassVar[str] = "preference-pair"

    min_margin: float = attrs.field(default=1, validator=checks.above(0))
    """By how much the scores differ at least: pairs without a clear winner teach noise."""

    def _schemas(self) -> dict[str, Mapping[str, Any]]:
        return {
            self.name: {"type": "object", "properties": {"chosen": {}, "rejected": {}, "margin": {"type": "number"}}}
        }

    def _choose(self, ranked: Sequence[tuple[float, Any]]) -> Any:
        (best, chosen), (worst, rejected) = ranked[0], ranked[-1]
        margin = float(best - worst)
        return {"chosen": chosen, "rejected": rejected, "margin": margin} if margin >= self.min_margin else None


def _at(value: Any, path: Sequence[str]) -> Any:
    for field in path:
        value = value.get(field) if isinstance(value, Mapping) else None
    return value


def _lengths(*values: Any) -> str:
    return " and ".join(str(len(each)) if isinstance(each, list) else repr(each)[:50] for each in values)
