"""A real process killed between any two steps of writing a dataset."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import seedbed
from seedbed.errors import ManifestError
from seedbed.store.dataset import Dataset
from seedbed.store.files import PRIVATE
from seedbed.store.manifest import GroupRecord
from seedbed.store.parts import PARTS, internal_name, part_name
from seedbed.store.writer import DatasetWriter, check_output

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

FILE = ["part written", "part synced", "part renamed", "part directory synced"]
RECORD = ["record written", "record synced"]
CREATE = [*RECORD, "manifest renamed", "manifest directory synced"]
GROUP = [*FILE[:2], *RECORD, "part listed", *FILE[2:]]
PLACE = ["old rows removed", "part renamed", "part renamed", "part directory synced"]
PUBLISH = [*FILE[:2], *FILE[:2], *RECORD, "published listed", *PLACE]
STEPS = [*CREATE, *GROUP, *GROUP, *GROUP, *GROUP, *PUBLISH, *RECORD]

# How many steps there are until the named thing counts: a line counts as soon as it is written, not only once synced.
CREATED = CREATE.index("manifest renamed") + 1
LISTED = [len(CREATE) + len(GROUP) * number + GROUP.index("record written") + 1 for number in (0, 1, 2)]
FINISHED = len(STEPS) - len(RECORD) + 1

FIRST: list[tuple[Any, ...]] = [(1.0, None)]
FIRST_GROWN: list[tuple[Any, ...]] = [(7.0, None), (1.0, None)]
SECOND: list[tuple[Any, ...]] = [(0.5, "x"), (2.5, "y")]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory n was left by a process that was killed at its step n."""
    root = tmp_path_factory.mktemp("killed")
    script = Path(__file__).with_name("killed_writer.py")
    path = os.pathsep.join([str(Path(seedbed.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    child = subprocess.run(
        [sys.executable, str(script), str(root)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == STEPS
    return root


def rows_of(dataset: Dataset) -> list[tuple[Any, ...]]:
    """The rows before any processor, as tuples."""
    return dataset.raw().to_polars().rows()


@pytest.mark.parametrize("step", range(len(STEPS) + 1))
def test_every_listed_group_is_readable(killed: Path, step: int) -> None:
    """Whenever the process dies, the directory opens and holds exactly the groups that were listed, undamaged."""
    directory = killed / str(step)
    # The process was killed at step number `step`, counted from 0: after doing step + 1 things.
    done = step + 1
    if done < CREATED:
        with pytest.raises(ManifestError, match="is not a dataset"):
            Dataset.open(directory)
        check_output(directory)
        return
    dataset = Dataset.open(directory)
    dataset.verify()
    dataset.raw().verify()
    expected = [*(FIRST_GROWN if done >= LISTED[2] else FIRST if done >= LISTED[0] else [])]
    expected += SECOND if done >= LISTED[1] else []
    assert rows_of(dataset) == expected
    assert dataset.raw().to_arrow().num_rows == len(expected)
    assert len(dataset.drops) == (LISTED[0] <= done < LISTED[2])
    assert dataset.complete is (done >= FINISHED)
    assert dataset.columns == (("z",) if done >= FINISHED else ("a", "b"))


@pytest.mark.parametrize("step", range(CREATED - 1, len(STEPS) + 1))
def test_writing_can_be_resumed(killed: Path, step: int, tmp_path: Path) -> None:
    """Whenever the process died, another can write what is missing, and the end is the same."""
    directory = tmp_path / "copy"
    shutil.copytree(killed / str(step), directory)
    writer, manifest, damage = DatasetWriter.open(directory)
    with writer:
        assert damage == ()
        for index, rows in enumerate((FIRST, SECOND)):
            if index not in manifest.groups:
                a, b = map(list, zip(*rows, strict=True))
                writer.write_group(GroupRecord(index=index, start=index * 2, stop=index * 2 + 2), {"a": a, "b": b})
        if 0 not in manifest.groups or not manifest.groups[0].revision:
            added = writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [7.0], "b": [None]}, order=[1, 0])
            assert added is not None
            assert (added.revision, added.rows, added.drops) == (1, 2, ())
        writer.unify()
        assert writer.publish(pl.DataFrame({"z": [1, 2, 3]}))
        assert writer.finish() == ()
    dataset = Dataset.open(directory)
    dataset.verify()
    dataset.raw().verify()
    assert dataset.complete
    assert dataset.to_polars()["z"].to_list() == [1, 2, 3]
    assert rows_of(dataset) == [*FIRST_GROWN, *SECOND]
    assert {path.name for path in directory.iterdir()} == {PRIVATE, part_name(0), part_name(1)}
    assert {f"{PARTS}/{path.name}" for path in (directory / PARTS).iterdir()} == {internal_name(0), internal_name(1)}
