"""A dataset directory from a stranger, whose journal holds what no journal of ours does."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from hostile_pickles import OBJECT_POINTER

import seedbed as sb
from seedbed.store.journal import Batch, Journal
from seedbed.store.journal_file import JOURNAL_NAME, change_rows, connect
from seedbed.store.journal_log import Row

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = sb.Recipe(columns=[sb.Category("c", values=["a", "b"])])


def hostile_directory(directory: Path, data: bytes) -> None:
    """Make a dataset whose journal holds these bytes wherever it holds any, with checksums that hold."""
    sb.build(RECIPE, rows=4, out=directory)
    journal, _ = Journal.open(directory, trusted=False)
    journal.commit(Batch(groups={0: [("ok", "c", 0, 1, 0, "a", None)]}, states={"c": data}))
    journal.close()
    database = connect(directory / JOURNAL_NAME)
    kinds = ("entries", "kept", "state")
    change_rows(database, [], [Row.make(100 + at, kind, 0, 1, data) for at, kind in enumerate(kinds)])
    database.close()


@pytest.mark.parametrize(
    "data",
    [OBJECT_POINTER, msgspec.msgpack.encode(([], [[0, OBJECT_POINTER]])), b"\x92\x91\x91" + b"\x91" * 100_000],
    ids=["pickle", "marked pickle", "nested"],
)
@pytest.mark.parametrize("command", [("inspect",), ("inspect", "--verify"), ("resume",)], ids=" ".join)
def test_a_hostile_journal_ends_no_command(tmp_path: Path, command: tuple[str, ...], data: bytes) -> None:
    """Bytes that corrupt memory when they are unpickled are damage to be named, not the end of the process."""
    hostile_directory(tmp_path / "out", data)
    name, *options = command
    ended = subprocess.run(
        [sys.executable, "-m", "seedbed.cli", name, str(tmp_path / "out"), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode in {0, 3}, (ended.returncode, ended.stderr)
    assert "Traceback" not in ended.stderr
