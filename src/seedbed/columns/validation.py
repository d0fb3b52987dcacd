"""Columns that state whether other columns hold valid values: Python, SQL, JSON, a function or a server."""

from __future__ import annotations

import ast
import inspect
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import attrs
import polars as pl

from .. import checks
from ..errors import BadOutput, ConfigError, ModelMisconfigured, Permanent, Retryable
from ..graph import Kind, nearest
from ..models.provider import excerpt, failure_of
from ..models.urls import split_url
from .base import Column
from .code import import_extra
from .spec import ColumnSpec, Environment
from .structured import schema_errors, schema_validator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..models.http import Endpoint, HttpClient, HttpResponse
    from .base import CellContext


# Fields of one kind only, and their defaults.
_FIELDS_OF: Mapping[str, Mapping[str, Any]] = {
    "python": {"lint": None, "rules": ("E9", "F")},
    "sql": {"dialect": None},
    "json_schema": {"schema": None},
    "callable": {"function": None},
    "remote": {"url": None, "api_key_env": None, "headers": {}},
}
_REQUIRED = {"json_schema": "schema", "callable": "function", "remote": "url"}


def _schema(value: Any) -> Any:
    """A JSON Schema, also from a class that has one, such as a pydantic model."""
    of_class = getattr(value, "model_json_schema", None)
    return of_class() if callable(of_class) else value


def _are_rules(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(each, str) and each.isalnum() for each in value)


def _is_function(value: Any) -> bool:
    return callable(value) or (isinstance(value, str) and ":" in value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)


@checks.field_check
def _check_url(spec: Validation, _: object, value: Any) -> None:
    try:
        url = split_url(value)
    except ValueError as error:
        raise ConfigError(f"{spec.error_prefix}url {error}") from None
    if url.username or url.password:
        raise ConfigError(f"{spec.error_prefix}url must not contain a user name or password; use api_key_env")


@attrs.frozen(kw_only=True)
class Validation(ColumnSpec):
    """Verdicts on the values of the column `of`.

    The result is structured: `is_valid`, `error` (null if valid) and more by kind. The result for null is null.

    - `python`: code that can be parsed. If ruff is installed its messages for `rules` are added (`lint` false: never,
      true: ruff is required). Only errors that would occur at run time make it invalid; others are warnings in
      `messages`.
    - `sql`: statements that sqlglot parses in `dialect`.
    - `json_schema`: text or structured values that fit `schema`, which may also be a pydantic model.
    - `callable`: `function` is called with the values of the columns `of`, in that order, and returns true or false, an
      error text or null, or a mapping with `is_valid` and `error`; a `ValueError` or `AssertionError` means invalid. In
      a recipe file it is `module:name`.
    - `remote`: each row is sent to `url` as a JSON object of the columns `of`; the answer is a JSON object with
      `is_valid` and optionally `error`. A key is read from the environment variable `api_key_env`.

    Other values in the answer of a callable or a remote validator are stored as JSON in `details`.
    """

    type: ClassVar[str] = "validation"

    of: tuple[str, ...] = attrs.field(converter=checks.as_names, validator=checks.names)
    """The column that is validated; a callable or remote validator gets several."""
    kind: str = attrs.field(validator=checks.one_of(*_FIELDS_OF))
    """What validates; see above."""
    lint: bool | None = attrs.field(default=None, validator=checks.optional(checks.flag))
    """For `python`: whether ruff checks it too; by default if ruff is installed."""
    rules: tuple[str, ...] = attrs.field(
        default=("E9", "F"),
        converter=checks.as_names,
        validator=checks.expect("codes of ruff's rules, such as E9 or F", _are_rules),
    )
    """For `python`: the rules of ruff whose findings are reported."""
    dialect: str | None = attrs.field(default=None, validator=checks.optional(checks.text))
    """For `sql`: the dialect, as sqlglot names it; by default its own, which accepts what most have in common."""
    schema: Any = attrs.field(
        default=None,
        converter=_schema,
        validator=checks.optional(checks.expect("a JSON Schema (a mapping)", lambda value: isinstance(value, Mapping))),
    )
    """For `json_schema`: the schema; in Python also a pydantic model."""
    function: Callable[..., Any] | str | None = attrs.field(
        default=None, validator=checks.optional(checks.expect("a function or 'module:name'", _is_function))
    )
    """For `callable`: the function, or its `module:name`."""
    url: str | None = attrs.field(default=None, validator=checks.optional(_check_url))
    """For `remote`: where each row is sent."""
    api_key_env: str | None = attrs.field(default=None, validator=checks.optional(checks.variable))
    """For `remote`: the environment variable that holds the key."""
    headers: Mapping[str, str] = attrs.field(
        factory=dict, validator=checks.expect("a mapping of texts to texts", _are_texts)
    )
    """For `remote`: headers to send; `${NAME}` in one stands for an environment variable."""

    def __attrs_post_init__(self) -> None:
        if not self.of:
            raise ConfigError(f"{self.error_prefix}of must be the name of a column, or a list of names, not ()")
        if len(self.of) > 1 and self.kind not in ("callable", "remote"):
            raise ConfigError(f"{self.error_prefix}kind {self.kind} validates one column, not {self.of!r}")
        for kind, fields in _FIELDS_OF.items():
            for field, unset in fields.items():
                if kind != self.kind and getattr(self, field) != unset:
                    raise ConfigError(f"{self.error_prefix}{field} is for kind {kind}, and the kind is {self.kind}")
        required = _REQUIRED.get(self.kind)
        if required is not None and getattr(self, required) is None:
            raise ConfigError(f"{self.error_prefix}{required} is required for kind {self.kind}")

    def to_column(self, environment: Environment) -> Column:
        if self.kind == "remote":
            return _remote_column(self, environment)
        check = _CHECKERS[self.kind](self, environment)

        def validate(frame: pl.DataFrame) -> list[dict[str, Any] | None]:
            rows = list(zip(*(frame[name].to_list() for name in self.of), strict=True))
            is_null = [all(value is None for value in row) for row in rows]
            verdicts = iter(check([row for row, null in zip(rows, is_null, strict=True) if not null]))
            return [None if null else next(verdicts) for null in is_null]

        dtype = REPORTED if self.kind == "callable" else CHECKED
        return Column(self.name, validate, kind=Kind.FULL_COLUMN, requires=self.of, dtype=dtype)


def _message(message: str, **more: Any) -> dict[str, Any]:
    """One finding; lines and columns count from 1, `path` is a JSON path into a structured value."""
    defaults = {"severity": "error", "code": None, "message": message, "line": None, "column": None, "path": None}
    return defaults | more


_MESSAGE = pl.Struct({**dict.fromkeys(_message(""), pl.String), "line": pl.Int64, "column": pl.Int64})
CHECKED = pl.Struct({"is_valid": pl.Boolean, "error": pl.String, "messages": pl.List(_MESSAGE)})
"""The type of verdicts of a parser or a schema."""
REPORTED = pl.Struct({"is_valid": pl.Boolean, "error": pl.String, "details": pl.String})
"""The type of verdicts of a function or a server."""


def _verdict(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Invalid if one of the messages is an error."""
    error = next((each for each in messages if each["severity"] == "error"), None)
    if error is None:
        return {"is_valid": True, "error": None, "messages": messages}
    place = f"line {error['line']}: " if error["line"] is not None else f"{error['path']}: " if error["path"] else ""
    return {"is_valid": False, "error": place + error["message"], "messages": messages}


def _not_text(value: object) -> dict[str, Any]:
    return _message(f"a value of type {type(value).__name__}, not text")


def parse_verdict(column: str, answer: Any) -> dict[str, Any]:
    """The verdict of a function or a server: true or false, an error or null, or a mapping with `is_valid`."""
    if answer is None or isinstance(answer, bool):
        answer = {"is_valid": answer is not False}
    elif isinstance(answer, str):
        answer = {"is_valid": not answer, "error": answer or None}
    if not isinstance(answer, Mapping) or not isinstance(answer.get("is_valid"), bool):
        raise BadOutput(f"column {column!r}: a verdict must be a mapping with a boolean is_valid, not {answer!r:.200}")
    error = answer.get("error")
    if not answer["is_valid"] and error is None:
        error = "not valid"
    rest = {key: value for key, value in answer.items() if key not in ("is_valid", "error")}
    details = json.dumps(rest, default=str, ensure_ascii=False) if rest else None
    return {"is_valid": answer["is_valid"], "error": None if error is None else str(error), "details": details}


# Rules of ruff for errors at run time; findings of others are warnings.
_ERRORS = ("invalid-syntax", "E9", "F5", "F6", "F7", "F82", "PLE")
_RUFF_SECONDS = 120.0
# Isolated: verdicts must not depend on a configuration file in some folder above.
_RUFF_OPTIONS = (
    *("check", "--isolated", "--no-cache", "--exit-zero", "--output-format=json"),
    f"--target-version=py{sys.version_info.major}{sys.version_info.minor}",
)
# The parser warns through a filter that all threads share: one of them at a time may replace it.
_quiet = threading.Lock()


# From rows of the validated columns to a verdict on each.
Check = Callable[[list[tuple[Any, ...]]], list[dict[str, Any]]]


def _python_checker(spec: Validation, _: Environment) -> Check:
    """Check several texts at once: ruff is started once for all of them."""
    ruff = None if spec.lint is False else _find_ruff()
    if spec.lint and ruff is None:
        raise ConfigError(f"column {spec.name!r}: lint is true, but ruff is not installed: install seedbed[lint]")
    if ruff is not None:
        try:
            _run_ruff(spec, ruff, "-", "")  # it may reject the rules
        except Permanent as error:
            raise ConfigError(str(error)) from error

    def check(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
        found = [_python_messages(text) for (text,) in rows]
        sound = {index: rows[index][0] for index, messages in enumerate(found) if not messages}
        if ruff is not None and sound:
            for each in _lint(spec, ruff, sound):
                found[int(Path(each["filename"]).stem)].append(_ruff_message(each))
        return [_verdict(messages) for messages in found]

    return check


def _python_messages(text: Any) -> list[dict[str, Any]]:
    """The syntax error of Python code, if it has one."""
    if not isinstance(text, str):
        return [_not_text(text)]
    try:
        with _quiet, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return [_message(error.msg, code="invalid-syntax", line=error.lineno, column=error.offset)]
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL, or nested too deep for the parser
        return [_message(str(error) or "nested too deeply", code="invalid-syntax")]
    return []


def python_problem(code: str) -> str | None:
    """The syntax error of Python code and its line; None if it can be parsed."""
    error: str | None = _verdict(_python_messages(code))["error"]
    return error


def _find_ruff() -> str | None:
    # Beside this Python first: its environment need not be activated.
    beside = str(Path(sys.executable).parent)
    return shutil.which("ruff", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))


def _run_ruff(spec: Validation, ruff: str, path: str, text: str | None = None) -> list[dict[str, Any]]:
    """The findings of ruff. Raises `Permanent` if it fails."""
    command = [ruff, *_RUFF_OPTIONS, f"--select={','.join(spec.rules)}", path]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_RUFF_SECONDS, check=True)
        findings: list[dict[str, Any]] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = " ".join(str(getattr(error, "stderr", None) or error).split())[:300]
        raise Permanent(f"column {spec.name!r}: ruff failed with rules {', '.join(spec.rules)}: {reason}") from error
    return findings


def _lint(spec: Validation, ruff: str, texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """The findings of ruff; the name of the file of each is the index of its text."""
    with tempfile.TemporaryDirectory(prefix="seedbed-lint-") as folder:
        for index, text in texts.items():
            Path(folder, f"{index}.py").write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
        return _run_ruff(spec, ruff, folder)


def _ruff_message(finding: Mapping[str, Any]) -> dict[str, Any]:
    code = finding.get("code") or "invalid-syntax"  # older versions have no code for syntax errors
    place = finding.get("location") or {}
    severity = "error" if code.startswith(_ERRORS) else "warning"
    return _message(finding["message"], severity=severity, code=code, line=place.get("row"), column=place.get("column"))


def _remote_column(spec: Validation, environment: Environment) -> Column:
    """A column of verdicts of a server, which is its throttle key."""
    url = spec.url or ""
    headers = {"content-type": "application/json", "accept": "application/json", **spec.headers}
    secrets: tuple[str, ...] = ()
    if spec.api_key_env is not None:
        key = os.environ.get(spec.api_key_env)
        if not key:
            raise ConfigError(f"column {spec.name!r}: the environment variable {spec.api_key_env} is not set")
        secrets = (key,)
        headers["authorization"] = f"Bearer {key}"
    endpoints: dict[HttpClient, Endpoint] = {}

    async def validate(context_: CellContext, **values: Any) -> dict[str, Any] | None:
        if all(value is None for value in values.values()):
            return None

        async def ask(values: Mapping[str, Any]) -> Any:
            client = environment.http()
            if client not in endpoints:  # another build has another client
                endpoints.clear()
                endpoints[client] = client.endpoint("POST", url, headers)
            return _read_answer(spec, await endpoints[client].send(json.dumps(values, default=str).encode()), secrets)

        async def send() -> dict[str, Any]:
            return parse_verdict(spec.name, await ask(values))

        verdict = await context_.call(send, confirm=lambda: ask(dict.fromkeys(values, "hello")))
        context_.report_usage()
        return verdict

    throttle_key = f"{urlsplit(url).netloc}/validation"
    return Column(spec.name, validate, kind=Kind.CELL, requires=spec.of, key=throttle_key, dtype=REPORTED)


def _read_answer(spec: Validation, response: HttpResponse, secrets: tuple[str, ...]) -> Any:
    """The JSON of a response. Raises the failure that the response means."""
    failure = failure_of(spec.url or "", response, secrets)
    if isinstance(failure, ModelMisconfigured):
        key = "api_key_env" if spec.api_key_env is None else f"the key in the environment variable {spec.api_key_env}"
        raise ModelMisconfigured(
            failure.cause.replace("model ", "the validator ", 1),
            fix=f"check its url and {key}",
            answer=failure.answer,
            blames_no_row=failure.blames_no_row,
        )
    if failure is not None:
        failure.args = (str(failure).replace("model ", "the validator ", 1),)
        raise failure
    try:
        return json.loads(response.body)
    except (ValueError, RecursionError) as error:
        shown = excerpt(response.body, secrets)
        answered = f"the validator {spec.url!r} answered {response.status}"
        if response.body.lstrip()[:1] == b"<":
            raise ModelMisconfigured(
                f"{answered} with a page in place of JSON", fix="check its url and any proxy", answer=shown
            ) from error
        raise Retryable(f"{answered} with malformed JSON: {shown!r}") from error


def _sql_checker(spec: Validation, _: Environment) -> Check:
    sqlglot: Any = import_extra("sqlglot", extra="sql", column=spec.name)
    dialect = spec.dialect or ""
    known = sorted(filter(None, sqlglot.Dialect.classes))
    if dialect and dialect not in known:
        raise ConfigError(f"column {spec.name!r}: sqlglot has no dialect {dialect!r}{nearest(dialect, known)}")

    def messages(text: Any) -> list[dict[str, Any]]:
        if not isinstance(text, str):
            return [_not_text(text)]
        try:
            statements = [each for each in sqlglot.parse(text, read=dialect) if each is not None]
        except sqlglot.errors.ParseError as error:
            found = [_message(each["description"], line=each["line"], column=each["col"]) for each in error.errors]
            return found or [_message(str(error))]
        except sqlglot.errors.TokenError as error:
            return [_message(str(error))]
        except RecursionError:
            return [_message("nested too deeply")]
        if not statements:
            return [_message("contains no statement")]
        found = []
        for each in statements:
            if isinstance(each, sqlglot.exp.Condition | sqlglot.exp.Alias):  # "hello world" is a column and its alias
                found.append(_message(f"{each.sql()[:80]!r} is an expression, not a statement"))
            elif isinstance(each, sqlglot.exp.Command):
                found.append(_message(f"{each.name or 'the statement'} was not parsed", severity="warning"))
        return found

    def check(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
        # It logs a warning for every statement that it does not parse; the verdict has one already.
        with _no_warnings_of("sqlglot"):
            return [_verdict(messages(text)) for (text,) in rows]

    return check


@contextmanager
def _no_warnings_of(name: str) -> Iterator[None]:
    """Drop the warnings that this thread logs with the logger of another library."""
    here = threading.get_ident()
    logger = logging.getLogger(name)

    def is_logged(record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING or threading.get_ident() != here

    logger.addFilter(is_logged)
    try:
        yield
    finally:
        logger.removeFilter(is_logged)


def _schema_checker(spec: Validation, _: Environment) -> Check:
    validator = schema_validator(spec.schema, column=spec.name)

    def misfits(value: Any) -> list[dict[str, Any]]:
        found = sorted(schema_errors(validator, value), key=lambda error: error.json_path)
        return [_message(error.message, code=error.validator, path=error.json_path) for error in found]

    def messages(value: Any) -> list[dict[str, Any]]:
        if isinstance(value, str):
            try:
                return misfits(json.loads(value))
            except ValueError as error:
                return [_message(f"not JSON: {error}")]
        # In a column of structured values a missing key is null: a value fits if it does with its nulls or without.
        found = misfits(value)
        return found if found and misfits(_without_nulls(value)) else []

    return lambda rows: [_verdict(messages(value)) for (value,) in rows]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _function_checker(spec: Validation, environment: Environment) -> Check:
    function: Any = spec.function
    where = f"column {spec.name!r}, function"
    if isinstance(function, str):
        function = environment.import_object(function, where)
    if not callable(function):
        raise ConfigError(f"{where}: {function!r} is not a function")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{where}: it must not be async; write a column with @seedbed.column instead")

    def verdict(row: tuple[Any, ...]) -> dict[str, Any]:
        try:
            found = function(*row)
        except (ValueError, AssertionError) as error:
            found = str(error) or type(error).__name__
        return parse_verdict(spec.name, found)

    return lambda rows: list(map(verdict, rows))


_CHECKERS: Mapping[str, Callable[[Validation, Environment], Check]] = {
    "python": _python_checker,
    "sql": _sql_checker,
    "json_schema": _schema_checker,
    "callable": _function_checker,
}
