"""Columns that state whether other columns hold valid values: Python, SQL, JSON, a function or a server."""

from __future__ import annotations

import ast
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import urlsplit

import attrs
import polars as pl

from .. import checks
from ..errors import BadOutput, CellError, ConfigError, ModelMisconfigured, Permanent, Retryable
from ..graph import Kind
from ..models.base import call_key
from ..models.provider import excerpt, failure_of
from ..models.urls import split_url
from ..runtime.threads import run_abandonable
from ..store.values import python_rows
from .base import Column
from .fields import Reference, as_reference
from .spec import ColumnSpec, Environment, Verifier
from .sql import SqlChecker, SqlProblem
from .structured import schema_errors, schema_validator
from .templates import Template, compile_template, is_template

if TYPE_CHECKING:
    from ..models.http import Endpoint, HttpClient, HttpResponse
    from .base import CellContext
    from .fields import Text


# Fields of one kind only, and their defaults.
_FIELDS_OF: Mapping[str, Mapping[str, Any]] = {
    "python": {"lint": None, "rules": ("E9", "F")},
    "sql": {"dialect": None, "ddl": None},
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
def _check_dialect(spec: Validation, _: object, value: Any) -> None:
    if not isinstance(value, Reference) and not (isinstance(value, str) and value):
        raise ConfigError(f'{spec.error_prefix}dialect must be the name of a dialect or {{"column": …}}, not {value!r}')


@checks.field_check
def _check_ddl(spec: Validation, _: object, value: Any) -> None:
    if not isinstance(value, str | Reference):
        raise ConfigError(
            f'{spec.error_prefix}ddl must be CREATE TABLE statements, a template or {{"column": …}}, not {value!r}'
        )
    spec.ddl_template()


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
    - `sql`: statements that sqlglot understands in `dialect`. With `ddl` DuckDB also binds them: tables, columns and
      functions must exist, and types must fit. Statements of another dialect are bound as sqlglot translates them to
      DuckDB's, so functions that have no translation are unknown there. Nothing is executed.
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
    dialect: Annotated[str | Reference | None, "the name of a dialect or `{column: x}`"] = attrs.field(
        default=None, converter=as_reference, validator=checks.optional(_check_dialect)
    )
    """For `sql`: the dialect, as sqlglot names it, or `{column: x}`; by default what most dialects have in common."""
    ddl: Annotated[str | Reference | None, "text, a template or `{column: x}`"] = attrs.field(
        default=None, converter=as_reference, validator=checks.optional(_check_ddl)
    )
    """For `sql`: CREATE TABLE statements, a template of them, or `{column: x}`: bind each statement against them."""
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

    def ddl_template(self) -> Template | None:
        """The compiled `ddl`, if it is a template."""
        if not isinstance(self.ddl, str) or not is_template(self.ddl):
            return None
        return compile_template(self.ddl, where=f"column {self.name!r}, ddl")

    def texts(self) -> dict[str, Text]:
        template = self.ddl_template()
        return {**super().texts(), **({} if template is None else {"ddl": template})}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it reads."""
        template = self.ddl_template()
        references = [each.root for each in (self.dialect, self.ddl) if isinstance(each, Reference)]
        return tuple(dict.fromkeys([*self.of, *references, *(template.requires if template is not None else ())]))

    def to_column(self, environment: Environment) -> Column:
        if self.kind == "remote":
            remote = RemoteValidator(self, environment)
            return Column(
                self.name, remote.verdict, kind=Kind.CELL, requires=self.of, key=remote.throttle_key, dtype=REPORTED
            )
        check = _CHECKERS[self.kind](self, environment)

        def validate(frame: pl.DataFrame) -> list[dict[str, Any] | None]:
            rows = python_rows(frame)
            verdicts = iter(check([row for row in rows if not self._is_null(row)]))
            return [None if self._is_null(row) else next(verdicts) for row in rows]

        dtype = REPORTED if self.kind == "callable" else CHECKED
        return Column(self.name, validate, kind=Kind.FULL_COLUMN, requires=self.inputs, dtype=dtype)

    def _is_null(self, row: Mapping[str, Any]) -> bool:
        """True if there is nothing to validate in a row."""
        return all(row[name] is None for name in self.of)

    def verifier(self, environment: Environment, column: str) -> Verifier:
        if column not in self.of:
            raise ConfigError(f"{self.name!r} validates {', '.join(map(repr, self.of))}, not {column!r}")
        rule = self.skip_rule()
        remote = RemoteValidator(self, environment) if self.kind == "remote" else None
        check = None if remote is not None else _CHECKERS[self.kind](self, environment)

        async def find_error(context: CellContext, row: Mapping[str, Any]) -> str | None:
            if self._is_null(row) or (rule is not None and rule.decide(row)):
                return None
            if remote is not None:
                verdict = await remote.verdict_within(context, {name: row[name] for name in self.of})
            else:
                assert check is not None
                (verdict,) = await run_abandonable(partial(check, [row]))
            if verdict["is_valid"]:
                return None
            errors = [each for each in verdict.get("messages", ()) if each["severity"] == "error"]
            if errors and errors[0]["code"] in _SETTINGS:  # not the fault of the candidate
                raise Permanent(f"{self.error_prefix}{verdict['error']}")
            return "; ".join(map(_placed, errors[:_SHOWN])) or verdict["error"]

        return Verifier(
            validation=self.name,
            requires=tuple(
                name for name in (*self.inputs, *(rule.requires if rule is not None else ())) if name != column
            ),
            find_error=find_error,
            keys=() if remote is None else (remote.throttle_key,),
        )


# Codes of messages about a field of the validation and not about the validated value.
_SETTINGS = ("ddl", "dialect")
# Errors that a model gets at once to repair its answer.
_SHOWN = 5


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
    return {"is_valid": False, "error": _placed(error), "messages": messages}


def _placed(message: Mapping[str, Any]) -> str:
    """A message with the place that it is about."""
    if message["line"] is not None:
        return f"line {message['line']}: {message['message']}"
    place = message["path"] or (message["code"] if message["code"] in _SETTINGS else "")
    return f"{place}: {message['message']}" if place else str(message["message"])


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


# From rows, by column, to a verdict on each.
Check = Callable[[Sequence[Mapping[str, Any]]], list[dict[str, Any]]]


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

    def check(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        texts = [row[spec.of[0]] for row in rows]
        found = [_python_messages(text) for text in texts]
        sound = {index: texts[index] for index, messages in enumerate(found) if not messages}
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


class RemoteValidator:
    """Verdicts of a server, which is a throttle key."""

    def __init__(self, spec: Validation, environment: Environment) -> None:
        self._spec = spec
        self._environment = environment
        self._url = spec.url or ""
        self.throttle_key = f"{urlsplit(self._url).netloc}/validation"
        self._headers = {"content-type": "application/json", "accept": "application/json", **spec.headers}
        self._secrets: tuple[str, ...] = ()
        if spec.api_key_env is not None:
            key = os.environ.get(spec.api_key_env)
            if not key:
                raise ConfigError(f"column {spec.name!r}: the environment variable {spec.api_key_env} is not set")
            self._secrets = (key,)
            self._headers["authorization"] = f"Bearer {key}"
        self._endpoints: dict[HttpClient, Endpoint] = {}

    async def verdict(self, context_: CellContext, **values: Any) -> dict[str, Any] | None:
        """The cell of a column of verdicts."""
        if all(value is None for value in values.values()):
            return None
        return await self._call(context_, values)

    async def verdict_within(self, context: CellContext, values: Mapping[str, Any]) -> dict[str, Any]:
        """A verdict within the cell of another column: it is stored like the answers of the models of that cell."""
        return await self._call(
            context, values, key=self.throttle_key, idempotency_key=lambda: call_key(self._url, _body(values).decode())
        )

    async def _call(self, context: CellContext, values: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        async def send() -> dict[str, Any]:
            verdict = parse_verdict(self._spec.name, await self._ask(values))
            context.report_usage()
            return verdict

        return await context.call(send, confirm=lambda: self._ask(dict.fromkeys(values, "hello")), **options)

    async def _ask(self, values: Mapping[str, Any]) -> Any:
        client = self._environment.http()
        if client not in self._endpoints:  # another build has another client
            self._endpoints.clear()
            self._endpoints[client] = client.endpoint("POST", self._url, self._headers)
        return _read_answer(self._spec, await self._endpoints[client].send(_body(values)), self._secrets)


def _body(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, default=str).encode()


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
    checker = SqlChecker(spec.name)
    template = spec.ddl_template()
    if isinstance(spec.dialect, str) and (problem := checker.dialect_problem(spec.dialect)) is not None:
        raise ConfigError(f"column {spec.name!r}: {problem}")
    if isinstance(spec.ddl, str) and template is None and not isinstance(spec.dialect, Reference):
        try:
            checker.check_ddl(spec.ddl, spec.dialect)
        except SqlProblem as unusable:
            raise ConfigError(f"column {spec.name!r}: ddl: {unusable}") from unusable

    def messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
        text, dialect, ddl = row[spec.of[0]], spec.dialect, spec.ddl
        if not isinstance(text, str):
            return [_not_text(text)]
        try:
            if isinstance(dialect, Reference):
                dialect = dialect.of_row(spec.name, row)
                if dialect is not None and (unknown := checker.dialect_problem(str(dialect))) is not None:
                    return [_message(unknown, code="dialect")]
            if ddl is not None:
                ddl = _ddl_of(spec, template, row)
            found = checker.problems(text, dialect=dialect, ddl=ddl)
        except (SqlProblem, CellError) as unusable:
            return [_message(str(unusable), code="ddl")]
        return [_message(str(each), line=each.line, column=each.column) for each in found]

    return lambda rows: [_verdict(messages(row)) for row in rows]


def _ddl_of(spec: Validation, template: Template | None, row: Mapping[str, Any]) -> str:
    """The `ddl` of a row. Raises `SqlProblem` if it is not text."""
    value = spec.ddl if template is None else template.render(row)
    if isinstance(value, Reference):
        value = value.of_row(spec.name, row)
    if not isinstance(value, str):
        raise SqlProblem("is null" if value is None else f"is a value of type {type(value).__name__}, not text")
    return value


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

    return lambda rows: [_verdict(messages(row[spec.of[0]])) for row in rows]


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

    def verdict(row: Mapping[str, Any]) -> dict[str, Any]:
        try:
            found = function(*(row[name] for name in spec.of))
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
