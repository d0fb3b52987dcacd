"""Columns that say whether other columns hold what they should."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from ..errors import ConfigError
from ..models.urls import split_url
from .spec import ColumnSpec

KINDS = ("python", "sql", "json_schema", "callable", "remote")

# Fields that only one kind has, and what they are where nobody sets them.
_FIELDS_OF: Mapping[str, Mapping[str, Any]] = {
    "python": {"lint": None, "rules": ("E9", "F")},
    "sql": {"dialect": None},
    "json_schema": {"schema": None},
    "callable": {"function": None},
    "remote": {"url": None, "api_key_env": None, "headers": {}},
}


def _names(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, Sequence) else value


def _schema(value: Any) -> Any:
    """A JSON Schema, also from a class that can tell its own, as pydantic's models can."""
    tell = getattr(value, "model_json_schema", None)
    return tell() if callable(tell) else value


@attrs.frozen
class Validation(ColumnSpec):
    """Whether the values of the column `of` are valid, and why not.

    The result is structured: `is_valid`, `error` (null if valid) and more by kind. Null has no verdict: null.

    - `python`: code that parses; with ruff installed its messages of `rules` too (`lint` false never asks it, true
      insists on it). Only what would fail when run makes it invalid; the rest are warnings in `messages`.
    - `sql`: statements that sqlglot parses in `dialect`.
    - `json_schema`: text or structured values that fit `schema`, which may also be a pydantic model.
    - `callable`: `function` is called with the values of the columns `of`, in that order, and returns true or false, an
      error text or null, or a mapping with `is_valid` and `error`; a `ValueError` or `AssertionError` means invalid. In
      a recipe file it is `module:name`.
    - `remote`: each row is sent to `url` as a JSON object of the columns `of`; the answer is a JSON object with
      `is_valid` and, if there is one, `error`. A key comes from the environment variable `api_key_env`.

    What a callable or a remote validator says besides is kept as JSON in `details`.
    """

    type: ClassVar[str] = "validation"

    of: tuple[str, ...] = attrs.field(kw_only=True, converter=_names)
    kind: str = attrs.field(kw_only=True)
    lint: bool | None = attrs.field(default=None, kw_only=True)
    rules: tuple[str, ...] = attrs.field(default=("E9", "F"), kw_only=True, converter=_names)
    dialect: str | None = attrs.field(default=None, kw_only=True)
    schema: Any = attrs.field(default=None, kw_only=True, converter=_schema)
    function: Callable[..., Any] | str | None = attrs.field(default=None, kw_only=True)
    url: str | None = attrs.field(default=None, kw_only=True)
    api_key_env: str | None = attrs.field(default=None, kw_only=True)
    headers: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.kind not in KINDS:
            raise self._wrong("kind", self.kind, f"one of {', '.join(KINDS)}")
        if not (isinstance(self.of, tuple) and self.of and all(isinstance(one, str) and one for one in self.of)):
            raise self._wrong("of", self.of, "the name of a column, or a list of names")
        if len(self.of) > 1 and self.kind not in ("callable", "remote"):
            raise ConfigError(f"column {self.name!r}: kind {self.kind} looks at one column, not at {self.of!r}")
        self._check_strangers()
        check: Callable[[], None] = getattr(self, f"_check_{self.kind}")
        check()

    def code(self) -> tuple[str, ...]:
        """The function, where it is named and not given."""
        return (self.function,) if isinstance(self.function, str) else ()

    def _check_strangers(self) -> None:
        for kind, fields in _FIELDS_OF.items():
            for field, unset in fields.items():
                if kind != self.kind and getattr(self, field) != unset:
                    raise ConfigError(f"column {self.name!r}: {field} is for kind {kind}, and the kind is {self.kind}")

    def _check_python(self) -> None:
        if self.lint not in (None, True, False):
            raise self._wrong("lint", self.lint, "true or false, or nothing for: if ruff is installed")
        if not isinstance(self.rules, tuple) or not self.rules or not all(_is_rule(rule) for rule in self.rules):
            raise self._wrong("rules", self.rules, "codes of ruff's rules, such as E9 or F")

    def _check_sql(self) -> None:
        if self.dialect is not None and not isinstance(self.dialect, str):
            raise self._wrong("dialect", self.dialect, "the name of a dialect, such as postgres")

    def _check_json_schema(self) -> None:
        if not isinstance(self.schema, Mapping):
            raise self._wrong("schema", self.schema, "a JSON Schema (a mapping)")

    def _check_callable(self) -> None:
        if not callable(self.function) and not (isinstance(self.function, str) and ":" in self.function):
            raise self._wrong("function", self.function, "a function or 'module:name'")

    def _check_remote(self) -> None:
        try:
            url = split_url(self.url)
        except ValueError as error:
            raise ConfigError(f"column {self.name!r}: url {error}") from None
        if url.username or url.password:
            raise ConfigError(f"column {self.name!r}: url must not contain a user name or password; use api_key_env")
        key: Any = self.api_key_env
        if key is not None and not (isinstance(key, str) and key.isidentifier()):
            # Not shown: somebody may have put the key itself there.
            raise ConfigError(f"column {self.name!r}: api_key_env must be the name of an environment variable")
        given: Any = self.headers
        if not isinstance(given, Mapping) or not all(isinstance(text, str) for pair in given.items() for text in pair):
            raise ConfigError(f"column {self.name!r}: headers must be a mapping of texts to texts")

    def _wrong(self, field: str, value: object, wanted: str) -> ConfigError:
        return ConfigError(f"column {self.name!r}: {field} must be {wanted}, not {value!r}")


def _is_rule(rule: object) -> bool:
    return isinstance(rule, str) and rule.isalnum()
