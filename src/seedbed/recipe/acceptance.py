"""Which rows of a recipe count: its predicate, and its rules against duplicates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from .. import checks
from ..columns.fields import Shapes, field_problems
from ..columns.templates import Condition, compile_condition
from ..errors import ConfigError, Permanent
from ..graph import nearest
from ..models.base import NOT_IN_FINGERPRINT

ON_EXHAUSTED = ("error", "partial")
# Candidates for each requested row, unless `max_candidates` says otherwise.
CANDIDATES_PER_ROW = 20


@attrs.frozen(kw_only=True)
class NearDuplicates:
    """A rule against rows whose text, or whose vector, is almost that of an earlier row.

    A text is compared by the share of its sequences of five characters that another text has too (their Jaccard
    similarity, which MinHash estimates to about 0.03), whatever its case and white space. The vectors of an embedding
    column are compared by their cosine.
    """

    of: str = attrs.field(validator=checks.text)
    """The column that is compared: one of texts, or an embedding column."""
    threshold: float = attrs.field(default=0.85, validator=checks.above(0, at_most=1))
    """The similarity from which on a row is a near duplicate of an earlier one."""


@attrs.frozen(kw_only=True)
class Predicate:
    """What decides whether a candidate is accepted. `name` is how drops and messages refer to it."""

    name: str
    requires: tuple[str, ...]
    evaluate: Callable[[Mapping[str, Any]], Any]

    def decide(self, values: Mapping[str, Any]) -> bool:
        """True if a candidate is accepted; null is not. Raises `Permanent`."""
        found = self.evaluate(values)
        if found is not None and not isinstance(found, bool):
            shown = repr(found) if len(repr(found)) <= 80 else f"{repr(found)[:80]}…"
            raise Permanent(f"accept: {self.name!r} must be true, false or null, not {shown}")
        return bool(found)


def _near_duplicates(value: Any) -> Any:
    """The converter of `near_duplicates`: a rule, or a mapping of its fields."""
    if value is None or isinstance(value, NearDuplicates):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"near_duplicates must be a mapping such as {{of: column, threshold: 0.85}}, not {value!r}")
    known = [field.name for field in attrs.fields(NearDuplicates)]
    if unknown := [f"unknown field {name!r}{nearest(str(name), known)}" for name in value if name not in known]:
        raise ConfigError(f"near_duplicates: {'; '.join(unknown)}")
    if "of" not in value:
        raise ConfigError("near_duplicates: 'of', the name of the column that is compared, is missing")
    try:
        return NearDuplicates(**value)
    except ConfigError as error:
        raise ConfigError(f"near_duplicates: {error}") from None


@checks.field_check
def _check_accept(_: object, __: object, value: Any) -> None:
    """The name of a column, or an expression."""
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise ConfigError(f"accept must be the name of a column or an expression, not {value!r}")


@attrs.frozen(kw_only=True)
class RowRules:
    """Which rows count. With any of `accept`, `unique` and `near_duplicates` rows are candidates first."""

    accept: str | None = attrs.field(default=None, validator=_check_accept)
    """A column of true and false, or an expression over the row: `rows` counts only rows of which it is true."""
    max_candidates: int | None = attrs.field(
        default=None, validator=checks.optional(checks.whole(1)), metadata=NOT_IN_FINGERPRINT
    )
    """How many candidates there may be; by default 20 for each row."""
    on_exhausted: str = attrs.field(
        default="error", validator=checks.one_of(*ON_EXHAUSTED), metadata=NOT_IN_FINGERPRINT
    )
    """What happens when `max_candidates` or a usage budget ends before there are enough rows: `error`, or `partial`,
    which finishes the dataset with fewer rows."""
    unique: tuple[str, ...] = attrs.field(default=(), converter=checks.as_names, validator=checks.names)
    """Columns whose values, taken together, no two rows have in common: the first row that has them counts."""
    near_duplicates: NearDuplicates | None = attrs.field(default=None, converter=_near_duplicates)
    """A column (`of`) of texts or vectors of which no two rows are more alike than `threshold` (0.85)."""

    @property
    def limits_rows(self) -> bool:
        """True if not every row counts."""
        return self.accept is not None or self.compares_rows

    @property
    def compares_rows(self) -> bool:
        """True if rows are compared with earlier ones."""
        return bool(self.unique) or self.near_duplicates is not None

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns that are compared."""
        near = () if self.near_duplicates is None else (self.near_duplicates.of,)
        return tuple(dict.fromkeys((*self.unique, *near)))

    def candidates(self, rows: int) -> int:
        """How many candidates there may be for so many rows."""
        return CANDIDATES_PER_ROW * rows if self.max_candidates is None else self.max_candidates


@attrs.frozen(kw_only=True)
class Acceptance:
    """The rules of a recipe, with its compiled `accept`."""

    rules: RowRules
    predicate: Predicate | None = None


def make_acceptance(rules: RowRules, outputs: Sequence[str]) -> Acceptance | None:
    """Compile the rules of a recipe with these columns; None if every row counts. Raises `ConfigError`."""
    if not rules.limits_rows:
        return None
    predicate = None if rules.accept is None else make_predicate(rules.accept, outputs)
    return Acceptance(rules=rules, predicate=predicate)


def rule_problems(rules: RowRules, outputs: Sequence[str], shapes: Shapes) -> list[str]:
    """The problems of rules where these are the columns; each starts with the name of its field."""
    problems: list[str] = []
    if rules.accept is not None:
        try:
            needed = make_predicate(rules.accept, outputs).requires
        except ConfigError as error:
            problems.append(str(error))
        else:
            if not needed:
                problems.append(f"accept: {rules.accept!r} names no column, so that it is the same for every row")
            if rules.accept not in outputs:
                problems += field_problems(accept_condition(rules.accept), shapes, where="accept")
            problems += [
                f"accept: unknown column {name!r}{nearest(name, outputs)}" for name in needed if name not in outputs
            ]
    near = () if rules.near_duplicates is None else (rules.near_duplicates.of,)
    for field, names in (("unique", rules.unique), ("near_duplicates", near)):
        problems += [
            f"{field}: unknown column {name!r}{nearest(name, outputs)}" for name in names if name not in outputs
        ]
    given = [name for name in ("max_candidates", "on_exhausted") if getattr(rules, name) != getattr(RowRules(), name)]
    if given and not rules.limits_rows:
        problems.append(f"{given[0]} applies to accept, unique and near_duplicates, and the recipe has none of them")
    return problems


def make_predicate(accept: str, outputs: Sequence[str]) -> Predicate:
    """Compile `accept`: the name of a column, or an expression over the row. Raises `ConfigError`."""
    if accept in outputs:
        return Predicate(name=accept, requires=(accept,), evaluate=lambda values: values[accept])
    condition = accept_condition(accept)
    return Predicate(name=accept, requires=condition.requires, evaluate=condition.evaluate)


def accept_condition(accept: str) -> Condition:
    """`accept` as an expression. Raises `ConfigError`."""
    return compile_condition(accept, where="accept")
