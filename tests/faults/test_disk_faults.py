"""Disks that are full, fail, forbid or disappear during a run, and a clock that jumps: one message, and a resume."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import POINTS, Ended, Made, open_trial
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from shapes import PLAIN

from seedbed.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness import Builds, Running, Trial

pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform != "linux", reason="needs fork and /proc")

AFTERWARDS = {"journal committed", "journal freed", "journal marked", "journal closed"}
FAULTS = settings(
    max_examples=settings.default.max_examples // 16,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def plain(builds: Builds, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """What `PLAIN` gives."""
    with open_trial(builds, tmp_path_factory.mktemp("plain"), PLAIN, latency=0) as trial:
        trial.run().through  # noqa: B018
        return Made.read(trial.out)


def check_stopped(ended: Ended, trial: Trial, *words: str) -> None:
    """It ended by itself, with a status that says so and one message that names the directory."""
    assert ended.status in (ExitCode.BAD_DATASET, ExitCode.BAD_INPUT), (ended.status, ended.said[-2:], ended.log)
    began = any(each.get("event") == "BuildStarted" for each in ended.said)
    assert ended.status == ExitCode.BAD_DATASET or not began, ended.said[-1]
    assert "Traceback" not in ended.log, ended.log
    failures = [each for each in ended.said if "failed" in each]
    assert len(failures) == 1
    message = failures[0]["message"]
    assert trial.out.name in message, message
    assert "\n" not in message, message
    for word in words:
        assert word in message, message


def check_goes_on(trial: Trial, expected: Made) -> None:
    """What could not be written is made again, and nothing that was durable is."""
    trial.run().through  # noqa: B018
    trial.check_paid_once()
    trial.check_dataset(expected)


@FAULTS
@given(limit=st.integers(200, 120_000))
def test_files_that_may_not_grow(builds: Builds, plain: Made, limit: int) -> None:
    """A run that cannot write a file any further stops and can continue once it may again."""
    with tempfile.TemporaryDirectory() as directory, open_trial(builds, Path(directory), PLAIN) as trial:
        ended = trial.run(file_size=limit)
        if ended.status:
            check_stopped(ended, trial)
        check_goes_on(trial, plain)


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[None]:
    """A file system of its own; the test is skipped where mounting is not allowed."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted: {error}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.parametrize("size", ["16k", "24k", "32k"])
def test_a_disk_that_is_full(size: str, builds: Builds, plain: Made, tmp_path: Path) -> None:
    """A run on a full disk stops and says so; with more room it continues."""
    disk = tmp_path / "disk"
    with small_disk(disk, size), open_trial(builds, tmp_path / "trial", PLAIN) as trial:
        trial.out = disk / "out"
        check_stopped(trial.run(), trial)
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        check_goes_on(trial, plain)


# What comes right after a commit or at the end of all has nothing to refuse any more.
WRITES = [point for point in POINTS if point not in AFTERWARDS]


@pytest.mark.parametrize("point", WRITES)
def test_a_write_that_fails_at_every_point(point: str, builds: Builds, plain: Made, tmp_path: Path) -> None:
    """Whatever the store was about to do when the disk refused, the run stops with one message and can continue."""
    number = errno.ENOSPC
    with open_trial(builds, tmp_path, PLAIN, commit_interval=0.005) as trial:
        ended = trial.run(fail={"point": point, "nth": 3, "errno": number})
        if ended.status:
            check_stopped(ended, trial, os.strerror(number))
        ended = trial.run(fail={"point": point, "nth": 1, "errno": number})
        if ended.status:
            check_stopped(ended, trial, os.strerror(number))
        check_goes_on(trial, plain)


@FAULTS
@given(nth=st.integers(1, 40))
def test_an_fsync_that_fails(builds: Builds, plain: Made, nth: int) -> None:
    """What could not be made durable is not taken for durable: the run stops, and a resume makes it again."""
    with tempfile.TemporaryDirectory() as directory, open_trial(builds, Path(directory), PLAIN) as trial:
        ended = trial.run(fsync=nth)
        if ended.status:
            check_stopped(ended, trial, os.strerror(errno.EIO))
        check_goes_on(trial, plain)


def in_the_middle(trial: Trial) -> None:
    """Wait until a row group is on disk and others are under way."""
    trial.wait_for(lambda: any(each.get("event") == "RowGroupFinished" for each in trial.said_now()))


def test_permission_that_is_lost(builds: Builds, plain: Made, tmp_path: Path) -> None:
    """A directory that may not be written any more stops the run; once it may, the run continues."""
    with open_trial(builds, tmp_path, PLAIN, latency=0.2) as trial:

        def forbid(_: Running) -> None:
            in_the_middle(trial)
            trial.out.chmod(0o500)

        try:
            ended = trial.run(forbid, unprivileged=True)
        finally:
            trial.out.chmod(0o700)
        check_stopped(ended, trial, os.strerror(errno.EACCES))
        check_goes_on(trial, plain)


def test_a_directory_that_is_moved_away(builds: Builds, plain: Made, tmp_path: Path) -> None:
    """A run whose directory is gone stops; nothing is made in its place, and where it went it can continue."""
    with open_trial(builds, tmp_path, PLAIN, latency=0.2) as trial:

        def move(_: Running) -> None:
            in_the_middle(trial)
            trial.out.rename(tmp_path / "elsewhere")

        check_stopped(trial.run(move), trial)
        assert not trial.out.exists()
        (tmp_path / "elsewhere").rename(trial.out)
        check_goes_on(trial, plain)


def test_a_directory_whose_parent_is_removed(builds: Builds, tmp_path: Path) -> None:
    """A run that has nothing left to write to stops instead of paying for what nobody will see."""
    with open_trial(builds, tmp_path, PLAIN, latency=0.3, max_concurrent_row_groups=1) as trial:
        trial.out = tmp_path / "parent" / "out"
        trial.out.parent.mkdir()

        def remove(_: Running) -> None:
            in_the_middle(trial)
            subprocess.run(["rm", "-rf", str(trial.out.parent)], check=False)

        check_stopped(trial.run(remove), trial)
        assert not trial.out.parent.exists()
        # The rows of the groups that were not begun were not asked for.
        assert ("b", PLAIN.rows - 1) not in trial.requests(0)


@pytest.mark.parametrize("seconds", [3_600.0, -86_400.0 * 400])
def test_a_clock_that_jumps(seconds: float, builds: Builds, plain: Made, tmp_path: Path) -> None:
    """The wall clock may go forth and back: nothing that counts depends on it, also across a kill."""
    with open_trial(builds, tmp_path, PLAIN, commit_interval=0.005) as trial:
        trial.run(clock=seconds, kill={"point": "journal committed", "nth": 3})
        trial.run(clock=-seconds).through  # noqa: B018
        trial.check_paid_once()
        trial.check_dataset(plain)
