"""Real signals to a real process; every step is one that the process itself announced."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import attrs
import pytest

import seedbed as sb
from seedbed.store.files import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Iterator

FAULTS = Path(__file__).parents[1] / "faults"
PATIENCE = 60  # seconds

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


@attrs.define
class Child:
    """A child process, and what it says line by line."""

    process: subprocess.Popen[str]
    output: IO[str]

    def until(self, word: str, times: int = 1) -> list[str]:
        """Read until the child has said that so often; all that it said on the way."""
        said = []
        while times:
            line = self.output.readline()
            assert line, f"the child ended before it said {word!r}; it said {said}"
            said.append(line.strip())
            times -= said[-1].split()[0] == word
        return said

    def signal(self, number: int) -> None:
        """Send a signal and wait until the build has heard of it."""
        self.process.send_signal(number)
        self.until("stopped")

    def go(self) -> None:
        """Let the child continue."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """The exit status, and the last thing that was said."""
        said = self.output.read().split("\n")
        return self.process.wait(PATIENCE), said[-2] if len(said) > 1 else ""


@contextmanager
def child(script: str, *arguments: str | Path) -> Iterator[Child]:
    """Start one of the scripts of tests/faults."""
    path = os.pathsep.join([str(Path(sb.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, str(FAULTS / script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        # A child that hangs is killed, so that its test fails.
        timer = threading.Timer(PATIENCE, process.kill)
        timer.start()
        try:
            yield Child(process, process.stdout)
        finally:
            timer.cancel()
            timer.join()
            process.kill()


def rows_in(directory: Path) -> list[int]:
    """The rows of a directory that opens, is undamaged and holds nothing but its parts and the journal."""
    dataset = sb.Dataset.open(directory).raw()
    dataset.verify()
    # Where after-generation processors ran, the root has the rows that they returned.
    parts = {part.name for part in (*dataset.parts, *sb.Dataset.open(directory).parts)}
    names = {path.name for path in directory.iterdir()}
    assert names <= {*parts, PRIVATE}
    return dataset.to_polars()["n"].to_list()


HOSTS = pytest.mark.parametrize("host", ["script", "asyncio"])
SENT = pytest.mark.parametrize(
    ("number", "host"), [(signal.SIGINT, "script"), (signal.SIGTERM, "script"), (signal.SIGINT, "asyncio")]
)


@SENT
def test_one_signal_lets_what_is_in_flight_end(number: int, host: str, tmp_path: Path) -> None:
    """After one signal cells in flight end, their groups are written, and `Interrupted` carries the report."""
    with child("signalled_build.py", tmp_path / "out", "waits", host) as build:
        build.until("waiting", 4)
        build.signal(number)
        build.go()
        assert build.end() == (3, "interrupted 6 0")
    assert rows_in(tmp_path / "out") == [0, 1, 2, 3, 4, 5]


@SENT
def test_two_signals_end_it_at_once(number: int, host: str, tmp_path: Path) -> None:
    """After two signals nothing is waited for, and the complete groups are there."""
    with child("signalled_build.py", tmp_path / "out", "waits", host) as build:
        build.until("waiting", 4)
        build.signal(number)
        build.process.send_signal(number)
        assert build.end() == (3, "interrupted 2 4")
    assert rows_in(tmp_path / "out") == [0, 1]


@SENT
def test_three_signals_kill_it(number: int, host: str, tmp_path: Path) -> None:
    """A build that ignores its cancellation dies of the third signal, and the complete groups are there."""
    with child("signalled_build.py", tmp_path / "out", "ignores", host) as build:
        build.until("waiting", 4)
        build.signal(number)
        build.process.send_signal(number)
        build.until("cancelled", 4)
        build.process.send_signal(number)
        assert build.end()[0] == -number
    assert rows_in(tmp_path / "out") == [0, 1]


@HOSTS
def test_three_signals_kill_a_build_whose_loop_is_blocked(host: str, tmp_path: Path) -> None:
    """A column that blocks the loop cannot keep the third signal from ending the process."""
    with child("signalled_build.py", tmp_path / "out", "blocks", host) as build:
        build.until("waiting")
        for _ in range(2):
            build.process.send_signal(signal.SIGINT)
            build.until("tick", 5)
        build.process.send_signal(signal.SIGINT)
        assert build.end()[0] == -signal.SIGINT
    assert rows_in(tmp_path / "out") == [0, 1]


@SENT
def test_a_signal_before_the_first_group_is_not_lost(number: int, host: str, tmp_path: Path) -> None:
    """A signal while the output directory is being made ends the build before it generates anything."""
    with child("signalled_build.py", tmp_path / "out", "start", host) as build:
        build.until("waiting")
        build.signal(number)
        build.go()
        assert build.end() == (3, "interrupted 0 6")
    assert rows_in(tmp_path / "out") == []


@HOSTS
def test_a_signal_at_the_end_lets_it_finish(host: str, tmp_path: Path) -> None:
    """A signal that comes when all rows are there, and that the end outruns, interrupts nothing."""
    with child("signalled_build.py", tmp_path / "out", "end", host) as build:
        build.until("waiting")
        build.signal(signal.SIGINT)
        build.go()
        assert build.end() == (0, "through")
    assert rows_in(tmp_path / "out") == [0, 1, 2, 3, 4, 5]
    assert sb.Dataset.open(tmp_path / "out").complete


@HOSTS
def test_two_signals_at_the_end_do_not_wait_for_a_processor(host: str, tmp_path: Path) -> None:
    """Two signals while a processor works on the whole dataset end the build; all rows are there."""
    with child("signalled_build.py", tmp_path / "out", "end", host) as build:
        build.until("waiting")
        build.signal(signal.SIGINT)
        build.process.send_signal(signal.SIGINT)
        assert build.end() == (3, "interrupted 6 0")
    assert rows_in(tmp_path / "out") == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("instant", sorted(random.Random(7).sample(range(1, 330), 12)))
def test_a_killed_build_leaves_every_finished_group(instant: int, tmp_path: Path) -> None:
    """Whenever the process is killed, the directory opens and holds every group that was said to be finished."""
    with child("killed_build.py", tmp_path / "out") as build:
        said = [build.output.readline().split() for _ in range(instant)]
        build.process.kill()
        said += [line.split() for line in build.output]
    finished = {int(group) for event, *row_group in said if event == "RowGroupFinished" for group in row_group}
    dataset = sb.Dataset.open(tmp_path / "out")
    dataset.verify()
    rows = dataset.to_polars()
    assert {n for group in finished for n in range(5 * group, 5 * group + 5)} <= set(rows["n"])
    assert rows["squares"].to_list() == [n * n for n in rows["n"]]
    assert rows.height % 5 == 0
