"""Connections to MCP servers: opened before a build, used by all columns that name the server, opened again when lost.

The SDK runs on anyio and therefore on trio. Each connection belongs to one task of the build's nursery.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from contextlib import asynccontextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import attrs
import trio

from ..errors import ConfigError, Retryable
from ..models.base import Tool
from ..models.provider import fill_variables, missing_variables, redact
from ..runtime.tasks import leaves, open_hidden_nursery
from .code import import_extra
from .tool_sources import BoundTool, ToolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from pathlib import Path

    from .tool_sources import MCPServer

# Seconds until a server must have listed its tools.
_START_TIMEOUT = 30.0
# Pages of tools that are read.
_MAX_PAGES = 20
_SHOWN = 500
# JSON-RPC's code of the SDK for a connection that has ended.
_CLOSED = -32000


@attrs.define(eq=False)
class _Session:
    """One connection: `lost` is set by whoever finds it broken, and then its task closes it."""

    client: Any = None
    tools: list[Any] = attrs.field(factory=list)
    lost: trio.Event = attrs.field(factory=trio.Event)


class OpenServer:
    """A server whose tools can be called, as long as its nursery is open."""

    def __init__(self, spec: MCPServer, folder: Path, nursery: trio.Nursery) -> None:
        self._spec = spec
        self._folder = folder
        self._nursery = nursery
        self._secrets: list[str] = []
        # What the program writes on its standard error, to be shown if it fails.
        self._log: IO[str] = tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace")  # noqa: SIM115  closed with the server
        self._opening = trio.Lock()
        self._session = _Session()

    async def open(self) -> None:
        """Connect and list the tools. Raises `ConfigError` if that fails."""
        try:
            await self._open()
        except Retryable as error:
            raise ConfigError(str(error)) from error

    def close(self) -> None:
        """Close what a connection leaves behind."""
        self._log.close()

    def bind_tools(self, source: MCPServer, where: str) -> list[BoundTool]:
        """The tools that a column takes from this server."""
        listed = {str(each.name): each for each in self._session.tools}
        if missing := [name for name in source.only if name not in listed]:
            raise ConfigError(
                f"{where}: MCP server {source.label!r} has no tool {missing[0]!r}, only {', '.join(listed) or 'none'}"
            )
        bound: list[BoundTool] = []
        for name in source.only or listed:
            found = listed[name]
            hints = found.annotations
            is_safe = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
            tool = Tool(
                # A dot and a slash are allowed by MCP, and by no provider.
                name=source.prefix + re.sub(r"[^A-Za-z0-9_-]", "_", name),
                description=found.description or "",
                parameters=found.input_schema,
            )
            run = partial(self._call, name)
            is_idempotent = is_safe if source.idempotent is None else source.idempotent
            bound.append(BoundTool(tool=tool, run=run, source=source, is_idempotent=is_idempotent))
        return bound

    async def _call(self, name: str, arguments: str) -> str:
        """The text of a result."""
        from mcp import MCPError  # noqa: PLC0415  an extra, slow to import

        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ToolError(f"the arguments are not JSON: {error}") from error
        if not isinstance(given, dict):
            raise ToolError("the arguments are not a JSON object")
        session = self._session
        if session.lost.is_set():
            async with self._opening:
                if self._session.lost.is_set():
                    await self._open()
            session = self._session
        try:
            result = await session.client.call_tool(name, given)
        except MCPError as error:
            if error.code != _CLOSED:
                raise ToolError(error.message) from error
            session.lost.set()
            raise self._failed("the connection was lost") from error
        except Exception as error:  # a result that is not what the protocol says, or a stream that is gone
            session.lost.set()
            raise self._failed(_short(error)) from error
        text = _text(result)
        if result.is_error:
            raise ToolError(text)
        return text

    async def _open(self) -> None:
        """Replace the session by a new one. Raises `Retryable`."""
        with trio.move_on_after(_START_TIMEOUT) as scope:
            try:
                self._session = await self._nursery.start(self._serve)
            except Exception as error:
                raise self._failed(_short(error)) from error
        if scope.cancelled_caught:
            raise self._failed(f"it did not list its tools within {_START_TIMEOUT:g} s")

    async def _serve(self, task_status: trio.TaskStatus[_Session]) -> None:
        """Hold one connection until it is lost; an error after it was opened only means that it is."""
        session = _Session()
        try:
            async with self._connect() as session.client:
                cursor: str | None = None
                for _ in range(_MAX_PAGES):
                    page = await session.client.list_tools(cursor=cursor)
                    session.tools += page.tools
                    cursor = page.next_cursor
                    if cursor is None:
                        break
                task_status.started(session)
                await session.lost.wait()
        except Exception:
            if self._session is not session:  # it was never opened
                raise
        finally:
            session.lost.set()

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        spec = self._spec
        import_extra("mcp", extra="mcp", column=spec.label)
        # An extra, slow to import.
        import httpx2  # noqa: PLC0415
        from mcp import Client, StdioServerParameters  # noqa: PLC0415
        from mcp.client.stdio import stdio_client  # noqa: PLC0415
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        if spec.url is None:
            program, *arguments = spec.command
            env = {name: os.environ[name] for name in spec.env if name in os.environ}
            options = StdioServerParameters(command=program, args=arguments, env=env, cwd=self._folder)
            async with Client(stdio_client(options, errlog=self._log)) as client:  # type: ignore[arg-type]
                yield client
            return
        if missing := missing_variables(spec.header_env):
            raise ConfigError("; ".join(missing))
        headers, self._secrets = fill_variables(spec.headers)
        # The limit of a tool is that of its calls.
        timeout = httpx2.Timeout(_START_TIMEOUT, read=None)
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
            Client(streamable_http_client(spec.url, http_client=http)) as client,
        ):
            yield client

    def _failed(self, reason: str) -> Retryable:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4 * _SHOWN))
        said = " ".join(self._log.read().split())[-_SHOWN:]
        more = f"; it wrote: {said}" if said else ""
        return Retryable(f"MCP server {self._spec.label!r}: {redact(reason, self._secrets)}{more}")


@asynccontextmanager
async def open_servers(specs: Iterable[MCPServer], folder: Path) -> AsyncIterator[Mapping[tuple[Any, ...], OpenServer]]:
    """Connect to each server once, and end the connections on exit. Raises one `ConfigError` for all that fail."""
    wanted = {spec.connection: spec for spec in specs}
    if not wanted:
        yield {}
        return
    async with open_hidden_nursery("the build has ended") as nursery:
        servers = {key: OpenServer(spec, folder, nursery) for key, spec in wanted.items()}
        problems: list[str] = []

        async def open_server(server: OpenServer) -> None:
            try:
                await server.open()
            except ConfigError as error:
                problems.append(str(error))

        try:
            async with trio.open_nursery() as opening:
                for server in servers.values():
                    opening.start_soon(open_server, server)
            if problems:
                raise ConfigError("; ".join(problems))
            yield servers
        finally:
            for server in servers.values():
                server.close()


def _text(result: Any) -> str:
    """What a result says: its texts, and of anything else what it is."""
    parts: list[str] = []
    for block in result.content:
        text = getattr(block, "text", None) or getattr(getattr(block, "resource", None), "text", None)
        parts.append(text if isinstance(text, str) else f"[{block.type}]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)


def _short(error: BaseException) -> str:
    """The causes of an error, which anyio puts into groups."""
    return "; ".join(dict.fromkeys(f"{type(each).__name__}: {each}"[:_SHOWN] for each in leaves(error)))
