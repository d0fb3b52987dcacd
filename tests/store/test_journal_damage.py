"""Damage to the segments of a journal: it is found, it is named, and it costs only what it hits."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.errors import StoreError
from seedbed.observe.report import Usage
from seedbed.runtime import faults
from seedbed.store import journal as journal_module
from seedbed.store.entries import Entry, Finished, Key, Purpose
from seedbed.store.files import PRIVATE
from seedbed.store.journal import Journal, Recovered, inspect_journal
from seedbed.store.log import scan
from seedbed.store.manifest import Header
from seedbed.store.writer import DatasetWriter

SPENT = (("review", "small", Usage(calls=3, input_tokens=10, output_tokens=20, cost=0.5)),)


def finished(row: int, value: str) -> Finished:
    """An entry as the engine writes it."""
    return Finished(column="review", row=row, attempt=1, salvage_round=0, value=value, origin=None)


@attrs.frozen(kw_only=True)
class Written:
    """The segments of a journal and what was committed to it: by key, a list for each commit."""

    files: dict[str, bytes]
    groups: dict[Key, list[list[Entry]]]
    states: dict[str, bytes]
    commits: int

    def put(self, directory: Path) -> None:
        """Write the files."""
        (directory / PRIVATE).mkdir(exist_ok=True)
        for name, data in self.files.items():
            (directory / PRIVATE / name).write_bytes(data)

    def damaged(self, name: str, data: bytes) -> Written:
        """The same with one file changed."""
        return attrs.evolve(self, files={**self.files, name: data})


@functools.cache
def written() -> Written:
    """A journal of several segments, with unfinished, freed and long-lived entries."""
    groups: dict[Key, list[list[Entry]]] = {}
    size, journal_module.SEGMENT_SIZE = journal_module.SEGMENT_SIZE, 20_000
    try:
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            journal = Journal.create(directory)
            for commit in range(40):
                keys = [Key(group=commit // 5), Key(group=100, revision=2, purpose=Purpose.RETRY)]
                batch = {key: [finished(commit, str(at) * (3, 500, 3_000)[commit % 3])] for at, key in enumerate(keys)}
                states = {"counter": bytes(commit), "other": b"x" * 50}
                journal.commit(batch, usage=SPENT, states=states)
                for key, entries in batch.items():
                    groups.setdefault(key, []).append(list(entries))
                if commit % 10 == 9:
                    kept = Key(group=commit // 5, purpose=Purpose.DROPPED)
                    groups[kept] = [[finished(commit, "k" * 600)]]
                    journal.commit({kept: groups[kept][0]})
                    journal.free(keys[0])
                    del groups[keys[0]]
            journal.close()
            files = {path.name: path.read_bytes() for path in (directory / PRIVATE).iterdir()}
    finally:
        journal_module.SEGMENT_SIZE = size
    assert len(files) > 3
    return Written(files=files, groups=groups, states=states, commits=journal.commits)


def check(before: Written, *, commits: int = 0) -> tuple[Recovered, int]:
    """Open the files: what comes back is what was committed; return what was found and how many commits are lost."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        before.put(directory)
        looked = inspect_journal(directory, commits=commits)
        assert {path.name: path.read_bytes() for path in (directory / PRIVATE).iterdir()} == before.files
        journal, found = Journal.open(directory, trusted=False, commits=commits)
        assert found == looked
        lost = 0
        for key, stored in before.groups.items():
            entries = journal.read(key)
            left = [commit for commit in stored if commit[0] in entries]
            assert entries == [entry for commit in left for entry in commit]
            lost += len(stored) - len(left)
        if found.damage:
            assert found.states == {}
        # It is whole from now on, and can be written.
        late = Key(group=5_000)
        journal.commit({late: [finished(1, "late")]})
        journal.close()
        journal, again = Journal.open(directory, trusted=False, commits=commits)
        assert again == attrs.evolve(found, groups={**found.groups, late: 1}, damage=())
        assert journal.read(late) == [finished(1, "late")]
        journal.close()
        return found, lost


def test_whole_files_are_not_damaged() -> None:
    """Without damage nothing is reported and everything is recovered."""
    found, lost = check(written(), commits=written().commits)
    assert (found.damage, lost, found.usage, found.states) == ((), 0, SPENT, written().states)


# Every example writes and reads a few hundred kilobytes and waits for the disk.
fewer = settings(max_examples=settings.default.max_examples // 4)
names = st.sampled_from(sorted(written().files))


@fewer
@given(names, st.data())
def test_a_flipped_byte_costs_one_commit(name: str, data: st.DataObject) -> None:
    """Whichever byte is changed, one record is lost with what one commit stored, and the segment is named."""
    content = bytearray(written().files[name])
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    found, lost = check(written().damaged(name, bytes(content)))
    assert f"'.seedbed/{name}' is damaged (bytes " in found.damage[0]
    # A commit stores entries of two keys; a copy of what was still needed of a segment may hold more.
    most = max(len(record.payload) for record in scan(written().files[name]).records)
    assert lost <= 2 or most > 10_000


@fewer
@given(names, st.data())
def test_a_truncated_segment_is_reported(name: str, data: st.DataObject) -> None:
    """What is cut off is lost and no more; it is named, as far as later records know that there was more."""
    content = written().files[name]
    length = data.draw(st.integers(0, len(content) - 1))
    found, lost = check(written().damaged(name, content[:length]), commits=written().commits)
    assert found.damage
    whole = [record for record in scan(content).records if record.end > length]
    assert lost <= 2 * len(whole) or max(len(record.payload) for record in whole) > 10_000


def test_a_missing_journal_is_reported() -> None:
    """If the manifest knows of commits, a journal without them is damaged; a half-written commit at its end is not."""
    found, _ = check(attrs.evolve(written(), files={}), commits=7)
    assert found.damage[0].startswith("the journal ends at commit 0 of at least 7; ")
    name = max(written().files)
    records = scan(written().files[name]).records
    torn = written().damaged(name, written().files[name][: records[-1].end - 5])
    assert check(torn)[0].damage == ()


@pytest.mark.parametrize("point", ["journal written", "journal recovered"])
def test_a_kill_while_damage_is_removed(tmp_path: Path, point: str) -> None:
    """A process that dies while it copies what is left of a damaged segment costs nothing more."""

    class Killed(BaseException):
        """Stands for the end of the process."""

    def hook(name: str) -> None:
        if name == point:
            raise Killed

    name = min(written().files)
    content = bytearray(written().files[name])
    content[len(content) // 2] ^= 1
    written().damaged(name, bytes(content)).put(tmp_path)
    expected = inspect_journal(tmp_path)
    assert expected is not None
    faults.hook = hook
    try:
        with pytest.raises(Killed):
            Journal.open(tmp_path, trusted=False)
    finally:
        faults.hook = None
    journal, found = Journal.open(tmp_path, trusted=False)
    journal.close()
    assert (found.groups, found.long_lived, found.states) == (expected.groups, expected.long_lived, {})


def test_reading_while_a_build_writes(tmp_path: Path) -> None:
    """The journal can be read while a build writes it: every commit that has returned is found."""
    out = tmp_path / "out"
    header = Header(rows=2, buffer_size=2, columns=("a",), created=0.0, version="0")
    with DatasetWriter.create(out, header):
        assert inspect_journal(out) is None
        journal = Journal.create(out)
        assert inspect_journal(out) == Recovered()
        for number in range(1, 4):
            journal.commit({Key(group=0): [finished(number, "x")]})
            assert inspect_journal(out) == Recovered(groups={Key(group=0): number})
        journal.close()


def test_a_journal_that_cannot_be_read(tmp_path: Path) -> None:
    """What is no damage but a refusal of the system is an error that names the directory."""
    written().put(tmp_path)
    segment = tmp_path / PRIVATE / min(written().files)
    segment.unlink()
    segment.mkdir()
    with pytest.raises(StoreError, match=r"the journal in .* cannot be used: .*not a regular file"):
        Journal.open(tmp_path, trusted=False)
    shutil.rmtree(segment)
