"""Two processes on one directory: the second is refused, and the lock goes with its owner."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from locked_build import columns

import seedbed as sb
from seedbed.engine.plan import plan_build
from seedbed.engine.source import make_source
from seedbed.engine.storage import open_stores
from seedbed.store.manifest import MANIFEST_NAME, encode, read

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no lock on Windows")
SCRIPT = Path(__file__).with_name("locked_build.py")


@contextlib.contextmanager
def owner(out: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that builds into the directory, and the one that its cell runs in; killed at the end if it is there."""
    command = [sys.executable, str(SCRIPT), str(out), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            yield process, worker
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def files(out: Path) -> dict[str, bytes]:
    """What the directory holds; the journal and the log of the run are the owner's, who goes on writing them."""
    owned = ("journal-", "run_")
    return {
        path.name: path.read_bytes() for path in out.rglob("*") if path.is_file() and not path.name.startswith(owned)
    }


def test_a_second_process_cannot_write_the_directory(tmp_path: Path) -> None:
    """It is rejected with the reason and changes nothing, not even unfinished work of the first process."""
    out = tmp_path / "d"
    with owner(out):
        (out / ".batch_00007.parquet.tmp").write_bytes(b"half a part")
        before = files(out)
        with pytest.raises(sb.OutputDirectoryError, match=r"another process is writing .*: wait for it or stop it"):
            sb.resume(out, columns(process=False))
        with pytest.raises(sb.OutputDirectoryError, match="another process is writing"):
            sb.resume(out, columns(process=False), rows=5, accept_changes=True, retry_dropped=True)
        with pytest.raises(sb.OutputDirectoryError, match="holds a dataset of another recipe; nothing was changed"):
            sb.build(columns(process=False), rows=1, out=out)
        assert files(out) == before
        assert sb.Dataset.open(out).rows == 0  # reading is always possible


def test_the_command_line_says_so(tmp_path: Path) -> None:
    """`seedbed resume` beside a running `seedbed run` ends with status 2 and one line."""
    out, recipe = tmp_path / "d", tmp_path / "recipe.yaml"
    recipe.write_text(
        "models:\n  m: {type: scripted, latency: 3600}\n"
        "columns:\n  - {name: n, type: category, values: [1]}\n  - {name: v, type: llm-text, model: m, prompt: hi}\n"
    )
    seedbed = [sys.executable, "-m", "seedbed.cli"]
    command = [*seedbed, "run", str(recipe), "-n", "1", "-o", str(out), "--progress", "none"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as first:
        try:
            while not (out / ".seedbed" / "recipe.yaml").exists():  # it is written once the lock is held
                assert first.poll() is None
            second = subprocess.run([*seedbed, "resume", str(out)], check=False, capture_output=True, text=True)
            assert second.returncode == 2
            assert f"another process is writing '{out}'" in second.stderr
            assert first.poll() is None
        finally:
            first.kill()


@pytest.mark.parametrize("rows", [3, 5])
def test_a_directory_that_another_wrote_meanwhile(rows: int, tmp_path: Path) -> None:
    """What was planned by the state before is not run on the one after it, whether groups were added or rows."""
    out, config = tmp_path / "d", sb.RunConfig(buffer_size=2)
    numbers = columns(process=False)[:1]
    sb.build(numbers, rows=3, out=out, config=config)
    if rows == 3:  # as a run leaves it that ended before its last row group
        manifest = out / MANIFEST_NAME
        header, first = read(out).header, read(out).groups[0]
        assert header is not None
        manifest.write_bytes(encode(header) + encode(first))
    plan = plan_build(make_source(numbers), rows=rows, out=out, resume=True)
    sb.resume(out, numbers, rows=rows)
    with pytest.raises(sb.OutputDirectoryError, match="while this build started: start it again"):
        open_stores(plan, out)
    assert sb.Dataset.open(out).rows == rows


@pytest.mark.parametrize("options", [(), ("process",)])
def test_the_lock_dies_with_its_owner(options: tuple[str, ...], tmp_path: Path) -> None:
    """After a kill the directory is free at once, even while a worker process of the build is still there."""
    out = tmp_path / "d"
    with owner(out, *options) as (process, worker):
        assert (worker != process.pid) == bool(options)
        process.kill()
        process.wait()
        done = [sb.Column("n", columns(process=False)[0].generator, kind="from_scratch"), sb.Column("v", lambda n: n)]
        assert sb.resume(out, done, accept_changes=True).to_polars().rows() == [(0, 0)]
