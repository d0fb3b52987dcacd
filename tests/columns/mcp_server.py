"""An MCP server for tests: `mcp_server.py stdio|http LOG`; each call is appended to the file LOG."""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("tests", log_level="CRITICAL")
log = Path(sys.argv[2])


def note(call: str) -> None:
    """Append a call, at once and as a whole."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{call}\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    note(f"add {a} {b}")
    return str(a + b)


@server.tool(name="shop.book")
def book(what: str) -> str:
    """Books something, each time anew."""
    note(f"book {what}")
    return f"booked {what}"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def fail(how: str) -> str:
    """Fails in a way."""
    note(f"fail {how}")
    if how == "exit":
        os._exit(1)
    return "x" * 100_000


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def wait() -> str:
    """Never answers."""
    await anyio.sleep_forever()
    return ""


def main() -> None:
    """Serve until standard input ends, or until the process is killed."""
    if "broken" in sys.argv:
        sys.stderr.write("no database\n")
        sys.exit(3)
    if sys.argv[1] == "stdio":
        server.run("stdio")
        return
    logging.disable(logging.CRITICAL)
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical", lifespan="on")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
