"""Validators for the attrs fields that users set, and limits of documents.

A validator raises a `ConfigError` with the name of the field, what is expected and the value that was found. Booleans
are not numbers here, and NaN and infinity are never accepted.
"""

from __future__ import annotations

import math
import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, SupportsIndex, TypeAlias, TypeGuard

import attrs

from .errors import ConfigError

Validator: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", Any], None]
RowCount: TypeAlias = SupportsIndex | float | str
# One for the only stage that has a number of rows, or one for each such stage; None for those of the recipe.
RowCounts: TypeAlias = RowCount | Mapping[str, RowCount] | None
"""A number of rows as a user gives it: 1000, 1e6, "100k" or "1.5M"."""

_UNITS = {"k": 1_000, "m": 1_000_000}


def optional(validator: Validator) -> Validator:
    """A validator that also accepts None."""
    return attrs.validators.optional(validator)


def is_whole(value: object) -> TypeGuard[int]:
    """True for an int that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """True for a finite int or float that is not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def row_count(value: RowCount, *, where: str = "rows must be") -> int:
    """Convert a number of rows, 0 or more. Raises a `ConfigError` that begins with `where`."""
    try:
        if isinstance(value, str):
            text = value.strip()
            unit = _UNITS.get(text[-1:].lower(), 1)
            number = Decimal(text[:-1] if unit > 1 else text) * unit
        else:
            number = Decimal(value if isinstance(value, float) else operator.index(value))
        # The exponent is limited before the number is written out, which would take forever for 1e999999999.
        if not isinstance(value, bool) and number.adjusted() <= 18 and number == int(number) >= 0:
            return int(number)
    except (ArithmeticError, ValueError, TypeError):
        pass
    raise ConfigError(f"{where} a number of rows, 0 or more, such as 1000, 1e6 or 100k, not {value!r}")


def row_counts(value: RowCounts) -> int | dict[str, int] | None:
    """Convert the numbers of rows of a recipe's stages. Raises `ConfigError`."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {str(name): row_count(each, where=f"rows of {name!r} must be") for name, each in value.items()}
    return row_count(value)


@attrs.frozen(eq=False)
class Expect:
    """A validator that raises "NAME must be EXPECTED, not VALUE" unless `accepts(value)`.

    The message starts with the `error_prefix` of an instance that has one, as the specs of columns have. The reference
    shows `expected` as the type of a field.
    """

    expected: str
    accepts: Callable[[Any], bool]

    def __call__(self, instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        """Raise `ConfigError` if the value is not accepted."""
        if not self.accepts(value):
            prefix = getattr(instance, "error_prefix", "")
            name = attribute.alias or attribute.name  # as its user writes it
            raise ConfigError(f"{prefix}{name} must be {self.expected}, not {value!r}", field=name)


# Called as the functions below are.
expect = Expect


def whole(least: int | None = None) -> Validator:
    """A whole number, with `least` one of at least that."""
    if least is None:
        return expect("a whole number", is_whole)
    return expect(f"a whole number, {least} or more", lambda value: is_whole(value) and value >= least)


def at_least(low: float, noun: str = "a number") -> Validator:
    """A number of `low` or more; `noun` names its unit."""
    return expect(f"{noun}, {low:g} or more", lambda value: is_number(value) and value >= low)


def above(low: float, noun: str = "a number", *, at_most: float | None = None) -> Validator:
    """A number above `low`, which is itself excluded, up to and including `at_most`."""
    limit = math.inf if at_most is None else at_most
    upper = "" if at_most is None else f" and at most {at_most:g}"
    return expect(f"{noun} above {low:g}{upper}", lambda value: is_number(value) and low < value <= limit)


def one_of(*allowed: str) -> Validator:
    """One of the allowed words."""
    return expect(" or ".join(map(repr, allowed)), lambda value: isinstance(value, str) and value in allowed)


def field_check(check: Callable[[Any, attrs.Attribute[Any], Any], None]) -> Validator:
    """A validator of its own messages: a `ConfigError` that `check` raises gets the name of the field."""

    def validate(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        try:
            check(instance, attribute, value)
        except ConfigError as error:
            error.field = attribute.name
            raise

    return validate


def variable(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """The name of an environment variable; the message does not show the value, which may be the key itself."""
    if not (isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*", value)):
        prefix = getattr(instance, "error_prefix", "")
        message = f"{prefix}{attribute.name} must be the name of an environment variable (it is not one)"
        raise ConfigError(message, field=attribute.name)


def as_names(value: Any) -> Any:
    """Convert one name, or several, to a tuple; anything else is returned for the validator to reject."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, Mapping) else value


def as_tuple(value: Any) -> Any:
    """Convert a list to a tuple; anything else is returned for the validator to reject."""
    return tuple(value) if isinstance(value, list) else value


def _are_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) and each for each in value)


flag = expect("True or False", lambda value: isinstance(value, bool))
share = expect("a number from 0 to 1", lambda value: is_number(value) and 0 <= value <= 1)
text = expect("a text of at least one character", lambda value: isinstance(value, str) and bool(value))
name = expect("the name of a column", lambda value: isinstance(value, str) and bool(value))
names = expect("the name of a column, or a list of names", _are_names)
mapping = expect(
    "a mapping of names to values",
    lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
)
seconds = above(0, "seconds")

# Recipes and plans that are nested deeper are rejected: most code follows a tree by recursion, and Python's stack ends.
MAX_DEPTH = 100

_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_DOTTED = re.compile(rf"^[ \t\[]*+(?:{_PART}){{{MAX_DEPTH}}}", re.MULTILINE)


def parse_toml(text: str) -> dict[str, Any]:
    """As `tomllib.loads`, with `RecursionError` for keys of too many parts, whose cost would be quadratic."""
    if _DOTTED.search(text):
        raise RecursionError(f"a key of more than {MAX_DEPTH} parts")
    return tomllib.loads(text)
