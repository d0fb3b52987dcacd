"""Damage to the files of a journal: it is found, it is named, and it costs only what it hits."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seedbed.errors import StoreError
from seedbed.runtime import faults
from seedbed.store.journal import Batch, Journal, Recovered, inspect_journal
from seedbed.store.journal_file import JOURNAL_NAME, MARK_NAME, SALVAGED_NAME, WAL_NAME
from seedbed.store.journal_salvage import PAGE_SIZE, salvage
from seedbed.store.records import Header
from seedbed.store.writer import DatasetWriter

SPENT = (("review", "small", 3, 10, 20, 0.5),)

Entries = list[tuple[Any, ...]]


@attrs.frozen(kw_only=True)
class Written:
    """The files of a journal and what was committed to it: by group, a list for each commit."""

    files: dict[str, bytes]
    groups: dict[int, list[Entries]]
    kept: dict[int, Entries]
    states: dict[str, bytes]

    def put(self, directory: Path) -> None:
        """Write the files."""
        for name, data in self.files.items():
            (directory / name).write_bytes(data)

    def damaged(self, name: str, data: bytes | None) -> Written:
        """The same with one file changed, or gone."""
        files = {**self.files, name: data} if data is not None else {**self.files}
        if data is None:
            del files[name]
        return attrs.evolve(self, files=files)


@functools.cache
def written(shape: str) -> Written:
    """A journal whose entries are mostly in the database, mostly in its log, or in neither but kept.

    Sizes are such that some records are within a page and some go over several.
    """
    groups: dict[int, list[Entries]] = {}
    kept = {}
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        journal = Journal.create(directory)
        number = 0
        for commit in range({"log": 12, "database": 90, "kept": 8}[shape]):
            batch: dict[int, Entries] = {}
            # A group that is freed never comes again: of a log that is cut off, what was there before is found.
            finishing = commit if shape == "kept" else commit // 5
            for group in (finishing, -1 - commit // 7, 1 << 41):
                length = (3, 500, 9_000)[(commit + group) % 3]
                batch[group] = [("ok", "review", number, str(number % 10) * length), ("failed", "x", number, None)]
                number += 1
            journal.commit(
                Batch(groups=batch, spending=SPENT, states={"counter": bytes(commit), "other": b"x" * 5_000})
            )
            for group, entries in batch.items():
                groups.setdefault(group, []).append(entries)
            if commit % 5 == 4 or shape == "kept":
                kept[finishing] = [("kept", None, commit, "k" * 6_000)]
                journal.keep(finishing, kept[finishing])
                journal.free(finishing)
                groups.pop(finishing)
        if shape == "kept":
            for group in groups:
                journal.free(group)
            groups.clear()
            journal.close()
            journal, _ = Journal.open(directory, trusted=False)
        files = {path.name: path.read_bytes() for path in directory.iterdir()}
        journal.close()
    states = {"counter": bytes(commit), "other": b"x" * 5_000}
    return Written(files=files, groups=groups, kept=kept, states=states)


def check(before: Written) -> Recovered:
    """Open the files: what comes back is what was committed, and if it is not all there is a sentence about it."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        before.put(directory)
        looked = inspect_journal(directory)
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before.files
        journal, found = Journal.open(directory, trusted=False)
        assert found == looked
        is_whole = found.spending == SPENT and found.states == before.states
        is_whole &= set(found.groups) == set(before.groups) and set(found.kept) == set(before.kept)
        for group, commits in before.groups.items():
            entries = journal.read(group)
            assert len(entries) == found.groups.get(group, 0)
            left = [commit for commit in commits if commit[0] in entries]
            assert entries == [entry for commit in left for entry in commit]
            is_whole &= len(left) == len(commits)
        for group, kept in before.kept.items():
            assert journal.kept(group) == (kept if group in found.kept else [])
        for name, state in found.states.items():
            assert name in before.states
            assert is_whole is False or state == before.states[name]
        assert is_whole or found.damage
        # It is whole from now on, and can be written.
        journal.commit(Batch(groups={5_000: [("ok", "late", 1)]}))
        journal.close()
        journal, again = Journal.open(directory, trusted=False)
        assert again == attrs.evolve(found, groups={**found.groups, 5_000: 1}, damage=())
        assert journal.read(5_000) == [("ok", "late", 1)]
        journal.close()
        assert {path.name for path in directory.iterdir()} <= {JOURNAL_NAME, MARK_NAME}
        return found


shapes = st.sampled_from(["log", "database", "kept"])
# Every example opens three databases and waits for the disk.
fewer = settings(max_examples=settings.default.max_examples // 2)


@pytest.mark.parametrize("shape", ["log", "database", "kept"])
def test_whole_files_are_not_damaged(shape: str) -> None:
    """Without damage nothing is said and all is there, also where the mark is missing."""
    for before in (written(shape), written(shape).damaged(MARK_NAME, None), written(shape).damaged(MARK_NAME, b"?")):
        assert check(before).damage == ()


@fewer
@given(shapes, st.sampled_from([JOURNAL_NAME, WAL_NAME]), st.data())
def test_flipped_bytes_cost_what_they_hit(shape: str, name: str, data: st.DataObject) -> None:
    """Wherever bytes are changed, what was not hit comes back, and what was lost is told."""
    before = written(shape)
    content = bytearray(before.files.get(name, b""))
    if not content:
        return
    # Where the structure is, at the beginning of pages and frames, as often as anywhere else.
    unit, first = (PAGE_SIZE, 0) if name == JOURNAL_NAME else (PAGE_SIZE + 24, 32)
    anywhere = st.integers(0, len(content) - 1)
    starts = st.builds(
        lambda page, offset: min(first + page * unit + offset, len(content) - 1),
        st.integers(0, len(content) // unit),
        st.integers(0, 40),
    )
    for place in data.draw(st.lists(anywhere | starts, min_size=1, max_size=3)):
        content[place] ^= data.draw(st.integers(1, 255))
    check(before.damaged(name, bytes(content)))


@fewer
@given(shapes, st.sampled_from([JOURNAL_NAME, WAL_NAME]), st.data())
def test_truncated_files_cost_what_was_cut_off(shape: str, name: str, data: st.DataObject) -> None:
    """Wherever a file is cut off, even between two commits, what is left comes back and what was lost is told."""
    before = written(shape)
    content = before.files.get(name, b"")
    frames = st.integers(0, len(content) // (PAGE_SIZE + 24)).map(lambda frame: 32 + frame * (PAGE_SIZE + 24))
    check(before.damaged(name, content[: data.draw(st.integers(0, len(content)) | frames)]))


def test_one_flipped_byte_in_the_data_costs_one_record() -> None:
    """A byte changed in the middle of a long text costs the commit of its group and nothing else."""
    before = written("database")
    content = bytearray(before.files[JOURNAL_NAME])
    place = content.find(b"7" * 3_000)
    assert place > 0
    content[place + 50] ^= 4
    found = check(before.damaged(JOURNAL_NAME, bytes(content)))
    (told,) = found.damage
    assert told == (
        "'journal.sqlite' is damaged: 2 entries of unfinished row groups are lost; their cells are made again; "
        "the state of 'counter', 'other' is lost"  # for it knows of what is lost
    )
    expected = sum(len(entries) for commits in before.groups.values() for entries in commits)
    assert sum(found.groups.values()) == expected - 2


def test_a_damaged_frame_does_not_cost_those_behind_it() -> None:
    """SQLite reads a log up to its first damaged frame; the commits after it come back all the same."""
    before = written("log")
    content = bytearray(before.files[WAL_NAME])
    commits = before.groups[1 << 41]
    assert len(commits) == 12
    place = content.find(next(commit[0][3] for commit in commits if len(commit[0][3]) > 5_000).encode()[:4_000])
    assert place > 0
    content[place] ^= 1
    found = check(before.damaged(WAL_NAME, bytes(content)))
    (told,) = found.damage
    assert told == (
        "'journal.sqlite-wal' is damaged: 2 entries of unfinished row groups are lost; their cells are made again; "
        "the state of 'counter', 'other' is lost"  # for it knows of what is lost
    )
    assert found.groups[1 << 41] == 22


def test_missing_files() -> None:
    """A database or a log that is gone is noticed by the mark."""
    before = written("log")
    assert "'journal.sqlite-wal' is damaged: " in check(before.damaged(WAL_NAME, None)).damage[0]
    assert "'journal.sqlite' is missing: nothing is lost" in check(before.damaged(JOURNAL_NAME, None)).damage[0]
    nothing = attrs.evolve(before, files={MARK_NAME: before.files[MARK_NAME]})
    assert "how many entries of unfinished row groups are lost cannot be said" in check(nothing).damage[0]


@given(st.binary(max_size=3 * PAGE_SIZE), st.binary(max_size=2 * PAGE_SIZE))
@example(b"\r" * PAGE_SIZE * 2, b"\xff" * PAGE_SIZE * 2)
def test_any_bytes_can_be_looked_at(database: bytes, wal: bytes) -> None:
    """Whatever is in the files, looking for records ends, and finds none that nobody wrote."""
    left = salvage(database, wal, None)
    assert len(left.rows) == 1
    assert left.entries is None


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("point", ["journal salvaged", "journal replaced"])
def test_killed_while_it_is_salvaged(tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a damaged journal is there whenever the process dies, and nothing is left behind."""
    before = written("log")
    before.put(tmp_path)
    data = bytearray(before.files[JOURNAL_NAME])
    data[:16] = bytes(16)
    (tmp_path / JOURNAL_NAME).write_bytes(data)

    def hook(name: str) -> None:
        if name == point:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(faults, "hook", hook)
        Journal.open(tmp_path, trusted=False)
    assert (tmp_path / SALVAGED_NAME).exists() is (point == "journal salvaged")
    journal, found = Journal.open(tmp_path, trusted=False)
    assert found.groups == {group: sum(map(len, commits)) for group, commits in before.groups.items()}
    assert found.states == before.states
    journal.close()
    assert {path.name for path in tmp_path.iterdir()} == {JOURNAL_NAME, MARK_NAME}


def test_looking_while_a_build_writes(tmp_path: Path) -> None:
    """The journal of a running build is left alone, and that is what is told."""
    out = tmp_path / "out"
    header = Header(rows=2, buffer_size=2, columns=("a",), created=0.0, version="0")
    with DatasetWriter.create(out, header):
        assert inspect_journal(out) is None
        journal = Journal.create(out)
        assert inspect_journal(out) == Recovered(in_use=True)
        journal.commit(Batch(groups={0: [("ok", "a", 1)]}))
        journal.close()
    assert inspect_journal(out) == Recovered(groups={0: 1})


def test_a_journal_that_cannot_be_read(tmp_path: Path) -> None:
    """What is no damage but a refusal of the system is an error that names the directory."""
    written("log").put(tmp_path)
    (tmp_path / JOURNAL_NAME).unlink()
    (tmp_path / JOURNAL_NAME).mkdir()
    with pytest.raises(StoreError, match=r"the journal in .* cannot be used: .*not a regular file"):
        Journal.open(tmp_path, trusted=False)
    shutil.rmtree(tmp_path / JOURNAL_NAME)
