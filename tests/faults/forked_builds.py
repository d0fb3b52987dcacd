"""The child processes of the fault tests: builds that are forked off a process which has everything imported.

``python forked_builds.py`` reads one job a line from standard input, forks, and answers with the process id of the
build and, at its end, with its exit status; it has one build at a time. A build appends its events to a file, line by
line, so that those before a SIGKILL are known. Fault points, failing calls of the operating system and jumps
of the clock are set here and nowhere in the product.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shapes

import seedbed as sb
from seedbed.cli import main
from seedbed.cli.exit_codes import exit_code
from seedbed.engine import api
from seedbed.engine.source import make_source
from seedbed.observe.events import Events
from seedbed.runtime import faults

if TYPE_CHECKING:
    from collections.abc import Callable


COMMITTED = "journal committed"


class Teller:
    """Appends lines to a file; each is there as soon as `tell` returns, whatever becomes of the process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def tell(self, **said: Any) -> None:
        """Say something."""
        os.write(self._file, f"{json.dumps(said)}\n".encode())

    def read(self, event: Any) -> None:
        """Say of an event what the parent wants to know."""
        kind = type(event).__name__
        if kind == "TaskFinished":
            self.tell(event=kind, column=event.column, group=event.row_group, row=event.row, status=event.status)
        elif kind in ("RowGroupFinished", "CellsCommitted", "BuildStarted", "StopRequested"):
            self.tell(event=kind, group=getattr(event, "row_group", None), total=getattr(event, "total", None))


class Occasions:
    """Does something at the n-th time that a thing of some name happens; names are counted each for itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}
        self._planned: dict[tuple[str, int], Callable[[], None]] = {}

    def plan(self, name: str, nth: int, act: Callable[[], None]) -> None:
        """Act at that occasion."""
        self._planned[name, nth] = act

    def happen(self, name: str) -> None:
        """It happens."""
        with self._lock:
            self._seen[name] = self._seen.get(name, 0) + 1
            act = self._planned.get((name, self._seen[name])) or self._planned.get((name, 0))
        if act is not None:
            act()


def die() -> None:
    """Be killed: nothing is closed, flushed or tidied up."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def fail(number: int) -> Callable[[], None]:
    """Raise what the operating system would."""

    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act


def obey_permissions() -> None:
    """Give up the right to write where permissions forbid it, in case this is the superuser."""
    # Version 3 of the interface; this process; no capability effective, permitted or inheritable.
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
    if ctypes.CDLL(None, use_errno=True).capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def disturb(job: dict[str, Any], teller: Teller) -> None:
    """Set up what is to go wrong."""
    occasions = Occasions()

    def reach(name: str) -> None:
        if job.get("tell_points") or (name == COMMITTED and "file_size" not in job):
            teller.tell(point=name)
        occasions.happen(name)
        occasions.happen("any point")

    faults.hook = reach
    if (kill := job.get("kill")) is not None:
        occasions.plan(kill["point"], kill["nth"], die)
    if (failure := job.get("fail")) is not None:
        occasions.plan(failure["point"], failure["nth"], fail(failure["errno"]))
    if job.get("unprivileged"):
        obey_permissions()
    if (limit := job.get("file_size")) is not None:
        # Python ignores the signal that goes with it, so the write fails instead.
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if (nth := job.get("fsync")) is not None:
        occasions.plan("fsync", nth, fail(errno.EIO))
        real = os.fsync

        def fsync(file: Any) -> None:
            occasions.happen("fsync")
            real(file)

        os.fsync = fsync
    if (jump := job.get("clock")) is not None:
        wall = time.time
        calls = iter(range(10**9))
        time.time = lambda: wall() + jump * (next(calls) % 3 - 1)


def build(job: dict[str, Any], teller: Teller) -> int:
    """Run a build of a shape; the exit status is that of the command."""
    shape = shapes.Shape.from_json(job["shape"])
    options: dict[str, Any] = {"retry_dropped": True} if job.get("retry_dropped") else {}
    options |= job.get("options", {})
    try:
        dataset = sb.build(
            shapes.make_recipe(shape, url=job["url"], run=job["run"]),
            rows=shape.rows,
            out=Path(job["out"]),
            config=sb.RunConfig(buffer_size=shape.buffer_size, **{**shapes.RETRIES, **job.get("run_options", {})}),
            processors=shapes.make_processors(shape),
            # A file that may not grow would be that of the teller too.
            readers=[] if "file_size" in job else [teller.read],
            resume=True,
            **options,
        )
    except sb.SeedbedError as error:
        teller.tell(failed=type(error).__name__, message=str(error))
        return exit_code(error)
    report = dataset.report
    assert report is not None
    used = report.usage.values()
    teller.tell(
        written=report.written,
        calls=sum(each.calls for each in used),
        tokens=sum(each.input_tokens + each.output_tokens for each in used),
        lost=[[drop.row, drop.column, drop.attempts] for drop in report.dropped],
    )
    return 0


def run(job: dict[str, Any]) -> int:
    """What the forked process does."""
    os.setsid()
    os.chdir(Path(job["out"]).parent)
    log = os.open(job["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((0, null), (1, log), (2, log)):
        os.dup2(theirs, ours)
    teller = Teller(job["said"])
    disturb(job, teller)
    if (arguments := job.get("arguments")) is not None:
        # The command has readers of its own; ours is one more.
        api.Events = lambda readers: Events([*readers, teller.read])
        return main(arguments)
    return build(job, teller)


def serve() -> None:
    """Take jobs until there are no more."""
    # What a recipe needs is imported once it is compiled; nothing here may start a thread, for forks have only one.
    make_source(shapes.make_recipe(shapes.PLAIN, url="http://127.0.0.1/v1"))
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            status = run(job)
            if job.get("whole_exit"):
                sys.exit(status)
            # Everything was flushed, and taking the interpreter down takes longer than the build.
            os._exit(status)
        os.write(1, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    serve()
