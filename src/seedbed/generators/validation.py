"""Verdicts on Python, SQL and JSON, and those of a local function or a remote one."""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..graph import Kind, nearest
from ..recipe.validation import Validation
from .column import Column
from .extras import import_extra
from .json_shapes import schema_validator
from .python_checks import python_checker
from .registry import Environment, maker
from .remote_validation import remote_column
from .verdict import CHECKED, TOLD, Message, checked, not_text, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

Check = Callable[[list[Any]], list[dict[str, Any]]]


@maker(Validation)
def make_validation(spec: Validation, environment: Environment) -> Column:
    """A column of verdicts."""
    if spec.kind == "remote":
        return remote_column(spec, environment)
    if spec.kind == "callable":
        return _callable_column(spec, environment)
    check = {"python": python_checker, "sql": _sql_checker, "json_schema": _schema_checker}[spec.kind](spec)

    def validate(frame: pl.DataFrame) -> list[dict[str, Any] | None]:
        values = frame[spec.of[0]].to_list()
        verdicts = iter(check([value for value in values if value is not None]))
        return [None if value is None else next(verdicts) for value in values]

    return Column(spec.name, validate, kind=Kind.FULL_COLUMN, requires=spec.of, dtype=CHECKED)


def _sql_checker(spec: Validation) -> Check:
    sqlglot: Any = import_extra("sqlglot", extra="sql", column=spec.name)
    dialect = spec.dialect or ""
    known = sorted(filter(None, sqlglot.Dialect.classes))
    if dialect and dialect not in known:
        raise ConfigError(f"column {spec.name!r}: sqlglot has no dialect {dialect!r}{nearest(dialect, known)}")

    def judge(text: Any) -> dict[str, Any]:
        if not isinstance(text, str):
            return checked([not_text(text)])
        try:
            statements = [each for each in sqlglot.parse(text, read=dialect) if each is not None]
        except sqlglot.errors.ParseError as error:
            found = [Message(message=e["description"], line=e["line"], column=e["col"]) for e in error.errors]
            return checked(found or [Message(message=str(error))])
        except sqlglot.errors.TokenError as error:
            return checked([Message(message=str(error))])
        except RecursionError:
            return checked([Message(message="nested too deeply")])
        if not statements:
            return checked([Message(message="there is no statement")])
        messages: list[Message] = []
        for each in statements:
            if isinstance(each, sqlglot.exp.Condition | sqlglot.exp.Alias):  # "hello world" is a column and its alias
                messages.append(Message(message=f"{each.sql()[:80]!r} is an expression and no statement"))
            elif isinstance(each, sqlglot.exp.Command):
                said = f"{each.name or 'the statement'} was not looked into"
                messages.append(Message(severity="warning", message=said))
        return checked(messages)

    def check(texts: list[Any]) -> list[dict[str, Any]]:
        # It logs a warning for every statement that it knows but does not look into; the verdict has one already.
        with _no_warnings_of("sqlglot"):
            return [judge(text) for text in texts]

    return check


@contextmanager
def _no_warnings_of(name: str) -> Iterator[None]:
    """Drop what this thread logs as a warning with a logger of another library, and nothing of other threads."""
    here = threading.get_ident()
    logger = logging.getLogger(name)

    def is_kept(record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING or threading.get_ident() != here

    logger.addFilter(is_kept)
    try:
        yield
    finally:
        logger.removeFilter(is_kept)


def _schema_checker(spec: Validation) -> Check:
    assert spec.schema is not None
    validator = schema_validator(spec.schema, column=spec.name)

    def problems(value: Any) -> list[Message]:
        found = sorted(validator.iter_errors(value), key=lambda error: error.json_path)
        return [Message(code=error.validator, message=error.message, path=error.json_path) for error in found]

    def judge(value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                return checked([Message(message=f"not JSON: {error}")])
            return checked(problems(value))
        # In a column of structured values a key that a row does not have is null: a value fits if it does so with its
        # nulls or without them.
        found = problems(value)
        if found and not problems(_without_nulls(value)):
            found = []
        return checked(found)

    return lambda values: [judge(value) for value in values]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _callable_column(spec: Validation, environment: Environment) -> Column:
    function: Any = spec.function
    where = f"column {spec.name!r}, function"
    if isinstance(function, str):
        if not environment.allow_code:
            raise ConfigError(f"{where}: {function!r} is code, and this recipe may not import any (allow_code)")
        function = environment.import_object(function, where)
    if not callable(function):
        raise ConfigError(f"{where}: {function!r} is not a function")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{where}: it must not be async; make a column of its own of it with @seedbed.column")

    def judge(row: tuple[Any, ...]) -> dict[str, Any]:
        try:
            said = function(*row)
        except (ValueError, AssertionError) as error:
            said = str(error) or type(error).__name__
        return told(spec.name, said)

    def validate(frame: pl.DataFrame) -> list[dict[str, Any] | None]:
        rows = zip(*(frame[name].to_list() for name in spec.of), strict=True)
        return [None if all(value is None for value in row) else judge(row) for row in rows]

    return Column(spec.name, validate, kind=Kind.FULL_COLUMN, requires=spec.of, dtype=TOLD)
