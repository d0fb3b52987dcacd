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
from collections.abc import Callable, Mapping, Sequence
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
from .structured import schema_validator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..models.http import Endpoint, HttpClient, HttpResponse
    from .base import CellContext


KINDS = ("python", "sql", "json_schema", "callable", "remote")
# Fields of one kind only, and their defaults.
_FIELDS_OF: Mapping[str, Mapping[str, Any]] = {
    "python": {"lint": None, "rules": ("E9", "F")},
    "sql": {"dialect": None},
    "json_schema": {"schema": None},
    "callable": {"function": None},
    "remote": {"url": None, "api_key_env": None, "headers": {}},
}


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
    if value is None:
        return
    try:
        url = split_url(value)
    except ValueError as error:
        raise ConfigError(f"{spec.error_prefix}url {error}") from None
    if url.username or url.password:
        raise ConfigError(f"{spec.error_prefix}url must not contain a user name or password; use api_key_env")


@checks.field_check
def _check_key(spec: Validation, _: object, value: Any) -> None:
    if value is not None and not (isinstance(value, str) and value.isidentifier()):
        # The value is not shown: it may be the key itself.
        raise ConfigError(f"{spec.error_prefix}api_key_env must be the name of an environment variable")


@attrs.frozen
class Validation(ColumnSpec):
    """Whether the values of the column `of` are valid, and why not.

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

    of: tuple[str, ...] = attrs.field(kw_only=True, converter=checks.as_names, validator=checks.names)
    kind: str = attrs.field(kw_only=True, validator=checks.one_of(*KINDS))
    lint: bool | None = attrs.field(default=None, kw_only=True, validator=checks.optional(checks.flag))
    rules: tuple[str, ...] = attrs.field(
        default=("E9", "F"),
        kw_only=True,
        converter=checks.as_names,
        validator=checks.expect("codes of ruff's rules, such as E9 or F", _are_rules),
    )
    dialect: str | None = attrs.field(default=None, kw_only=True, validator=checks.optional(checks.text))
    schema: Any = attrs.field(
        default=None,
        kw_only=True,
        converter=_schema,
        validator=checks.optional(checks.expect("a JSON Schema (a mapping)", lambda value: isinstance(value, Mapping))),
    )
    function: Callable[..., Any] | str | None = attrs.field(
        default=None,
        kw_only=True,
        validator=checks.optional(checks.expect("a function or 'module:name'", _is_function)),
    )
    url: str | None = attrs.field(default=None, kw_only=True, validator=_check_url)
    api_key_env: str | None = attrs.field(default=None, kw_only=True, validator=_check_key)
    headers: Mapping[str, str] = attrs.field(
        factory=dict, kw_only=True, validator=checks.expect("a mapping of texts to texts", _are_texts)
    )

    def __attrs_post_init__(self) -> None:
        if not self.of:
            raise ConfigError(f"{self.error_prefix}of must be the name of a column, or a list of names, not ()")
        if len(self.of) > 1 and self.kind not in ("callable", "remote"):
            raise ConfigError(f"{self.error_prefix}kind {self.kind} validates one column, not {self.of!r}")
        for kind, fields in _FIELDS_OF.items():
            for field, unset in fields.items():
                if kind != self.kind and getattr(self, field) != unset:
                    raise ConfigError(f"{self.error_prefix}{field} is for kind {kind}, and the kind is {self.kind}")
        required = {"json_schema": "schema", "callable": "function", "remote": "url"}.get(self.kind)
        if required is not None and getattr(self, required) is None:
            raise ConfigError(f"{self.error_prefix}{required} is required for kind {self.kind}")

    def to_column(self, environment: Environment) -> Column:
        """A column of verdicts."""
        if self.kind == "remote":
            return _remote_column(self, environment)
        if self.kind == "callable":
            return _callable_column(self, environment)
        check = {"python": _python_checker, "sql": _sql_checker, "json_schema": _schema_checker}[self.kind](self)

        def validate(frame: pl.DataFrame) -> list[dict[str, Any] | None]:
            values = frame[self.of[0]].to_list()
            verdicts = iter(check([value for value in values if value is not None]))
            return [None if value is None else next(verdicts) for value in values]

        return Column(self.name, validate, kind=Kind.FULL_COLUMN, requires=self.of, dtype=CHECKED)


_MESSAGE = pl.Struct(
    {
        "severity": pl.String,
        "code": pl.String,
        "message": pl.String,
        "line": pl.Int64,
        "column": pl.Int64,
        "path": pl.String,
    }
)
CHECKED = pl.Struct({"is_valid": pl.Boolean, "error": pl.String, "messages": pl.List(_MESSAGE)})
"""The type of verdicts of a parser or a schema."""
REPORTED = pl.Struct({"is_valid": pl.Boolean, "error": pl.String, "details": pl.String})
"""The type of verdicts of a function or a server."""


@attrs.frozen(kw_only=True)
class Message:
    """One finding; lines and columns count from 1, `path` is a JSON path into a structured value."""

    severity: str = "error"
    code: str | None = None
    message: str
    line: int | None = None
    column: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else f"{self.path}: " if self.path else ""
        return place + self.message


def _verdict(messages: list[Message]) -> dict[str, Any]:
    """Invalid if one of the messages is an error."""
    error = next((str(each) for each in messages if each.severity == "error"), None)
    return {"is_valid": error is None, "error": error, "messages": [attrs.asdict(each) for each in messages]}


def _not_text(value: object) -> Message:
    return Message(message=f"a value of type {type(value).__name__}, not text")


def parse_verdict(column: str, said: Any) -> dict[str, Any]:
    """The verdict of a function or a server: true or false, an error or null, or a mapping with `is_valid`."""
    if said is None or isinstance(said, bool):
        is_valid = said is not False
        return {"is_valid": is_valid, "error": None if is_valid else "not valid", "details": None}
    if isinstance(said, str):
        return {"is_valid": not said, "error": said or None, "details": None}
    if not isinstance(said, Mapping) or not isinstance(said.get("is_valid"), bool):
        raise BadOutput(f"column {column!r}: a verdict must be a mapping with a boolean is_valid, not {said!r:.200}")
    error = said.get("error")
    if not said["is_valid"] and error is None:
        error = "not valid"
    rest = {key: value for key, value in said.items() if key not in ("is_valid", "error")}
    details = json.dumps(rest, default=str, ensure_ascii=False) if rest else None
    return {"is_valid": said["is_valid"], "error": None if error is None else str(error), "details": details}


# Rules of ruff for errors at run time; findings of others are warnings.
_ERRORS = ("invalid-syntax", "E9", "F5", "F6", "F7", "F82", "PLE")
_RUFF_SECONDS = 120.0
# The parser warns through a filter that all threads share: one of them at a time may replace it.
_quiet = threading.Lock()


Check = Callable[[list[Any]], list[dict[str, Any]]]


def _python_checker(spec: Validation) -> Check:
    """Gives verdicts on several texts at once: ruff is started once for all of them."""
    ruff = None if spec.lint is False else _find_ruff()
    if spec.lint and ruff is None:
        raise ConfigError(f"column {spec.name!r}: lint is true, but ruff is not installed: install seedbed[lint]")
    if ruff is not None:
        _try_rules(spec, ruff)

    def check(texts: list[Any]) -> list[dict[str, Any]]:
        found = [python_messages(text) for text in texts]
        sound = {index: texts[index] for index, messages in enumerate(found) if not messages}
        if ruff is not None and sound:
            for index, messages in _lint(spec, ruff, sound).items():
                found[index] += messages
        return [_verdict(messages) for messages in found]

    return check


def python_messages(text: Any) -> list[Message]:
    """The syntax error of Python code, if it has one."""
    if not isinstance(text, str):
        return [_not_text(text)]
    try:
        with _quiet, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return [Message(code="invalid-syntax", message=error.msg, line=error.lineno, column=error.offset)]
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL, or nested too deep for the parser
        return [Message(code="invalid-syntax", message=str(error) or "nested too deeply")]
    return []


def _find_ruff() -> str | None:
    # Beside this Python first: its environment need not be activated.
    beside = str(Path(sys.executable).parent)
    return shutil.which("ruff", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))


def _command(spec: Validation, ruff: str, *what: str) -> list[str]:
    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    # Isolated: verdicts must not depend on a configuration file in some folder above.
    flags = ["--isolated", "--no-cache", "--exit-zero", "--output-format=json", f"--target-version={version}"]
    return [ruff, "check", *flags, f"--select={','.join(spec.rules)}", *what]


def _try_rules(spec: Validation, ruff: str) -> None:
    try:
        done = subprocess.run(
            _command(spec, ruff, "-"), input="", capture_output=True, text=True, timeout=_RUFF_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"column {spec.name!r}: ruff cannot be run: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())[:300]
        raise ConfigError(f"column {spec.name!r}: ruff rejects rules {', '.join(spec.rules)}: {said}")


def _lint(spec: Validation, ruff: str, texts: Mapping[int, str]) -> dict[int, list[Message]]:
    with tempfile.TemporaryDirectory(prefix="seedbed-lint-") as folder:
        for index, text in texts.items():
            Path(folder, f"{index}.py").write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
        try:
            done = subprocess.run(
                _command(spec, ruff, folder), capture_output=True, text=True, timeout=_RUFF_SECONDS, check=True
            )
            findings: Sequence[Mapping[str, Any]] = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise Permanent(f"column {spec.name!r}: ruff failed: {error}") from error
    found: dict[int, list[Message]] = {}
    for each in findings:
        found.setdefault(int(Path(each["filename"]).stem), []).append(_ruff_message(each))
    return found


def _ruff_message(finding: Mapping[str, Any]) -> Message:
    code = finding.get("code") or "invalid-syntax"  # older versions have no code for syntax errors
    place = finding.get("location") or {}
    return Message(
        severity="error" if code.startswith(_ERRORS) else "warning",
        code=code,
        message=finding["message"],
        line=place.get("row"),
        column=place.get("column"),
    )


def _remote_column(spec: Validation, environment: Environment) -> Column:
    """A column of verdicts of a server, which is its throttle key."""
    assert spec.url is not None
    key = os.environ.get(spec.api_key_env) if spec.api_key_env is not None else None
    if spec.api_key_env is not None and not key:
        raise ConfigError(f"column {spec.name!r}: the environment variable {spec.api_key_env} is not set")
    return Column(
        spec.name,
        _RemoteValidator(spec, environment.http, key).agenerate,
        kind=Kind.CELL,
        requires=spec.of,
        key=f"{urlsplit(spec.url).netloc}/validation",
        dtype=REPORTED,
    )


class _RemoteValidator:
    """Calls one URL, through the connections of the build that uses it."""

    def __init__(self, spec: Validation, http: Callable[[], HttpClient], key: str | None) -> None:
        assert spec.url is not None
        self._column = spec.name
        self._url = spec.url
        self._headers = {"content-type": "application/json", "accept": "application/json", **spec.headers}
        self._secrets = (key,) if key else ()
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._http = http
        # The endpoint and the client that it belongs to: another build has another client.
        self._opened: tuple[HttpClient, Endpoint] | None = None

    async def agenerate(self, context_: CellContext, **values: Any) -> dict[str, Any] | None:
        """The verdict on one row."""
        if all(value is None for value in values.values()):
            return None
        body = json.dumps(values, default=str).encode()

        async def send() -> dict[str, Any]:
            return self._read(await self._endpoint().send(body))

        verdict = await context_.call(send)
        context_.report_usage()
        return verdict

    def _endpoint(self) -> Endpoint:
        client = self._http()
        if self._opened is None or self._opened[0] is not client:
            self._opened = client, client.endpoint("POST", self._url, self._headers)
        return self._opened[1]

    def _read(self, response: HttpResponse) -> dict[str, Any]:
        failure = failure_of(self._url, response, self._secrets)
        if isinstance(failure, ModelMisconfigured):  # its fix is about models
            failure = Permanent(f"{failure.cause}: {failure.answer}")
        if failure is not None:
            failure.args = (str(failure).replace("model ", "the validator ", 1),)
            raise failure
        try:
            said = json.loads(response.body)
        except (ValueError, RecursionError) as error:
            shown = excerpt(response.body, self._secrets)
            raise Retryable(f"the validator {self._url!r} answered with malformed JSON: {shown!r}") from error
        return parse_verdict(self._column, said)


def _sql_checker(spec: Validation) -> Check:
    sqlglot: Any = import_extra("sqlglot", extra="sql", column=spec.name)
    dialect = spec.dialect or ""
    known = sorted(filter(None, sqlglot.Dialect.classes))
    if dialect and dialect not in known:
        raise ConfigError(f"column {spec.name!r}: sqlglot has no dialect {dialect!r}{nearest(dialect, known)}")

    def judge(text: Any) -> dict[str, Any]:
        if not isinstance(text, str):
            return _verdict([_not_text(text)])
        try:
            statements = [each for each in sqlglot.parse(text, read=dialect) if each is not None]
        except sqlglot.errors.ParseError as error:
            found = [Message(message=e["description"], line=e["line"], column=e["col"]) for e in error.errors]
            return _verdict(found or [Message(message=str(error))])
        except sqlglot.errors.TokenError as error:
            return _verdict([Message(message=str(error))])
        except RecursionError:
            return _verdict([Message(message="nested too deeply")])
        if not statements:
            return _verdict([Message(message="contains no statement")])
        messages: list[Message] = []
        for each in statements:
            if isinstance(each, sqlglot.exp.Condition | sqlglot.exp.Alias):  # "hello world" is a column and its alias
                messages.append(Message(message=f"{each.sql()[:80]!r} is an expression, not a statement"))
            elif isinstance(each, sqlglot.exp.Command):
                said = f"{each.name or 'the statement'} was not parsed"
                messages.append(Message(severity="warning", message=said))
        return _verdict(messages)

    def check(texts: list[Any]) -> list[dict[str, Any]]:
        # It logs a warning for every statement that it does not parse; the verdict has one already.
        with _no_warnings_of("sqlglot"):
            return [judge(text) for text in texts]

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
                return _verdict([Message(message=f"not JSON: {error}")])
            return _verdict(problems(value))
        # In a column of structured values a missing key is null: a value fits if it does with its nulls or without.
        found = problems(value)
        if found and not problems(_without_nulls(value)):
            found = []
        return _verdict(found)

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
            raise ConfigError(f"{where}: {function!r} is code, which needs --allow-code")
        function = environment.import_object(function, where)
    if not callable(function):
        raise ConfigError(f"{where}: {function!r} is not a function")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{where}: it must not be async; write a column of its own with @seedbed.column")

    def judge(row: tuple[Any, ...]) -> dict[str, Any]:
        try:
            said = function(*row)
        except (ValueError, AssertionError) as error:
            said = str(error) or type(error).__name__
        return parse_verdict(spec.name, said)

    def validate(frame: pl.DataFrame) -> list[dict[str, Any] | None]:
        rows = zip(*(frame[name].to_list() for name in spec.of), strict=True)
        return [None if all(value is None for value in row) else judge(row) for row in rows]

    return Column(spec.name, validate, kind=Kind.FULL_COLUMN, requires=spec.of, dtype=REPORTED)
