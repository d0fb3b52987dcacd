"""`seedbed inspect --verify`, and `seedbed resume` of damaged directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from command import TEXT, recipe, seedbed

from seedbed.store.dataset import Dataset
from seedbed.store.entries import Finished, Key
from seedbed.store.journal import Journal
from seedbed.store.manifest import MANIFEST_NAME
from seedbed.store.writer import DatasetWriter

if TYPE_CHECKING:
    from pathlib import Path


def test_a_whole_dataset(tmp_path: Path) -> None:
    """A dataset without damage is reported as such, with status 0."""
    out = tmp_path / "out"
    assert seedbed("run", recipe(tmp_path, TEXT), "-n", "4", "-o", out).code == 0
    ended = seedbed("inspect", out, "--verify")
    assert (ended.code, ended.err) == (0, "")
    assert "no damage" in ended.out
    assert seedbed("inspect", out, "--verify", "--json").json["damage"] == []
    assert "damage" not in seedbed("inspect", out, "--json").json


def test_damage_is_named_and_resume_repairs_it(tmp_path: Path) -> None:
    """A damaged part and a damaged record are named with the rows that they cost; `resume` restores the dataset."""
    out = tmp_path / "out"
    file = recipe(tmp_path, TEXT)
    assert seedbed("run", file, "-n", "6", "-o", out, "--buffer-size", "2").code == 0
    whole = Dataset.open(out).to_polars()
    part = out / "batch_0000001.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    manifest = out / MANIFEST_NAME
    manifest.write_bytes(b"?" + manifest.read_bytes()[1:])  # the header, which is there twice
    ended = seedbed("inspect", out, "--verify")
    assert ended.code == 3
    told = " ".join(ended.out.split())
    assert "'.seedbed/manifest.log' is damaged (bytes 0 to " in told
    assert "part 'batch_0000001.parquet' is damaged: its checksum differs; rows 2 to 3 are lost" in told
    assert "to generate the lost rows again: seedbed resume" in told
    found = seedbed("inspect", out, "--verify", "--json")
    assert (found.code, len(found.json["damage"]), found.json["sample"]) == (3, 2, [])
    ended = seedbed("resume", out)
    assert ended.code == 0, ended.err
    assert seedbed("inspect", out, "--verify").code == 0
    after = Dataset.open(out).to_polars()
    assert after.height == 6
    kept = pl.concat([whole.head(2), whole.tail(2)])
    assert pl.concat([after.head(2), after.tail(2)]).equals(kept)


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    """Damage to the journal of an unfinished dataset is reported, and --verify changes nothing."""
    out = tmp_path / "out"
    assert seedbed("run", recipe(tmp_path, TEXT), "-n", "4", "-o", out).code == 0
    journal, _ = Journal.open(out, trusted=False)
    entry = Finished(column="review", row=0, attempt=1, salvage_round=0, value="x", origin=None)
    journal.commit({Key(group=7): [entry]})
    journal.close()
    assert seedbed("inspect", out, "--verify").code == 0
    (file,) = out.glob(".seedbed/journal-*.log")
    file.write_bytes(b"?" + file.read_bytes()[1:])
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    ended = seedbed("inspect", out, "--verify")
    assert ended.code == 3
    assert "'.seedbed/journal-0000001.log' is damaged (bytes 0 to " in " ".join(ended.out.split())
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_directory_that_is_being_written(tmp_path: Path) -> None:
    """While a run writes the directory, this is reported instead of the command that resumes it."""
    out = tmp_path / "out"
    assert seedbed("run", recipe(tmp_path, TEXT), "-n", "4", "-o", out).code == 0
    writer, _, _ = DatasetWriter.open(out)
    with writer:
        ended = seedbed("inspect", out, "--verify")
    assert ended.code == 0
    assert "a run is writing it now" in ended.out
