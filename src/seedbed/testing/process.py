"""The test server where a test is not async: in a thread, or in a process with a core of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import attrs
import trio

from .server import OpenAIServer, serve_openai

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_TIMEOUT = 30.0


@contextlib.contextmanager
def serve_openai_sync(**options: Any) -> Iterator[OpenAIServer]:
    """`serve_openai` for tests without async: the server runs in a thread until the block is left."""
    started = threading.Event()
    servers: list[OpenAIServer] = []
    failures: list[BaseException] = []
    stops: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = []

    async def main() -> None:
        with trio.CancelScope() as scope:
            stops.append((trio.lowlevel.current_trio_token(), scope))
            async with serve_openai(**options) as server:
                servers.append(server)
                started.set()
                await trio.sleep_forever()

    def work() -> None:
        try:
            trio.run(main)
        except BaseException as error:  # noqa: BLE001  it is raised where the server was asked for
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work, name="seedbed-test-server", daemon=True)
    thread.start()
    started.wait(_START_TIMEOUT)
    if failures:
        raise failures[0]
    try:
        yield servers[0]
    finally:
        token, scope = stops[0]
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(scope.cancel)
        thread.join(_START_TIMEOUT)
        if failures:
            raise failures[0]


@attrs.frozen
class ServerProcess:
    """A test server in a process of its own; `url` is the base URL for a model."""

    url: str
    pid: int

    def statistics(self) -> dict[str, Any]:
        """What the server has seen so far, as `ServerStatistics.as_dict` has it; asked over HTTP."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@contextlib.contextmanager
def serve_openai_process(**options: Any) -> Iterator[ServerProcess]:
    """`serve_openai` in a process of its own until the block is left; options must be plain JSON, so no `script`."""
    command = [sys.executable, "-m", "seedbed.testing", json.dumps(options)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            url = child.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"the test server did not start (exit code {child.wait(_START_TIMEOUT)})")
            yield ServerProcess(url, child.pid)
        finally:
            child.terminate()
