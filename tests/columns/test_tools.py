"""Tools of chat columns: Python functions and MCP servers, called by a scripted model in real builds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
import pytest
import trio
from tooling import calls_in, http_server, stdio_command

import seedbed as sb
from seedbed.columns.judge import Judge
from seedbed.columns.spec import Environment
from seedbed.columns.structured import LLMStructured
from seedbed.columns.text import LLMCode, LLMText
from seedbed.columns.tool_sources import FunctionTool, MCPServer
from seedbed.columns.tools import bind_function
from seedbed.errors import ConfigError, DatasetGenerationError, Retryable
from seedbed.models import ChatAnswer, ChatRequest, Scripted, Tokens, ToolCall
from seedbed.testing import virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def calling(*calls: tuple[str, dict[str, Any]], then: str = "done") -> Callable[[ChatRequest], ChatAnswer]:
    """A model that makes these calls, one a turn, and then answers with the results and a word."""

    def answer(request: ChatRequest) -> ChatAnswer:
        results = [message.content for message in request.messages if message.role == "tool"]
        if len(results) < len(calls):
            name, arguments = calls[len(results)]
            call = ToolCall(id=f"call_{len(results)}", name=name, arguments=json.dumps(arguments))
            return ChatAnswer(text="", tool_calls=(call,))
        return ChatAnswer(text=" | ".join([*results, then]))

    return answer


def build(spec: Any, answers: Any, *, rows: int = 1, **options: Any) -> list[dict[str, Any]]:
    """The rows of one chat column, in virtual time."""
    recipe = sb.Recipe(columns=[spec], models={"m": Scripted(answers=answers)})
    with virtual_time():
        found: list[dict[str, Any]] = sb.preview(recipe, rows=rows, **options).to_polars().to_dicts()
    return found


def reason(spec: Any, answers: Any) -> str:
    """Why the only row of one chat column was dropped."""
    recipe = sb.Recipe(columns=[spec], models={"m": Scripted(answers=answers)})
    with virtual_time():
        (drop,) = sb.preview(recipe, rows=1).report.dropped
    return drop.reason


def text(*tools: Any, **options: Any) -> LLMText:
    """A text column with tools."""
    return LLMText("x", model="m", prompt="Go.", tools=tools, **options)


@attrs.frozen
class Place:
    """Where something is."""

    name: str
    floor: int = 0


def find(name: str, *, kind: Literal["shop", "house"] = "shop", near: Place | None = None) -> dict[str, Any]:
    """Finds a place."""
    return {"name": name, "kind": kind, "near": None if near is None else near.name}


def bind(function: Any, **options: Any) -> Any:
    """The tool of a function."""
    return bind_function(FunctionTool(function=function, **options), Environment(), "column 'x', tools[0]")


def test_the_schema_of_a_function_is_that_of_its_parameters() -> None:
    """Types, defaults, choices and nested values are in the schema; the name and the docstring describe the tool."""
    tool = bind(find).tool
    assert (tool.name, tool.description) == ("find", "Finds a place.")
    assert tool.parameters["required"] == ["name"]
    assert tool.parameters["additionalProperties"] is False
    assert tool.parameters["properties"]["name"] == {"type": "string"}
    assert tool.parameters["properties"]["kind"]["enum"] == ["house", "shop"]
    assert tool.parameters["$defs"]["Place"]["required"] == ["name"]
    named = bind(find, name="search", description="Searches.").tool
    assert (named.name, named.description) == ("search", "Searches.")


def untyped(x) -> None:  # type: ignore[no-untyped-def]
    """A tool whose arguments nothing describes."""


def variadic(*x: int) -> None:
    """A tool with any number of arguments."""


def opaque(x: trio.Event) -> None:
    """A tool that JSON cannot call."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (untyped, "parameter 'x' of 'untyped' has no annotation; annotate it, such as x: str"),
        (variadic, "has the parameter '*x: int'; a tool has parameters by name only"),
        (opaque, "the parameters of 'opaque' have no JSON Schema"),
        (lambda: 0, "the name of tool '<lambda>' must be 1 to 64 letters, digits, _ and -; give it another name"),
        ("json:missing", "'json' has no 'missing'"),
    ],
)
def test_a_function_that_is_no_tool_is_reported_before_anything_runs(function: Any, message: str) -> None:
    """The message names the column, the place in it, the parameter and what to do."""
    with pytest.raises(DatasetGenerationError) as raised:
        build(text(function), "never")
    assert message in str(raised.value)
    assert "column 'x', tools" in str(raised.value)


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([5], "tools[0]: a tool is a function, 'module:name', or a mapping"),
        ([{"nme": "x"}], "tools[0]: a tool needs a function, or the command or the url of an MCP server"),
        (
            [find, {"function": find, "idempotnt": True}],
            "tools[1]: unknown field 'idempotnt'; did you mean",
        ),
        ([{"command": "x", "url": "http://h/mcp"}], "tools[0]: an MCP server has either a command or a url"),
        ([{"url": "http://h/mcp", "env": ["A"]}], "env is for an MCP server with a command"),
        ([{"url": "http://h/mcp", "headers": {"Authorization": "Bearer 1"}}], "looks like a secret"),
        ([{"url": "ftp://h"}], "url"),
        ([{"function": find, "timeout": 0}], "timeout must be seconds above 0"),
    ],
)
def test_mistakes_in_tools_are_named(tools: Any, message: str) -> None:
    """Each by its place in the list."""
    with pytest.raises(ConfigError) as raised:
        text(*tools)
    assert message in str(raised.value)


def test_two_tools_of_one_name_are_an_error() -> None:
    """The message names it."""
    with pytest.raises(DatasetGenerationError, match="duplicate tool 'find'; give it another name"):
        build(text(find, find), "never")


async def later(x: int) -> int:
    """Answers after a while."""
    await trio.sleep(100)
    return x


def test_results_and_errors_go_back_to_the_model() -> None:
    """JSON, text, what a function raises, arguments that do not fit, and tools that there are not."""

    def shout(word: str) -> str:
        if word == "no":
            raise LookupError("not that word")
        return word.upper()

    def loop(word: str) -> Any:
        """Returns what JSON cannot hold, or text that nothing can send."""
        found: list[Any] = []
        found.append(found)
        return "\ud800" if word == "text" else found

    calls = calling(
        ("find", {"name": "a", "near": {"name": "b"}}),
        ("loop", {"word": "text"}),
        ("loop", {"word": "json"}),
        ("shout", {"word": "hé"}),
        ("shout", {"word": "no"}),
        ("shout", {"word": 7}),
        ("shout", {"word": "a", "more": 1}),
        ("whisper", {}),
    )
    (row,) = build(text(find, shout, loop), calls)
    assert row["x"].split(" | ") == [
        '{"name": "a", "kind": "shop", "near": "b"}',
        "?",
        "Error: ValueError: Circular reference detected",
        "HÉ",
        "Error: LookupError: not that word",
        "Error: the arguments do not fit: Expected `str`, got `int` - at `$.word`",
        "Error: the arguments do not fit: Object contains unknown field `more`",
        "Error: unknown tool 'whisper'; there are find, shout, loop",
        "done",
    ]


def test_limits_of_time_size_and_turns() -> None:
    """A result that takes too long or is too long is cut; a model that never stops calling fails its cell."""
    slow = FunctionTool(function=later, timeout=10)
    assert build(text(slow), calling(("later", {"x": 1})))[0]["x"] == "Error: no result within 10 s | done"
    assert build(text(later), calling(("later", {"x": 1})))[0]["x"].startswith("Error: no result within 60 s")
    patient = FunctionTool(function=later, timeout=101)
    assert build(text(patient), calling(("later", {"x": 1})))[0]["x"] == "1 | done"
    long = FunctionTool(function=find, max_result=9)
    cut = build(text(long), calling(("find", {"name": "a"})))[0]["x"]
    assert cut == '{"name": … (cut off: 43 characters, 9 are shown) | done'
    failed = reason(text(find, max_tool_turns=3), calling(*[("find", {"name": "a"})] * 4))
    assert "still called tools after 3 turns of them; raise max_tool_turns" in failed
    assert build(text(find, max_tool_turns=4), calling(*[("find", {"name": "a"})] * 4))


def test_calls_of_one_turn_are_bounded() -> None:
    """A model that calls a tool a thousand times in one answer gets an error for the calls beyond a limit."""
    seen: list[int] = []

    def note(x: int) -> str:
        seen.append(x)
        return "ok"

    def answer(request: ChatRequest) -> ChatAnswer:
        results = [message.content for message in request.messages if message.role == "tool"]
        calls = tuple(ToolCall(id=str(x), name="note", arguments=f'{{"x": {x}}}') for x in range(1000))
        return ChatAnswer(text=f"{len(results)} {results[-1]}") if results else ChatAnswer(text="", tool_calls=calls)

    assert build(text(note), answer)[0]["x"] == "1000 Error: not run, because one answer may call at most 32 tools"
    assert seen == list(range(32))


def test_the_trace_has_the_calls() -> None:
    """In the chat format: the calls of the assistant, and the results with the ids of their calls."""
    (row,) = build(text(find, trace=True), calling(("find", {"name": "a"})))
    user, called, result, last = row["x__trace"]
    assert user == {"role": "user", "content": "Go.", "tool_calls": None, "tool_call_id": None}
    function = {"name": "find", "arguments": '{"name": "a"}'}
    assert called["tool_calls"] == [{"id": "call_0", "type": "function", "function": function}]
    assert (result["role"], result["tool_call_id"]) == ("tool", "call_0")
    assert last["content"].endswith("done")


def test_other_chat_columns_have_tools_too() -> None:
    """Structured values, code and judges."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    spec = LLMStructured("x", model="m", prompt="Go.", schema=schema, tools=[find])

    def last(request: ChatRequest, text: str) -> ChatAnswer:
        called = calling(("find", {"name": "a"}))(request)
        return called if called.tool_calls else ChatAnswer(text=text)

    assert build(spec, lambda request: last(request, '{"name": "b"}')) == [{"x": {"name": "b"}}]
    code = LLMCode("x", model="m", prompt="Go.", language="python", tools=[find])
    assert build(code, lambda request: last(request, "```python\npass\n```")) == [{"x": "pass"}]
    judge = Judge("x", model="m", prompt="Go.", scores={"good": "1 to 5"}, explain=False, tools=[find])
    assert build(judge, lambda request: last(request, '{"good": 3}')) == [{"x": {"good": 3}}]


def test_n_answers_are_a_list() -> None:
    """Each answer has a call, a seed, a trace and reasoning of its own."""
    spec = LLMText("x", model="m", prompt="Go.", n=3, trace=True, reasoning=True)
    recipe = sb.Recipe(columns=[spec], models={"m": Scripted(answers="{seed}", reasoning="why")})
    found = sb.preview(recipe, rows=2)
    for row in found.to_polars().to_dicts():
        assert len(set(row["x"])) == 3
        assert [trace[-1]["content"] for trace in row["x__trace"]] == row["x"]
        assert row["x__reasoning_content"] == ["why"] * 3
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    (row,) = build(LLMStructured("x", model="m", prompt="Go.", schema=schema, n=2), '{"a": 1}')
    assert row == {"x": [{"a": 1}, {"a": 1}]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dedupe": True, "n": 2}, "dedupe cannot be combined with n"),
        ({"dedupe": True, "tools": [find]}, "dedupe cannot be combined with tools"),
        ({"n": 2, "repair_with": "valid"}, "the column 'valid' would validate a list"),
        ({"n": 0}, "n must be a whole number, 1 or more"),
        ({"n": 2, "dtype": str}, "holds a list of texts"),
        ({"parameters": {"n": 2}}, "parameters cannot have 'n', which is a field of the column"),
    ],
)
def test_what_n_and_tools_exclude_is_named(options: dict[str, Any], message: str) -> None:
    """Combinations that have no meaning are errors of the recipe."""
    with pytest.raises(ConfigError, match=message):
        LLMText("x", **({"model": "m", "prompt": "Go."} | options))


def test_a_tool_is_not_run_again_for_a_retried_call() -> None:
    """A model call that fails after a tool ran is sent again, and the tool's result is used as it was."""
    ran: list[int] = []

    def count(x: int) -> str:
        ran.append(x)
        return str(len(ran))

    failures: Iterator[Exception | None] = iter([Retryable("later"), None, None])

    def answer(request: ChatRequest) -> ChatAnswer:
        if len(request.messages) > 1 and (failure := next(failures)) is not None:
            raise failure
        return calling(("count", {"x": 5}))(request)

    assert build(text(count), answer) == [{"x": "1 | done"}]
    assert ran == [5]


@pytest.mark.parametrize(("idempotent", "times"), [(True, 2), (False, 1)])
def test_a_rejected_answer_does_not_run_a_tool_twice(idempotent: bool, times: int) -> None:
    """An empty answer starts the cell over; a tool that is not idempotent gives the result that it gave before."""
    ran: list[int] = []

    def count(x: int) -> str:
        ran.append(x)
        return str(len(ran))

    empty: Iterator[str] = iter(["", "fine", "fine"])

    def answer(request: ChatRequest) -> ChatAnswer:
        called = calling(("count", {"x": 5}))(request)
        return called if called.tool_calls else ChatAnswer(text=next(empty) and called.text)

    tool = FunctionTool(function=count, idempotent=idempotent)
    assert build(text(tool), answer) == [{"x": f"{times} | done"}]
    assert len(ran) == times


@pytest.mark.parametrize("idempotent", [True, False])
def test_another_model_gets_the_results_of_calls_that_were_made(idempotent: bool) -> None:
    """Where the first model's answer cannot be repaired, the second asks for the same call, which is not run again."""
    ran: list[int] = []

    def count(x: int) -> str:
        ran.append(x)
        return str(len(ran))

    def answering(last: str) -> Callable[[ChatRequest], ChatAnswer]:
        def answer(request: ChatRequest) -> ChatAnswer:
            called = calling(("count", {"x": 5}), ("count", {"x": 5}))(request)
            return called if called.tool_calls else ChatAnswer(text=last)

        return answer

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = [FunctionTool(function=count, idempotent=idempotent)]
    spec = LLMStructured("x", models=["s", "l"], prompt="Go.", schema=schema, max_repairs=0, tools=tools)
    models = {
        "s": Scripted(model="s", answers=answering("no JSON")),
        "l": Scripted(model="l", answers=answering('{"a": 2}')),
    }
    with virtual_time():
        frame = sb.preview(sb.Recipe(columns=[spec], models=models), rows=1).to_polars()
    assert frame["x"].to_list() == [{"a": 2}]
    # Twice, because the model asked for two equal calls.
    assert ran == [5, 5]


def test_a_tool_that_may_have_run_is_not_run_again() -> None:
    """A cell that times out within a tool that is not idempotent fails, with a reason that says so."""
    ran: list[int] = []

    async def stuck(x: int) -> str:
        ran.append(x)
        await trio.sleep_forever()
        return ""

    tool = FunctionTool(function=stuck, idempotent=False, timeout=1000)
    failed = reason(text(tool, timeout=5), calling(("stuck", {"x": 1})))
    assert "tool 'stuck' was started, but its result is not known" in failed
    assert ran == [1]


def test_a_tool_that_is_not_idempotent_needs_the_journal_of_cells(tmp_path: Path) -> None:
    """With durability row_group a resumed run could not know that it has run: the run stops before it runs."""
    ran: list[int] = []

    def count(x: int) -> str:
        ran.append(x)
        return "1"

    recipe = sb.Recipe(
        columns=[text(FunctionTool(function=count, idempotent=False))],
        models={"m": Scripted(answers=calling(("count", {"x": 1})))},
    )
    config = sb.RunConfig(durability="row_group")
    with pytest.raises(sb.errors.BuildStopped, match="set durability to 'cell'"):
        sb.build(recipe, rows=1, out=tmp_path / "out", config=config)
    assert not ran


# MCP


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_tools_of_a_server_in_another_process(transport: str, tmp_path: Path) -> None:
    """Both transports: tools are listed, called by names that providers accept, and fail with words for the model."""
    log = tmp_path / "log"
    calls = calling(
        ("add", {"a": 2, "b": 3}),
        ("shop_book", {"what": "a room"}),
        ("add", {"a": "x", "b": 3}),
        ("fail", {"how": "\ud800"}),
        ("fail", {"how": "long"}),
    )
    with http_server(log) as url:
        where: dict[str, Any] = {"command": stdio_command(log)} if transport == "stdio" else {"url": url}
        spec = text(MCPServer(**where, max_result=50), trace=True)
        recipe = sb.Recipe(columns=[spec], models={"m": Scripted(answers=calls)})
        (row,) = sb.preview(recipe, rows=1).to_polars().to_dicts()
    added, booked, wrong, surrogate, long, last = row["x"].split(" | ")
    assert surrogate.startswith("Error: the arguments do not fit")
    assert (added, booked, last) == ("5", "booked a room", "done")
    assert wrong.startswith("Error: ")
    assert long == f"{'x' * 50}… (cut off: 100000 characters, 50 are shown)"
    assert calls_in(log) == ["add 2 3", "book a room", "fail long"]


def test_a_server_that_ends_is_started_again(tmp_path: Path) -> None:
    """The call that it did not answer is retried; a tool that is not idempotent would not be."""
    log = tmp_path / "log"
    calls = calling(("fail", {"how": "exit"}))
    recipe = sb.Recipe(columns=[text(MCPServer(command=stdio_command(log)))], models={"m": Scripted(answers=calls)})
    config = sb.RunConfig(backoff_base=0.001, backoff_max=0.01)
    (drop,) = sb.preview(recipe, rows=1, config=config).report.dropped
    assert "the connection was lost" in drop.reason
    # Each attempt found a server.
    assert set(calls_in(log)) == {"fail exit"}
    assert len(calls_in(log)) > 1


def test_a_server_that_cannot_be_used_ends_the_run_at_its_start(tmp_path: Path) -> None:
    """The message has the command, what the program wrote, or the tools that there are."""
    log = tmp_path / "log"

    def start(**options: Any) -> str:
        spec = text(MCPServer(**options))
        with pytest.raises(ConfigError) as raised:
            sb.preview(sb.Recipe(columns=[spec], models={"m": Scripted()}), rows=1)
        return str(raised.value)

    broken = start(command=stdio_command(log, "broken"))
    assert broken.startswith("MCP server '")
    assert "it wrote: no database" in broken
    assert "no-such-program" in start(command="no-such-program")
    assert "MCP server 'http://127.0.0.1:1/mcp'" in start(url="http://127.0.0.1:1/mcp")
    missing = start(command=stdio_command(log), only=["add", "subtract"])
    assert "has no tool 'subtract', only add, shop.book, fail, wait" in missing
    assert "UNSET_TOKEN, which is not set" in start(url="http://127.0.0.1:1/mcp", headers={"A": "${UNSET_TOKEN}"})


def test_a_call_of_a_server_that_takes_too_long_is_cancelled(tmp_path: Path) -> None:
    """The model is told, and the server goes on with other calls."""
    log = tmp_path / "log"
    server = MCPServer(command=stdio_command(log), timeout=0.2, only=["wait", "add"], prefix="t_")
    calls = calling(("t_wait", {}), ("t_add", {"a": 1, "b": 1}))
    recipe = sb.Recipe(columns=[text(server)], models={"m": Scripted(answers=calls)})
    (row,) = sb.preview(recipe, rows=1).to_polars().to_dicts()
    assert row["x"] == "Error: no result within 0.2 s | 2 | done"


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_servers_are_used_under_asyncio_as_well(transport: str, tmp_path: Path) -> None:
    """A build in a guest run on asyncio's loop speaks to both kinds of servers."""
    log = tmp_path / "log"
    with http_server(log) as url:
        where: dict[str, Any] = {"command": stdio_command(log)} if transport == "stdio" else {"url": url}
        calls = calling(("add", {"a": 2, "b": 3}))
        recipe = sb.Recipe(columns=[text(MCPServer(**where))], models={"m": Scripted(answers=calls)})
        dataset = asyncio.run(sb.build_async(recipe, rows=3, out=tmp_path / "out"))
    assert dataset.to_polars()["x"].to_list() == ["5 | done"] * 3


def test_a_simulation_runs_no_tool() -> None:
    """Nor does it start a server; a note says how to tell it the number of calls."""
    recipe = sb.Recipe(columns=[text(find, MCPServer(command="no-such-program"))], models={"m": Scripted(latency=1.0)})
    result = sb.simulate(recipe, rows=50, seeds=1)
    assert result.base.written.mean == 50
    assert "column 'x': tools are not simulated; set how many calls a cell makes" in result.base.notes


def test_a_budget_that_ends_in_a_tool_loop_costs_no_answer(tmp_path: Path) -> None:
    """The answer and the result before the stop are used by the resumed run."""
    ran: list[int] = []
    asked: list[int] = []

    def count(x: int) -> str:
        ran.append(x)
        return str(len(ran))

    def answer(request: ChatRequest) -> ChatAnswer:
        asked.append(len(request.messages))
        answered = calling(("count", {"x": 5}))(request)
        return attrs.evolve(answered, tokens=Tokens(input=60))

    def recipe(**run: Any) -> sb.Recipe:
        model = Scripted(answers=answer, parameters={"max_tokens": 50})
        return sb.Recipe(columns=[text(FunctionTool(function=count, idempotent=False))], models={"m": model}, run=run)

    with virtual_time():
        with pytest.raises(sb.BudgetExceeded):
            sb.build(recipe(max_tokens=100), rows=1, out=tmp_path / "out")
        assert (ran, asked) == ([5], [1])
        dataset = sb.build(recipe(), rows=1, out=tmp_path / "out", resume=True)
    assert dataset.to_polars()["x"].to_list() == ["1 | done"]
    assert (ran, asked) == ([5], [1, 3])


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_server_ends_with_the_build_that_was_killed(tmp_path: Path) -> None:
    """Its standard input ends with the process that started it."""
    log, script = tmp_path / "log", tmp_path / "build.py"
    script.write_text(
        f"""
import os, signal, seedbed as sb
from seedbed.models import ChatAnswer, Scripted, ToolCall
def answer(request):
    if len(request.messages) > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ChatAnswer(text="", tool_calls=(ToolCall(id="1", name="add", arguments='{{"a": 1, "b": 2}}'),))
tool = sb.MCPServer(command={stdio_command(log)!r})
column = sb.LLMText("x", model="m", prompt="Go.", tools=[tool])
sb.preview(sb.Recipe(columns=[column], models={{"m": Scripted(answers=answer)}}), rows=1)
""",
        encoding="utf-8",
    )
    ended = subprocess.run([sys.executable, str(script)], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert calls_in(log) == ["add 1 2"]

    def servers() -> list[Path]:
        found: list[Path] = []
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                found += [process] if str(log).encode() in process.read_bytes() else []
        return found

    until = time.monotonic() + 30
    while servers() and time.monotonic() < until:
        time.sleep(0.02)
    assert not servers()


FILE = """
columns:
  - name: x
    type: llm-text
    model: m
    prompt: Go.
    tools: {tools}
models: {{m: {{type: scripted}}}}
"""


def test_a_recipe_file_needs_permission_for_code_and_names_its_servers(tmp_path: Path) -> None:
    """Functions and commands need --allow-code, header variables --allow-env; servers over HTTP are contacts."""
    path = tmp_path / "recipe.yaml"

    def load(tools: str, **options: Any) -> sb.Recipe:
        path.write_text(FILE.format(tools=tools), encoding="utf-8")
        return sb.load_recipe(path, **options)

    for tools, named in (
        ("['beside:square']", "'beside:square'"),
        ("[{command: [python, server.py]}]", "'python server.py'"),
    ):
        with pytest.raises(DatasetGenerationError, match="needs --allow-code") as raised:
            load(tools)
        assert named in str(raised.value)
    (tmp_path / "beside.py").write_text("def square(x: int) -> int:\n    return x * x\n", encoding="utf-8")
    recipe = load("['beside:square']", allow_code=True)
    assert sb.preview(recipe, rows=1).to_polars().height == 1
    sys.modules.pop("beside", None)
    recipe = load("[{url: 'http://h:1/mcp?team=1', headers: {Authorization: 'Bearer ${TOKEN}'}}]")
    (contact,) = recipe.contacts()
    assert str(contact) == "columns.x: http://h:1/mcp?… (is sent TOKEN)"
    assert recipe.access_problems() == [
        "columns.x: headers send the environment variable TOKEN; to allow it, pass --allow-env TOKEN"
    ]


def test_edited_code_of_a_tool_is_a_change_of_the_recipe(tmp_path: Path) -> None:
    """A resume with another function of the same name is refused, by the place of the tool."""

    def recipe(function: Any) -> sb.Recipe:
        function.__name__ = function.__qualname__ = "tool"
        return sb.Recipe(columns=[text(function)], models={"m": Scripted(answers="fine")})

    def one(x: int) -> int:
        return x + 1

    def other(x: int) -> int:
        return x + 2

    sb.build(recipe(one), rows=2, out=tmp_path / "out")
    with pytest.raises(sb.errors.SeedbedError, match=r"columns\.x\.tools\[0\]: its code was edited"):
        sb.build(recipe(other), rows=4, out=tmp_path / "out", resume=True)


def test_a_tool_runs_without_a_permit() -> None:
    """A retried cell has the model's answer already: while its tool runs, other cells use the only permit."""
    running: list[str] = []
    most = 0

    async def look(name: str) -> str:
        nonlocal most
        if name not in tried:
            tried.add(name)
            raise Retryable("later")
        running.append(name)
        most = max(most, len(running))
        await trio.sleep(30)
        running.remove(name)
        return name

    def answer(request: ChatRequest) -> ChatAnswer:
        return calling(("look", {"name": request.messages[0].content}))(request)

    def numbers(rows: range) -> list[int]:
        return list(rows)

    tried: set[str] = set()
    spec = LLMText("x", model="m", prompt="Row {{ n }}", tools=look)
    model = Scripted(answers=answer, max_parallel_requests=1)
    recipe = sb.Recipe(columns=[sb.Custom("n", numbers), spec], models={"m": model})
    with virtual_time():
        found = sb.preview(recipe, rows=4).to_polars()["x"].to_list()
    assert found == [f"Row {n} | done" for n in range(4)]
    assert most == 4
