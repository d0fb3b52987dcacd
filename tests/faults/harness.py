"""Builds in real processes that are killed, and what must hold after they were resumed.

`Trial` has a dataset directory, a server that counts every request by cell, and one run after the other in it. What a
run had made durable is known from the run itself: it reports what it finished, in order, and when a commit returned.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import attrs
import polars as pl
from shapes import Shape, Trouble, answer_to, cell_of

import seedbed as sb
from seedbed.store.manifest import MANIFEST_NAME, read
from seedbed.testing import OpenAIServer, ServerRequest, SimulatedOutcome, serve_openai_sync

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator


PATIENCE = 60.0
"""Seconds after which a child hangs; it is killed, and its test fails."""

FAULTS = Path(__file__).parent
SOURCE = "".join(path.read_text() for path in sorted(Path(sb.__file__).parent.rglob("*.py")))
# Every point that the source names.
POINTS = tuple(dict.fromkeys(re.findall(r'(?:faults\.reach\(\s*|written=)"([^"]+)"', SOURCE)))
Cell = tuple[str, int]
# The prompt with which the command checks a model before a build.
CHECK = "Say OK."
REPEATED = ("attempts", "seconds")


@attrs.define(eq=False)
class Running:
    """A build in a child process."""

    pid: int
    _answers: IO[str]
    hung: bool = False

    def kill(self) -> None:
        """Kill it; it may be over already."""
        self.signal(signal.SIGKILL)

    @property
    def alive(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def signal(self, number: int) -> None:
        """Send a signal; it may be over already."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit status, negative if a signal ended it."""

        def give_up() -> None:
            self.hung = True
            self.kill()

        timer = threading.Timer(PATIENCE, give_up)
        timer.start()
        try:
            status = int(self._answers.readline())
        finally:
            timer.cancel()
            timer.join()
        assert not self.hung, f"the build hung for {PATIENCE:g} s"
        return status


class Builds:
    """The process that builds are forked off; one at a time."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(Path(sb.__file__).parents[1]), str(FAULTS), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, str(FAULTS / "forked_builds.py")],
            env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, job: dict[str, Any]) -> Running:
        """Start a build."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(job)}\n")
        process.stdin.flush()
        return Running(int(process.stdout.readline()), process.stdout)

    def close(self) -> None:
        """End it."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(PATIENCE)


@attrs.frozen
class Ended:
    """How a run ended, and what it said."""

    number: int
    status: int
    said: list[dict[str, Any]]
    log: str

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    @property
    def through(self) -> dict[str, Any]:
        """What a run said that got to its end."""
        assert self.status == 0, (self.status, self.said[-3:], self.log)
        return self.said[-1]


class Trial:
    """One dataset directory and the runs that work on it."""

    def __init__(
        self,
        builds: Builds,
        server: OpenAIServer,
        directory: Path,
        *,
        trouble: Trouble,
        hanging: dict[Cell, int],
        run_options: dict[str, Any],
    ) -> None:
        self.builds = builds
        self.server = server
        self.out = directory / "out"
        self.shape = trouble.shape
        self.run_options = run_options
        self.runs: list[Ended] = []
        self._directory = directory
        self._hanging = hanging
        self._trouble = trouble
        self._running: Running | None = None

    def let_go(self) -> None:
        """Answer everything from now on."""
        self._hanging.clear()

    def release(self, cells: Collection[Cell]) -> None:
        """Answer calls that hang now."""
        self.server.release(lambda prompt: prompt != CHECK and cell_of(prompt) in cells)

    def heal(self) -> None:
        """Let no call fail from now on."""
        self._trouble.heal()

    @property
    def _said(self) -> Path:
        return self._directory / f"said{len(self.runs)}"

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds of the run that is under way."""
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, "it never came to that"
            assert self._running is None or self._running.alive or condition(), "the build ended before"
            time.sleep(0.005)

    def said_now(self) -> list[dict[str, Any]]:
        """What the run that is under way has said so far."""
        return _read_said(self._said)

    def said_event(self, kind: str) -> bool:
        """True if the run that is under way has said so."""
        return any(each.get("event") == kind for each in self.said_now())

    def finished_calls(self) -> int:
        """How many tasks of model columns have ended in the run that is under way."""
        models = {column.name for column in self.shape.models}
        return sum(each.get("event") == "TaskFinished" and each["column"] in models for each in self.said_now())

    def cells_since(self, number: int) -> list[Cell]:
        """The cells that were asked for after the first so many requests."""
        return [cell_of(request.prompt) for request in self.server.requests[number:] if request.prompt != CHECK]

    def durable_cells(self) -> int:
        """How many cells the run under way has made durable so far, those of columns that cost nothing included."""
        return max((each["total"] for each in self.said_now() if each.get("event") == "CellsCommitted"), default=0)

    def run(self, disturb: Callable[[Running], None] | None = None, **job: Any) -> Ended:
        """Begin or continue; `disturb` is called with the process."""
        number = len(self.runs)
        said, log = self._said, self._directory / f"log{number}"
        running = self.builds.start(
            {
                "out": str(self.out),
                "shape": self.shape.to_json(),
                "url": self.server.url,
                "run": number,
                "said": str(said),
                "log": str(log),
                "run_options": self.run_options,
                **job,
            }
        )
        self._running = running
        try:
            if disturb is not None:
                disturb(running)
        except BaseException:
            running.kill()
            running.wait()
            raise
        status = running.wait()
        ended = Ended(number, status, _read_said(said), log.read_text() if log.exists() else "")
        self.runs.append(ended)
        assert not processes_of(running.pid), "a process outlived the build"
        return ended

    def requests(self, run: int) -> Counter[Cell]:
        """How often each cell was asked for by a run."""
        return Counter(
            cell_of(request.prompt)
            for request in list(self.server.requests)
            if request.headers.get("x-run") == str(run) and request.prompt != CHECK
        )

    def answered(self) -> Counter[Cell]:
        """How many answers with a value each cell got, over all runs."""
        answers = [answer for answer in list(self.server.answers) if answer.status == 200 and answer.prompt != CHECK]
        return Counter(cell_of(answer.prompt) for answer in answers)

    def durable(self, run: int) -> set[Cell]:
        """The model cells that a run finished and had made durable, by its own account."""
        return self._durable(self.runs[run].said)

    def _durable(self, said: list[dict[str, Any]]) -> set[Cell]:
        # A commit holds everything that was finished when it began, and it begins after the one before has returned: so
        # what was finished before the commit before the last one is durable, and every cell of a checkpointed group.
        commits = [at for at, each in enumerate(said) if each.get("point") == "journal committed"]
        safe = commits[-2] if len(commits) > 1 else 0
        groups = {each["group"] for each in said if each.get("event") == "RowGroupFinished"}
        models = {column.name for column in self.shape.models}
        return {
            (each["column"], self.shape.group_rows(each["group"])[each["row"]])
            for at, each in enumerate(said)
            if each.get("event") == "TaskFinished"
            and each["column"] in models
            and each["status"] in ("success", "permanent")
            and (at < safe or each["group"] in groups)
        }

    def check_paid_once(self) -> None:
        """Nothing that was durable is sent again."""
        for run in range(len(self.runs)):
            durable = self.durable(run)
            for later in range(run + 1, len(self.runs)):
                again = durable & set(self.requests(later))
                assert not again, f"run {later} asked again for what run {run} had made durable: {sorted(again)[:5]}"

    def check_dataset(self, expected: Made) -> None:
        """The dataset is the one of a run that nothing happened to, and nothing else is in its directory."""
        check_same(self.out, self.shape, expected)


def check_same(
    directory: Path, shape: Shape, expected: Made, *, journal: bool = True, damaged: str | None = None
) -> None:
    """A directory holds what was expected: values and types, drops, files; every row is accounted for.

    Without `journal` it does not count whether something is still kept of dropped rows. The rows of a group before its
    post-batch processors are not generated again, so that such a `damaged` file is removed.
    """
    made = Made.read(directory)
    check_frame(made.raw, expected.raw)
    check_frame(made.frame, expected.frame)
    assert made.lost == expected.lost
    if damaged is None or "/provenance/" not in damaged:
        check_frame(made.provenance, expected.provenance)
    differing = {name for name in made.files ^ expected.files if journal or "/journal-" not in name}
    if damaged is not None and ("/generated_" in damaged or "/provenance/" in damaged):
        differing -= {damaged}
    assert not differing, sorted(differing)
    check_accounted(directory, shape)


def check_frame(made: pl.DataFrame, expected: pl.DataFrame) -> None:
    """Two frames are the same to the bit: nan is nan, and -0.0 is not 0.0."""
    assert made.schema == expected.schema
    assert made.height == expected.height
    for name in expected.columns:
        differing = [
            (row, ours, theirs)
            for row, (ours, theirs) in enumerate(zip(made[name].to_list(), expected[name].to_list(), strict=True))
            if repr(ours) != repr(theirs)
        ]
        assert not differing, f"column {name!r}: {differing[:3]}"


@attrs.frozen
class Made:
    """A finished dataset, for comparison."""

    frame: pl.DataFrame
    raw: pl.DataFrame
    provenance: pl.DataFrame
    lost: set[tuple[int, int, str]]
    files: set[str]

    @classmethod
    def read(cls, directory: Path) -> Made:
        """What is in a directory."""
        dataset = sb.Dataset.open(directory)
        assert dataset.complete
        dataset.verify()
        dataset.raw().verify()
        return cls(
            dataset.to_polars(),
            dataset.raw().to_polars(),
            without_repeats(dataset.raw().provenance()),
            {(drop.row, drop.copy, drop.kind) for drop in dataset.drops},
            {
                re.sub(r"-\d+\.log", "-N.log", path.relative_to(directory).as_posix())
                for path in directory.rglob("*")
                if path.parent.name != "history"  # one for each run
            },
        )


def without_repeats(provenance: pl.DataFrame) -> pl.DataFrame:
    """Provenance without what differs where a call was repeated: attempts and seconds."""
    return provenance.with_columns(
        pl.when(pl.col(name).is_not_null())
        .then(pl.struct(pl.col(name).struct.field(field.name) for field in dtype.fields if field.name not in REPEATED))
        .alias(name)
        for name, dtype in provenance.schema.items()
        if isinstance(dtype, pl.Struct)
    )


def check_accounted(directory: Path, shape: Shape) -> None:
    """Every row that was asked for is written or among the drops, and none is both."""
    dataset = sb.Dataset.open(directory).raw()
    written = dataset.to_polars()["n"].to_list() if dataset.rows else []
    assert written == shape.written()
    drops = {(drop.row, drop.copy) for drop in dataset.drops}
    assert len(drops) == len(dataset.drops)
    groups = read(directory).groups.values()
    removed, added = sum(group.removed for group in groups), sum(group.added for group in groups)
    assert len(written) + len(drops) + removed == shape.rows + added
    for drop in dataset.drops:
        # Its number is that of its position among the rows of its group.
        group = drop.row // shape.buffer_size
        position = drop.row - group * shape.buffer_size + drop.copy
        assert shape.group_rows(group)[position] in shape.lost()
    assert not [path.name for path in directory.rglob("*") if path.name.endswith(".tmp")]
    assert (directory / MANIFEST_NAME).is_file()


def _read_said(path: Path) -> list[dict[str, Any]]:
    # The last line of a process that was killed may be half of one.
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


@contextmanager
def open_trial(
    builds: Builds,
    directory: Path,
    shape: Shape,
    *,
    latency: float = 0.005,
    hang: Collection[Cell] | Mapping[Cell, int] = (),
    **run_options: Any,
) -> Iterator[Trial]:
    """A trial with a server of its own; cells take up to `latency`, each its own time, and fail as the shape says.

    Those in `hang` are never answered, the first time or from a later time on, until `let_go` is called.
    """
    directory.mkdir(parents=True, exist_ok=True)
    trouble, hanging = Trouble(shape), dict(hang) if isinstance(hang, Mapping) else dict.fromkeys(hang, 1)

    def script(request: ServerRequest) -> SimulatedOutcome:
        if request.prompt == CHECK:
            return SimulatedOutcome(text="OK.")
        column, row = cell_of(request.prompt)
        status = trouble.status(column, row)
        if trouble.seen[column, row] >= hanging.get((column, row), math.inf):
            return SimulatedOutcome(outcome="hang", text=answer_to(request.prompt))
        own = latency * (zlib.crc32(request.prompt.encode()) % 16) / 15
        if status != 200:
            return SimulatedOutcome(outcome="status", status=status, latency=own)
        return SimulatedOutcome(text=answer_to(request.prompt), latency=own)

    with serve_openai_sync(script=script, record=True) as server:
        yield Trial(builds, server, directory, trouble=trouble, hanging=hanging, run_options=run_options)


def processes_of(session: int, patience: float = 10.0) -> list[str]:
    """The command lines of the processes of a session that do not end by themselves."""
    until = time.monotonic() + patience
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in "ZX":
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.01)
