"""Tools for tests: functions that note their calls, and MCP servers in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = Path(__file__).with_name("mcp_server.py")


def calls_in(log: Path) -> list[str]:
    """The calls that tools have written to a file."""
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def stdio_command(log: Path, *options: str) -> list[str]:
    """The command of a server that speaks on its standard streams."""
    return [sys.executable, str(SERVER), "stdio", str(log), *options]


@contextmanager
def http_server(log: Path) -> Iterator[str]:
    """The URL of a server in a process of its own that speaks streamable HTTP."""
    command = [sys.executable, str(SERVER), "http", str(log)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def environment_of_server() -> dict[str, str]:
    """What a server needs to find the libraries of these tests."""
    return {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
