"""Connections to MCP servers, whose tools models call: opened before a build, opened again when they are lost.

The SDK runs on anyio and therefore on trio. Each connection belongs to one task of the nursery of `open_servers`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import tempfile
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING, Any

import attrs
import trio

from ..errors import ConfigError, Retryable
from ..runtime.tasks import leaves, open_hidden_nursery
from .base import Tool
from .provider import fill_variables, missing_variables, redact, variables_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from pathlib import Path

# Seconds until a server must have listed its tools.
_START_TIMEOUT = 30.0
# Pages of tools that are read.
_MAX_PAGES = 20
_SHOWN = 500
# Codes of JSON-RPC: the SDK's for a connection that has ended and for a session that the server does not know any more,
# and that of a server that failed.
_LOST = frozenset({-32000, -32600})
_SERVER_FAILED = -32603


@attrs.frozen(kw_only=True)
class Address:
    """How a server is reached: by the command of a program, with the variables that it gets, or at a URL."""

    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    url: str | None = None
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)

    def __str__(self) -> str:
        return self.url or shlex.join(self.command)


@attrs.frozen(kw_only=True)
class ListedTool:
    """A tool as its server describes it; `is_safe` if it says that a second call does no harm."""

    tool: Tool
    is_safe: bool


class ToolError(Exception):
    """A call of a tool that failed; the model gets the message as the result."""


@attrs.define(eq=False)
class _Session:
    """One connection: `lost` is set once it is found broken, and then its task closes it."""

    client: Any = None
    tools: dict[str, ListedTool] = attrs.field(factory=dict)
    lost: trio.Event = attrs.field(factory=trio.Event)


class OpenServer:
    """A server whose tools can be called, as long as its nursery is open."""

    def __init__(self, address: Address, folder: Path, nursery: trio.Nursery) -> None:
        self._address = address
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

    @property
    def tools(self) -> Mapping[str, ListedTool]:
        """Its tools, by name."""
        return self._session.tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The text of a result. Raises `ToolError`, or `Retryable` if the connection fails."""
        from mcp import MCPError  # noqa: PLC0415  an extra, slow to import

        session = self._session
        if session.lost.is_set():
            async with self._opening:
                if self._session.lost.is_set():
                    await self._open()
            session = self._session
        try:
            result = await session.client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code in _LOST:
                session.lost.set()
                raise self._failed("the connection was lost") from error
            if error.code == _SERVER_FAILED:
                raise self._failed(error.message) from error
            raise ToolError(error.message) from error
        except (ValueError, RuntimeError) as error:
            raise ToolError(f"the result is not what the protocol says: {_short(error)}") from error
        except Exception as error:  # a stream that is gone
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
        session, is_open = _Session(), False
        try:
            async with self._connect() as session.client:
                cursor: str | None = None
                for _ in range(_MAX_PAGES):
                    page = await session.client.list_tools(cursor=cursor)
                    session.tools |= {each.name: _listed(each) for each in page.tools}
                    cursor = page.next_cursor
                    if cursor is None:
                        break
                task_status.started(session)
                is_open = True
                await session.lost.wait()
        except Exception:
            if not is_open:
                raise
        finally:
            session.lost.set()

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        # An extra, slow to import.
        import httpx2  # noqa: PLC0415
        from mcp import Client, StdioServerParameters  # noqa: PLC0415
        from mcp.client.stdio import stdio_client  # noqa: PLC0415
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        address = self._address
        if address.url is None:
            program, *arguments = address.command
            env = {name: os.environ[name] for name in address.env if name in os.environ}
            options = StdioServerParameters(command=program, args=arguments, env=env, cwd=self._folder)
            async with Client(stdio_client(options, errlog=self._log)) as client:  # type: ignore[arg-type]
                yield client
            return
        headers, self._secrets = fill_variables(dict(address.headers))
        # The limit of a tool is that of its calls.
        timeout = httpx2.Timeout(_START_TIMEOUT, read=None)
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
            Client(streamable_http_client(address.url, http_client=http)) as client,
        ):
            yield client

    def _failed(self, reason: str) -> Retryable:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4 * _SHOWN))
        said = " ".join(self._log.read().split())[-_SHOWN:]
        more = f"; it wrote: {said}" if said else ""
        return Retryable(f"MCP server {str(self._address)!r}: {redact(reason, self._secrets)}{more}")


@asynccontextmanager
async def open_servers(addresses: Iterable[Address], folder: Path) -> AsyncIterator[Mapping[Address, OpenServer]]:
    """Connect to each server once, and end the connections on exit. Raises one `ConfigError` for all that fail.

    Programs are started in `folder`.
    """
    wanted = dict.fromkeys(addresses)
    if not wanted:
        yield {}
        return
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError(
            f"MCP server {str(next(iter(wanted)))!r} needs mcp, which is not installed: install seedbed[mcp]"
        )
    problems = [
        f"MCP server {str(address)!r} {problem}"
        for address in wanted
        for problem in missing_variables(variables_in(dict(address.headers)))
    ]
    if problems:
        raise ConfigError("; ".join(problems))
    async with open_hidden_nursery("the build has ended") as nursery:
        servers = {address: OpenServer(address, folder, nursery) for address in wanted}

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


def _listed(given: Any) -> ListedTool:
    hints = given.annotations
    tool = Tool(name=given.name, description=given.description or "", parameters=given.input_schema)
    return ListedTool(tool=tool, is_safe=hints is not None and bool(hints.read_only_hint or hints.idempotent_hint))


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
