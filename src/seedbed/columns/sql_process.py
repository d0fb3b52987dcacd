"""Processes that check SQL: only the end of a process stops DuckDB or sqlglot at a text made to keep them busy.

Thirty common table expressions, each of which names the one before twice, take DuckDB days to bind, and it listens to
no interrupt meanwhile. A process answers one request after the other, each a line of JSON, and ends with its input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 10.0
_MAX_PROCESSES = 4
_MEMORY = 4 << 30


class Workers:
    """Processes of a module that calls `serve`, started when they are needed; safe to use from several threads."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._free = threading.BoundedSemaphore(_MAX_PROCESSES)
        self._idle: list[subprocess.Popen[str]] = []
        weakref.finalize(self, _end_all, self._idle)  # also when this process ends

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer of a process; None if it needs more time or memory than it has."""
        with self._free:
            try:
                process = self._idle.pop()
            except IndexError:
                process = _start(self._module)
            answer = _ask(process, request)
            if answer is None:
                _end(process)
            else:
                self._idle.append(process)
            return answer


def _start(module: str) -> subprocess.Popen[str]:
    # Modules are found where this process finds them; with -P not also in the current folder, which may be anyone's.
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C is for the run
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        _end(process)
        raise ConfigError(f"the process that checks SQL cannot be started; 'python -m {module}' shows why")
    return process


def _ask(process: subprocess.Popen[str], request: dict[str, Any]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    timer = threading.Timer(SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except OSError:  # it has ended
        return None
    finally:
        timer.cancel()
    return json.loads(line) if line.endswith("\n") else None


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):  # of what could not be written
            if stream is not None:
                stream.close()


def _end_all(processes: list[subprocess.Popen[str]]) -> None:
    while processes:
        _end(processes.pop())


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer the requests on standard input, in a process that `Workers` started."""
    _limit_memory()
    _say("ready")
    for line in sys.stdin:
        if hasattr(signal, "alarm"):
            signal.alarm(round(SECONDS) + 5)  # ends this process if the one that asked is gone
        answered = answer(json.loads(line))
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        _say(answered)


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _limit_memory() -> None:
    try:
        import resource  # noqa: PLC0415  not on every system
    except ImportError:
        return
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
