from __future__ import annotations

import json
import logging
import shutil
import sys
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import trio
from chatting import FakeContext
from pydantic import BaseModel
from validation_server import serving

import seedbed
from seedbed.columns import validation
from seedbed.columns.spec import Access, Environment, make_column
from seedbed.columns.validation import CHECKED, REPORTED, Validation
from seedbed.errors import BadOutput, ConfigError, ModelMisconfigured, Permanent, RateLimited, Retryable
from seedbed.models.http import open_http

if TYPE_CHECKING:
    from pathlib import Path

    from validation_server import Answer


def verdicts(spec: Validation, values: list[Any], **environment: Any) -> list[Any]:
    """Give the verdicts on a column of values, through the engine and its declared types."""
    source = seedbed.Column("v", lambda rows: [values[row] for row in rows], kind="from_scratch")
    column = make_column(spec, Environment(**environment))
    assert column.kind.value == "full_column"
    assert column.dtype in (CHECKED, REPORTED)
    frame = seedbed.preview([source, column], rows=len(values)).to_polars()
    assert frame.schema[spec.name] == column.dtype
    return frame[spec.name].to_list()


def python(**fields: Any) -> Validation:
    """Validate Python."""
    return Validation("ok", of="v", kind="python", **fields)


@pytest.mark.parametrize("lint", [True, False])
def test_python_that_cannot_be_parsed_is_invalid(lint: bool) -> None:
    """The message has the line; null has no verdict, and a value that is not text is invalid."""
    good, bad, none, nul, deep = verdicts(
        python(lint=lint), ["x = 1\n", "x = 1\ndef f(:\n", None, "x = '\0'", "(" * 5_000]
    )
    assert good == {"is_valid": True, "error": None, "messages": []}
    assert bad["is_valid"] is False
    assert bad["error"].startswith("line 2: ")
    assert [(each["severity"], each["code"], each["line"]) for each in bad["messages"]] == [
        ("error", "invalid-syntax", 2)
    ]
    assert none is None
    assert not nul["is_valid"]
    assert not deep["is_valid"]
    (number,) = verdicts(python(lint=lint), [3])
    assert number["error"] == "a value of type int, not text"


def test_ruff_finds_errors_at_run_time() -> None:
    """Undefined names make code invalid; an unused import is a warning; each row has its own messages."""
    unused, undefined, fine = verdicts(python(lint=True), ["import os\n", "x = 1\nprint(y)\n", "print(1)\n"])
    assert unused["is_valid"]
    assert [(each["severity"], each["code"]) for each in unused["messages"]] == [("warning", "F401")]
    assert undefined["error"] == "line 2: Undefined name `y`"
    assert [(each["severity"], each["code"], each["column"]) for each in undefined["messages"]] == [
        ("error", "F821", 7)
    ]
    assert fine["messages"] == []


def test_rules_can_be_chosen() -> None:
    """Only the rules of the spec are checked."""
    (found,) = verdicts(python(rules=["D100"]), ["import os\nprint(y)\n"])
    assert [each["code"] for each in found["messages"]] == ["D100"]
    with pytest.raises(ConfigError, match=r"column 'ok': ruff failed with rules NOPE1: .*NOPE1"):
        make_column(python(rules="NOPE1"), Environment())


def test_python_is_checked_without_ruff(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser decides alone, unless `lint` is true."""
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert verdicts(python(), ["print(y)\n"])[0]["messages"] == []
    with pytest.raises(ConfigError, match=r"lint is true, but ruff is not installed: install seedbed\[lint\]"):
        make_column(python(lint=True), Environment())


def test_a_failure_of_ruff_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not mistaken for a verdict."""
    column = make_column(python(lint=True), Environment())
    monkeypatch.setattr(validation, "_RUFF_OPTIONS", ("check", "--no-such-option"))
    assert column.call is not None
    with pytest.raises(Permanent, match=r"column 'ok': ruff failed"):
        column.call.function(pl.DataFrame({"v": ["x = 1"]}))


@pytest.mark.filterwarnings("error")
def test_warnings_of_the_parser_are_suppressed() -> None:
    """Code with an invalid escape is valid and emits no warning."""
    assert verdicts(python(lint=False), ["x = '\\d'\n"])[0]["is_valid"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("SELECT a FROM t WHERE b = 1", None),
        ("SELECT 1; SELECT 2", None),
        ("DROP TABLE t", None),
        ("SELECT * FROM", "line 1: "),
        ("SELECT 'abc", ""),
        ("hello world", "'hello AS world' is an expression, not a statement"),
        ("", "contains no statement"),
        ("-- nothing", "contains no statement"),
        (3, "a value of type int, not text"),
    ],
)
def test_sql_that_cannot_be_parsed_is_invalid(text: Any, error: str | None) -> None:
    """The verdict has the reason."""
    (verdict,) = verdicts(Validation("ok", of="v", kind="sql"), [text])
    assert verdict["is_valid"] is (error is None)
    assert (verdict["error"] or "").startswith(error or "")


def test_sql_is_parsed_in_its_dialect(caplog: pytest.LogCaptureFixture) -> None:
    """A statement that the parser does not understand is invalid; it is reported in the verdict and not in the log."""
    text = "SELECT `a` FROM `t` LIMIT 3"
    assert verdicts(Validation("ok", of="v", kind="sql", dialect="mysql"), [text])[0]["is_valid"]
    assert not verdicts(Validation("ok", of="v", kind="sql", dialect="postgres"), [text])[0]["is_valid"]
    (explain,) = verdicts(Validation("ok", of="v", kind="sql", dialect="postgres"), ["EXPLAIN SELECT 1"])
    assert explain["error"] == "EXPLAIN is not understood, so it cannot be checked"
    assert not caplog.records
    sqlglot = logging.getLogger("sqlglot")
    assert (sqlglot.level, sqlglot.filters) == (logging.NOTSET, [])
    with pytest.raises(ConfigError, match=r"sqlglot has no dialect 'postgre'.*'postgres'"):
        make_column(Validation("ok", of="v", kind="sql", dialect="postgre"), Environment())


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}


def schema(wanted: Any = SCHEMA) -> Validation:
    """Validate JSON."""
    return Validation("ok", of="v", kind="json_schema", schema=wanted)


def test_json_text_is_parsed_and_validated() -> None:
    """Every error is a message with its path."""
    good, bad, broken, none = verdicts(schema(), ['{"name": "a"}', '{"age": -1}', '{"name": ', None])
    assert good == {"is_valid": True, "error": None, "messages": []}
    assert bad["error"] == "$: 'name' is a required property"
    assert [(each["code"], each["path"]) for each in bad["messages"]] == [("required", "$"), ("minimum", "$.age")]
    assert broken["error"].startswith("not JSON: ")
    assert none is None


def test_nulls_of_structured_values_may_be_missing_keys() -> None:
    """A null that stands for a missing key does not make a value invalid."""
    good, bad, both = verdicts(schema(), [{"name": "a"}, {"age": -1}, {"name": "b", "age": 3}])
    assert (good["is_valid"], bad["is_valid"], both["is_valid"]) == (True, False, True)


def test_values_of_a_wrong_type_are_invalid() -> None:
    """Only the value with the wrong type is invalid."""
    assert [each["is_valid"] for each in verdicts(schema(), [{"name": "a"}, {"name": 3}])] == [True, False]


class Somebody(BaseModel):
    name: str


def test_a_schema_may_be_a_pydantic_model() -> None:
    """An invalid schema is rejected."""
    assert [each["is_valid"] for each in verdicts(schema(Somebody), ['{"name": "a"}', "{}"])] == [True, False]
    with pytest.raises(ConfigError, match=r"column 'ok': schema is no JSON Schema: \$.type: 'objekt' is not valid"):
        make_column(schema({"type": "objekt"}), Environment())


def call(function: Any, of: Any = "v") -> Validation:
    """Validate by a function."""
    return Validation("ok", of=of, kind="callable", function=function)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (True, (True, None, None)),
        (None, (True, None, None)),
        ("", (True, None, None)),
        (False, (False, "not valid", None)),
        ("too short", (False, "too short", None)),
        ({"is_valid": True}, (True, None, None)),
        ({"is_valid": False}, (False, "not valid", None)),
        ({"is_valid": False, "error": "no", "score": 3}, (False, "no", '{"score": 3}')),
    ],
)
def test_every_result_of_a_function_becomes_a_verdict(said: Any, expected: tuple[Any, ...]) -> None:
    """True, null, text and mappings are converted to one shape."""
    (verdict,) = verdicts(call(lambda _: said), ["x"])
    assert (verdict["is_valid"], verdict["error"], verdict["details"]) == expected


def test_exceptions_of_a_function() -> None:
    """ValueError and AssertionError are verdicts; other exceptions and invalid verdicts are errors."""
    good, bad, none = verdicts(call(check_number), ["3", "x", None])
    assert good["is_valid"]
    assert bad["error"] == "invalid literal for int() with base 10: 'x'"
    assert none is None
    column = make_column(call(lambda _: 3), Environment())
    assert column.call is not None
    with pytest.raises(BadOutput, match="a verdict must be a mapping with a boolean is_valid, not 3"):
        column.call.function(pl.DataFrame({"v": ["x"]}))
    column = make_column(call(lambda value: value.nothing), Environment())
    assert column.call is not None
    with pytest.raises(AttributeError):
        column.call.function(pl.DataFrame({"v": ["x"]}))


def check_number(value: str) -> None:
    """Raise unless the text is a number."""
    int(value)


def test_a_function_gets_several_columns_in_order() -> None:
    """It gets their values in order."""
    column = make_column(call(lambda a, b: a < b, of=["a", "b"]), Environment())
    assert column.requires == ("a", "b")
    assert column.call is not None
    found = column.call.function(pl.DataFrame({"b": [2, 0], "a": [1, 1]}))
    assert [each["is_valid"] for each in found] == [True, False]


def test_a_function_by_name_is_imported_if_allowed(tmp_path: Path) -> None:
    """Its module may be beside the recipe."""
    (tmp_path / "checks_beside_recipe.py").write_text(
        "def short(text):\n    return len(text) < 3\nasync def late(x): ...\n"
    )
    spec = call("checks_beside_recipe:short")
    assert spec.code() == ("checks_beside_recipe:short",)
    found = verdicts(spec, ["ab", "abc"], base=tmp_path)
    assert [each["is_valid"] for each in found] == [True, False]
    with pytest.raises(ConfigError, match="is user-defined code, which needs --allow-code"):
        make_column(spec, Environment(base=tmp_path, access=Access(folder=tmp_path)))
    with pytest.raises(ConfigError, match="must not be async"):
        make_column(call("checks_beside_recipe:late"), Environment(base=tmp_path))
    with pytest.raises(ConfigError, match="is not a function"):
        make_column(call("sys:path"), Environment(base=tmp_path))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "perl"}, "kind must be 'python' or 'sql' or 'json_schema' or 'callable' or 'remote', not 'perl'"),
        ({"kind": "python", "of": []}, "of must be the name of a column"),
        ({"kind": "python", "of": ["a", "b"]}, "kind python validates one column"),
        ({"kind": "python", "dialect": "mysql"}, "dialect is for kind sql, and the kind is python"),
        ({"kind": "python", "lint": "yes"}, "lint must be True or False"),
        ({"kind": "python", "rules": []}, "rules must be codes of ruff's rules"),
        ({"kind": "python", "rules": ["--fix"]}, "rules must be codes of ruff's rules"),
        ({"kind": "sql", "dialect": 3}, "dialect must be the name of a dialect or"),
        ({"kind": "json_schema"}, "schema is required for kind json_schema"),
        ({"kind": "json_schema", "schema": 3}, "schema must be a JSON Schema"),
        ({"kind": "callable", "function": 3}, "function must be a function or 'module:name', not 3"),
        ({"kind": "callable"}, "function is required for kind callable"),
        ({"kind": "callable", "function": "name"}, "function must be a function"),
        ({"kind": "remote"}, "url is required for kind remote"),
        ({"kind": "remote", "url": "ftp://x"}, "url must be an http or https URL"),
        ({"kind": "remote", "url": "http://me:secret@x"}, "url must not contain a user name or password"),
        (
            {"kind": "remote", "url": "http://x", "api_key_env": "sk-1"},
            "api_key_env must be the name of an environment",
        ),
        ({"kind": "remote", "url": "http://x", "headers": {"a": 1}}, "headers must be a mapping of texts to texts"),
    ],
)
def test_invalid_validations_are_rejected(fields: dict[str, Any], message: str) -> None:
    """The message names the field and shows no secret."""
    with pytest.raises(ConfigError, match=f"column 'ok': {message}") as caught:
        Validation("ok", **{"of": "v", **fields})
    assert "secret" not in str(caught.value)
    assert "sk-1" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "spec", "extra"),
    [
        ("sqlglot", Validation("ok", of="v", kind="sql"), "sql"),
    ],
)
def test_missing_libraries_are_named(
    module: str, spec: Validation, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the extra that installs the library."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"install seedbed\[{extra}\]"):
        make_column(spec, Environment())


async def validated(spec: Validation, values: list[Any]) -> pl.DataFrame:
    """Run a build with a remote validation under trio."""
    source = seedbed.Column("v", lambda rows: [values[row] for row in rows], kind="from_scratch")
    async with open_http() as client:
        column = spec.to_column(Environment(connections=[client]))
        async with seedbed.open_build([source, column], rows=len(values)) as running:
            frames = [group.to_polars() async for group in running]
    return frames[0]


def remote(url: str, **fields: Any) -> Validation:
    """Validate by a server."""
    return Validation("ok", of="v", kind="remote", url=url, **fields)


def test_a_server_validates_each_row() -> None:
    """Each row is one call, null none; other fields of the answer are in `details`."""
    asked: list[Any] = []

    def answer(body: Any, headers: Any) -> Answer:
        asked.append(body)
        verdict = {"is_valid": len(body["v"]) < 3, "length": len(body["v"])}
        return 200, {"content-type": "application/json"}, json.dumps(verdict).encode()

    with serving(answer) as url:
        frame = trio.run(validated, remote(url), ["ab", "abc", None])
    assert frame["ok"].to_list() == [
        {"is_valid": True, "error": None, "details": '{"length": 2}'},
        {"is_valid": False, "error": "not valid", "details": '{"length": 3}'},
        None,
    ]
    assert sorted(asked, key=str) == [{"v": "ab"}, {"v": "abc"}]


def test_rate_limits_and_server_errors_lose_no_row() -> None:
    """After a 429 and a 503 the calls are sent again."""
    seen: dict[str, int] = {}

    def answer(body: Any, headers: Any) -> Answer:
        seen[body["v"]] = seen.get(body["v"], 0) + 1
        if seen[body["v"]] == 1:
            return (429, {"retry-after": "0"}, b"slow down") if body["v"] == "a" else (503, {}, b"")
        return 200, {}, b'{"is_valid": true}'

    with serving(answer) as url:
        frame = trio.run(validated, remote(url), ["a", "b"])
    assert [each["is_valid"] for each in frame["ok"].to_list()] == [True, True]
    assert seen == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (429, b"later", RateLimited, "the validator 'http.*' answered 429: later"),
        (500, b"oops", Retryable, "the validator 'http.*' answered 500: oops"),
        (404, b"what?", ModelMisconfigured, "the validator 'http.*' answered 404"),
        (401, b"bad key TOPSECRET", ModelMisconfigured, "answered 401: bad key …; check its url and the key"),
        (200, b"<html>", ModelMisconfigured, "answered 200 with a page in place of JSON: <html>; check its url"),
        (200, b"[" * 100_000, Retryable, "answered 200 with malformed JSON"),
        (200, b"[1]", BadOutput, "a verdict must be a mapping"),
    ],
)
async def test_failures_of_a_server(
    status: int, body: bytes, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is the engine's failure class for it; the key is sent and never shown."""
    monkeypatch.setenv("VALIDATOR_KEY", "TOPSECRET")
    keys: list[str] = []

    def answer(_: Any, headers: Any) -> Answer:
        keys.append(headers["authorization"])
        return status, {}, body

    with serving(answer) as url:
        async with open_http() as client:
            column = remote(url, api_key_env="VALIDATOR_KEY").to_column(Environment(connections=[client]))
            assert column.call is not None
            assert column.problem is None
            with pytest.raises(error, match=message) as caught:
                await column.call.function(FakeContext(), v="x")
    assert keys == ["Bearer TOPSECRET"]
    assert "TOPSECRET" not in str(caught.value)
    assert "TOPSECRET" not in repr(column)


async def test_a_server_needs_a_key_and_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing key is found when the column is created; without a build the column cannot call."""
    monkeypatch.delenv("VALIDATOR_KEY", raising=False)
    with pytest.raises(ConfigError, match="column 'ok': the environment variable VALIDATOR_KEY is not set"):
        make_column(remote("http://x", api_key_env="VALIDATOR_KEY"), Environment())
    column = make_column(remote("http://127.0.0.1:9/check"), Environment())
    assert column.key == "127.0.0.1:9/validation"
    assert column.call is not None
    with pytest.raises(ConfigError, match="connections are open only while a build runs"):
        await column.call.function(FakeContext(), v="x")
