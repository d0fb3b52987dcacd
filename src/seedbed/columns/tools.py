"""Tools that a chat model calls while it fills a cell.

A model asks for calls, their results go back to it, until it answers without a call. Each result is stored in the
journal like an answer; a tool that is not idempotent is never run twice for what may have been one call.
"""

from __future__ import annotations

import inspect
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import msgspec
import polars as pl
import trio

from ..errors import BadOutput, CellError, ConfigError
from ..models.base import Message, Tool, call_key
from ..models.mcp import ToolError
from ..models.openai import call_body
from ..runtime.asyncio import for_runtime
from ..runtime.threads import run_abandonable
from .base import UncallableError, read_parameters
from .tool_sources import BoundTool, FunctionTool, MCPServer

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping

    from ..models.base import ChatAnswer, ToolCall
    from ..models.mcp import OpenServer
    from .base import CellContext, Model
    from .spec import ColumnSpec, Environment
    from .tool_sources import ToolSource

T = TypeVar("T")

# Names that all providers accept.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
# The tool by which Anthropic's client asks for an answer that fits a schema.
_RESERVED = "answer"
# Calls of one answer beyond this are not run.
_MAX_CALLS = 32
_MAX_TOOLS = 128


def bind_function(spec: FunctionTool, environment: Environment, where: str) -> BoundTool:
    """The tool of a function. Raises `ConfigError` if its parameters describe no schema."""
    function: Any = spec.function
    if isinstance(function, str):
        function = environment.import_object(function, where)
        if not callable(function):
            raise ConfigError(f"{where}: {spec.function!r} is not a function but {function!r}")
    name = spec.name or str(getattr(function, "__name__", ""))
    arguments, schema = _arguments(function, name, where)
    description = spec.description or inspect.getdoc(function) or ""
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__)
    call = for_runtime(function, is_async=is_async, runtime=None, adapt=lambda value, _crossing: value)

    async def run(text: str) -> str:
        given = _decoded(text, arguments)
        keywords = {field: getattr(given, field) for field in arguments.__struct_fields__}
        try:
            work = partial(call, **keywords)
            result = await (work() if is_async else run_abandonable(work))
            return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except CellError:
            raise
        except Exception as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    tool = Tool(name=name, description=description, parameters=schema)
    return BoundTool(tool=tool, run=run, source=spec, is_idempotent=spec.idempotent)


def _arguments(function: Callable[..., Any], name: str, where: str) -> tuple[type[Any], dict[str, Any]]:
    """The type of the arguments of a function, and their JSON Schema."""
    try:
        parameters = read_parameters(function)
    except UncallableError as error:
        raise ConfigError(f"{where} {error}") from None
    fields: list[Any] = []
    for each in parameters:
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise ConfigError(f"{where}: {name!r} has the parameter {str(each)!r}; a tool has parameters by name only")
        if each.annotation is each.empty or isinstance(each.annotation, str):
            what = "no annotation" if each.annotation is each.empty else f"an unknown annotation {each.annotation!r}"
            raise ConfigError(
                f"{where}: parameter {each.name!r} of {name!r} has {what}; annotate it, such as {each.name}: str"
            )
        fields.append((each.name, each.annotation, *_default(each.default)))
    try:
        arguments = msgspec.defstruct("arguments", fields, forbid_unknown_fields=True, kw_only=True)
        (_,), components = msgspec.json.schema_components((arguments,), ref_template="#/$defs/{name}")
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{where}: the parameters of {name!r} have no JSON Schema: {error}") from error
    schema = components.pop("arguments")
    schema.pop("title", None)
    return arguments, schema | ({"$defs": components} if components else {})


def _default(value: Any) -> tuple[Any, ...]:
    if value is inspect.Parameter.empty:
        return ()
    # msgspec copies empty lists, sets and dicts, and rejects other values that can be changed.
    is_plain = isinstance(value, str | bytes | int | float | bool | type(None) | tuple)
    return (value if is_plain or not value else msgspec.field(default_factory=lambda: value),)


def bind_server(source: MCPServer, server: OpenServer, where: str) -> list[BoundTool]:
    """The tools that a column takes from an open server. Raises `ConfigError` if it lacks one."""
    listed = server.tools
    if missing := [name for name in source.only if name not in listed]:
        known = ", ".join(listed) or "none"
        raise ConfigError(f"{where}: MCP server {str(source.address)!r} has no tool {missing[0]!r}, only {known}")
    bound: list[BoundTool] = []
    for name in source.only or listed:
        found = listed[name]
        # A dot and a slash are allowed by MCP, and by no provider.
        tool = attrs.evolve(found.tool, name=source.prefix + _OTHER.sub("_", name))
        is_idempotent = found.is_safe if source.idempotent is None else source.idempotent
        run = partial(_call_server, server, name)
        bound.append(BoundTool(tool=tool, run=run, source=source, is_idempotent=is_idempotent))
    return bound


async def _call_server(server: OpenServer, name: str, text: str) -> str:
    # As strict as for functions: what no other JSON reader takes would end the connection.
    return await server.call(name, _decoded(text, dict[str, Any]))


def _decoded(text: str, kind: type[T]) -> T:
    """The arguments of a call. Raises `ToolError` if they do not fit."""
    try:
        return msgspec.json.decode(text or "{}", type=kind)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise ToolError(f"the arguments do not fit: {error}") from error


def check_names(tools: Iterable[BoundTool], where: str) -> None:
    """Raise `ConfigError` for names that providers reject, and for one that two tools have."""
    seen: set[str] = set()
    for each in tools:
        name = each.tool.name
        fix = "give it another name" if isinstance(each.source, FunctionTool) else "give the server a prefix"
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: the name of tool {name!r} must be 1 to 64 letters, digits, _ and -; {fix}")
        if name in seen or name == _RESERVED:
            problem = "duplicate tool" if name in seen else "the name of a tool cannot be"
            raise ConfigError(f"{where}: {problem} {name!r}; {fix}")
        seen.add(name)
    if len(seen) > _MAX_TOOLS:
        raise ConfigError(f"{where}: {len(seen)} tools, {_MAX_TOOLS} are allowed; choose those of a server with only")


def check_tools(specs: Iterable[ColumnSpec], environment: Environment) -> None:
    """Raise `ConfigError` for names of tools that collide, now that all MCP servers are connected."""
    for spec in specs:
        for field, sources in spec.tool_sources().items():
            ToolBox(sources, environment, f"column {spec.name!r}, {field}").tools()


class ToolBox:
    """The tools of a column, or of a speaker; those of MCP servers are known only while a build runs."""

    def __init__(self, sources: tuple[ToolSource, ...], environment: Environment, where: str) -> None:
        self._where = where
        self._environment = environment
        self._sources = sources
        self._functions = {
            index: bind_function(each, environment, f"{where}[{index}]")
            for index, each in enumerate(sources)
            if isinstance(each, FunctionTool)
        }
        check_names(self._functions.values(), where)
        # All tools, by name, and the servers that they come from.
        self._bound: tuple[list[OpenServer], dict[str, BoundTool]] | None = None

    def __bool__(self) -> bool:
        return bool(self._sources)

    def tools(self) -> dict[str, BoundTool]:
        """All of them by name, in order. Raises `ConfigError` for names that collide."""
        if self._environment.is_simulated:
            return {}
        servers = [self._environment.server(each) for each in self._sources if isinstance(each, MCPServer)]
        if self._bound is None or self._bound[0] != servers:
            left = iter(servers)
            found: list[BoundTool] = []
            for index, source in enumerate(self._sources):
                if isinstance(source, MCPServer):
                    found += bind_server(source, next(left), f"{self._where}[{index}]")
                else:
                    found.append(self._functions[index])
            check_names(found, self._where)
            self._bound = servers, {each.tool.name: each for each in found}
        return self._bound[1]

    async def complete(
        self,
        context: CellContext,
        model: Model,
        messages: list[Message],
        *,
        schema: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any],
        counts: Counter[tuple[str, str]],
        max_turns: int,
    ) -> ChatAnswer:
        """The answer to a conversation, which may call tools before, `max_turns` times; `messages` gets these turns.

        `counts` has how often each call was made in the cell: equal calls are told apart by it.
        """
        tools = self.tools()
        definitions = tuple(each.tool for each in tools.values())
        for _ in range(max_turns + 1):
            answer = await model.complete(messages, schema=schema, tools=definitions, **parameters)
            if not answer.tool_calls:
                return answer
            messages.append(
                Message(role="assistant", content=answer.text, tool_calls=answer.tool_calls, thinking=answer.thinking)
            )
            for number, call in enumerate(answer.tool_calls):
                if number < _MAX_CALLS:
                    result = await self._call(context, tools, call, counts)
                else:
                    result = f"Error: not run, because one answer may call at most {_MAX_CALLS} tools"
                messages.append(Message(role="tool", content=result, tool_call_id=call.id))
        raise BadOutput(
            f"{self._where}: the model still called tools after {max_turns} turns of them; raise max_tool_turns, "
            "or say in the prompt when it has to answer"
        )

    async def _call(
        self, context: CellContext, tools: Mapping[str, BoundTool], call: ToolCall, counts: Counter[tuple[str, str]]
    ) -> str:
        """The result of a call, as the model gets it."""
        found = tools.get(call.name)
        if found is None:
            return f"Error: unknown tool {call.name[:100]!r}; there are {', '.join(tools)}"
        key = call.name, call.arguments
        counts[key] += 1
        return await context.run_tool(
            call.name,
            partial(_run, found, call.arguments),
            key=call_key("tool", *key, counts[key]),
            is_idempotent=found.is_idempotent,
        )


async def _run(bound: BoundTool, arguments: str) -> str:
    """Run a tool within its limits."""
    timeout, most = bound.source.timeout, bound.source.max_result
    text = f"Error: no result within {timeout:g} s"
    with trio.move_on_after(timeout):
        try:
            text = await bound.run(arguments)
        except ToolError as error:
            text = f"Error: {error}"
    # A lone surrogate could be neither sent nor stored.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[:most]}… (cut off: {len(text)} characters, {most} are shown)"


_CALL = pl.Struct(
    {"id": pl.String, "type": pl.String, "function": pl.Struct({"name": pl.String, "arguments": pl.String})}
)


def messages_dtype(*, with_tools: bool) -> pl.List:
    """The type of a list of messages."""
    more: dict[str, Any] = {"tool_calls": pl.List(_CALL), "tool_call_id": pl.String} if with_tools else {}
    return pl.List(pl.Struct({"role": pl.String, "content": pl.String, **more}))


def chat_format(messages: Iterable[Message], *, with_tools: bool) -> list[dict[str, Any]]:
    """Messages in the chat format, as training data has them: without content where one only calls tools.

    With tools every message has the fields of calls, null where it has none.
    """
    found: list[dict[str, Any]] = [
        {"role": each.role, "content": each.content if each.content or not each.tool_calls else None}
        for each in messages
    ]
    if with_tools:
        for message, each in zip(found, messages, strict=True):
            message["tool_calls"] = [call_body(call) for call in each.tool_calls] or None
            message["tool_call_id"] = each.tool_call_id or None
    return found
