"""The journal of unfinished row groups."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seedbed.errors import StoreError
from seedbed.models.base import ChatAnswer
from seedbed.observe.report import Drop, Origin, Usage
from seedbed.runtime import faults
from seedbed.store import journal as journal_module
from seedbed.store.entries import (
    Answer,
    DroppedRows,
    Entry,
    Failed,
    Finished,
    FinishedRows,
    GeneratorCall,
    Key,
    Purpose,
    Rebuilt,
)
from seedbed.store.files import PRIVATE
from seedbed.store.journal import SEGMENT_SIZE, Journal, Recovered

ORIGIN = Origin("m", 1, 2, 3, 4, 1, 0.5, 0.1)
SPENT = (("review", "small", Usage(calls=3, input_tokens=10, output_tokens=20, cost=0.5)),)


def names(directory: Path) -> list[str]:
    """The segments of the journal."""
    return sorted(path.name for path in directory.glob(f"{PRIVATE}/*"))


def size(directory: Path) -> int:
    """How many bytes they have."""
    return sum(path.stat().st_size for path in directory.glob(f"{PRIVATE}/*"))


def finished(value: Any, row: int = 0, column: str = "review") -> Finished:
    """An entry as the engine writes it."""
    return Finished(column=column, row=row, attempt=1, salvage_round=0, value=value, origin=None)


def cells(*numbers: int) -> list[Entry]:
    """Several of them."""
    return [finished(f"text {number}", number) for number in numbers]


def build(group: int) -> Key:
    """The key of an unfinished row group."""
    return Key(group=group)


def kept(group: int) -> Key:
    """The key of what outlives a row group."""
    return Key(group=group, purpose=Purpose.DROPPED)


def reopen(journal: Journal) -> tuple[Journal, Recovered]:
    """Close it and open it again."""
    journal.close()
    return Journal.open(journal.directory, trusted=False)


def left_in(journal: Journal) -> Recovered:
    """Close it and return what is recovered when it is opened again."""
    journal, found = reopen(journal)
    journal.close()
    return found


def test_commits_are_recovered_in_order(tmp_path: Path) -> None:
    """Entries of several groups and commits, the usage and the newest states are recovered."""
    journal = Journal.create(tmp_path)
    assert journal.commit({build(0): cells(1, 2), build(5): cells(3)}, states={"count": b"1"}) == 3
    assert journal.commit({build(0): cells(0)}, usage=SPENT, states={"count": b"2", "other": b"x"}) == 1
    assert journal.commit({}) == 0
    journal, found = reopen(journal)
    states = {"count": b"2", "other": b"x"}
    assert found == Recovered(groups={build(0): 3, build(5): 1}, usage=SPENT, states=states)
    assert journal.read(build(0)) == cells(1, 2, 0)
    assert journal.read(build(5)) == cells(3)
    assert journal.read(build(9)) == []
    journal.close()


@pytest.mark.parametrize(
    "entry",
    [
        Finished(
            column="a",
            row=-1,
            attempt=2,
            salvage_round=1,
            value=([0, 1], [["x", "y"]]),
            origin=Origin("m", 1, 2, 3, 4, 1, 0.5, 0.1),
        ),
        Failed(column="a", row=3, attempt=1, salvage_round=0, error="no", consequence="dropped"),
        Answer(column="a", row=3, attempt=1, key=b"key", answer=ChatAnswer(text="yes")),
        Rebuilt(
            columns={"a": [1]},
            resized=(("filter", 1, 0),),
            drops=[Drop(row=1, column="p", attempts=1, error="e", kind="removed")],
        ),
        FinishedRows(column="a", rows=[0, 2], columns=[[1, 2]]),
        DroppedRows(order=[(0, 0)], identities=[(1, 0), (1, 1)], resized=(("filter", 0, 1),), count=2),
        GeneratorCall(column="a", identities=[(0, 0), (1, 0)], inputs={"b": [1, 2]}),
    ],
    ids=lambda entry: type(entry).__name__,
)
def test_every_kind_of_entry_is_restored(tmp_path: Path, entry: Entry) -> None:
    """What was committed is equal to what is read."""
    journal = Journal.create(tmp_path)
    journal.commit({build(0): [entry]})
    assert journal.read(build(0)) == [entry]
    journal.close()


def test_entries_are_stored_by_the_whole_key(tmp_path: Path) -> None:
    """Entries whose row group, revision or purpose differs are separate."""
    keys = [
        Key(group=group, revision=revision, purpose=each) for group in (0, 1) for revision in (0, 1) for each in Purpose
    ]
    journal = Journal.create(tmp_path)
    journal.commit({key: cells(number) for number, key in enumerate(keys)})
    journal, _ = reopen(journal)
    assert [journal.read(key) for key in keys] == [cells(number) for number in range(len(keys))]
    journal.close()


def test_a_finished_group_is_freed(tmp_path: Path) -> None:
    """Freeing a group forgets its entries; its long-lived entries stay until they are freed or replaced."""
    journal = Journal.create(tmp_path)
    journal.commit({build(0): cells(1, 2), build(1): cells(3)})
    journal.commit({kept(0): cells(2)})
    journal.free(build(0))
    journal.free(build(7))
    journal.commit({kept(7): []})
    journal, found = reopen(journal)
    assert (found.groups, found.long_lived, found.damage) == ({build(1): 1}, {kept(0)}, ())
    assert (journal.read(build(0)), journal.read(kept(0)), journal.read(kept(1))) == ([], cells(2), [])
    journal.commit({build(0): cells(8)})
    journal.commit({kept(0): cells(8, 9)})
    journal.free(build(0))
    assert journal.read(kept(0)) == cells(8, 9)
    journal.free(kept(0))
    journal.free(kept(0))
    assert left_in(journal) == Recovered(groups={build(1): 1})


def test_segments_are_removed_with_their_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a build runs, the journal holds unfinished and long-lived entries, and little else."""
    monkeypatch.setattr("seedbed.store.journal.SEGMENT_SIZE", 10_000)
    journal = Journal.create(tmp_path)
    journal.commit({build(1_000): cells(1)}, states={"a": b"state"}, usage=SPENT)
    largest = 0
    for group in range(60):
        for number in range(10):
            journal.commit({build(group): cells(*range(number, number + 20))})
        if group % 20 == 0:
            journal.commit({kept(group): cells(group)})
        journal.free(build(group))
        largest = max(largest, size(tmp_path))
    assert largest < 60_000
    journal, found = reopen(journal)
    states = {"a": b"state"}
    keys = frozenset(map(kept, (0, 20, 40)))
    assert found == Recovered(groups={build(1_000): 1}, long_lived=keys, states=states, usage=SPENT)
    assert journal.read(build(1_000)) == cells(1)
    assert journal.read(kept(20)) == cells(20)
    journal.close()


def test_a_finished_build_removes_the_journal(tmp_path: Path) -> None:
    """Without long-lived entries all files are removed; otherwise only these stay, in a smaller file."""
    journal = Journal.create(tmp_path)
    for _ in range(3):
        journal.commit({build(0): cells(*range(20_000))}, states={"a": b"x" * 9_000})
    journal.commit({kept(1): cells(1)})
    large = size(tmp_path)
    journal.finish()
    assert len(names(tmp_path)) == 1
    assert size(tmp_path) < large / 10
    journal, found = Journal.open(tmp_path, trusted=False)
    assert found == Recovered(long_lived=frozenset({kept(1)}))
    journal.free(kept(1))
    journal.finish()
    journal.close()
    assert names(tmp_path) == []


def test_a_missing_journal_is_created(tmp_path: Path) -> None:
    """A directory without a journal gets an empty one."""
    journal, found = Journal.open(tmp_path, trusted=False)
    assert found == Recovered()
    assert journal.commit({build(0): cells(1)}) == 1
    journal.close()


def test_entries_that_cannot_be_stored_are_counted(tmp_path: Path) -> None:
    """An entry whose value cannot be stored is left out and counted under its column; the others are durable."""
    journal = Journal.create(tmp_path)
    odd = finished(threading.Lock(), column="handles")
    assert journal.commit({build(0): [*cells(1), odd, *cells(2)], build(1): [odd]}) == 2
    assert journal.unpicklable == {"handles": 2}
    assert journal.read(build(0)) == cells(1, 2)
    journal.free(build(0))
    journal.commit({kept(0): [odd]})
    assert journal.unpicklable == {"handles": 3}
    assert left_in(journal) == Recovered()


def test_a_closed_journal_raises(tmp_path: Path) -> None:
    """Nothing can be written or read after closing, and closing again does nothing."""
    journal = Journal.create(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(StoreError, match="is closed"):
        journal.commit({build(0): cells(1)})


@pytest.mark.parametrize("gone", ["directory", "file", "replaced"])
def test_a_removed_journal_is_an_error(tmp_path: Path, gone: str) -> None:
    """A commit into a file that was removed or replaced is an error."""
    out = tmp_path / "out"
    out.mkdir()
    journal = Journal.create(out)
    journal.commit({build(0): cells(1)})
    if gone == "directory":
        shutil.rmtree(out)
    else:
        (segment,) = out.glob(f"{PRIVATE}/journal-*")
        segment.unlink()
    if gone == "replaced":
        segment.write_bytes(b"other")
    with pytest.raises(StoreError, match=r"the journal in '.*out' cannot be used: .*(No such file|removed)"):
        journal.commit({build(0): cells(2)})
    journal.close()


def test_commits_of_several_threads(tmp_path: Path) -> None:
    """Commits of several threads at once are all stored."""
    journal = Journal.create(tmp_path)
    barrier = threading.Barrier(4)

    def work(group: int) -> None:
        barrier.wait()
        for number in range(20):
            journal.commit({build(group): cells(number)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    journal, found = reopen(journal)
    assert found == Recovered(groups=dict.fromkeys(map(build, range(4)), 20))
    assert journal.read(build(3)) == cells(*range(20))
    journal.close()


class Killed(BaseException):
    """Stands for the end of the process."""


class JournalMachine(RuleBasedStateMachine):
    """After any operations, and a kill at any point, everything that was committed is recovered."""

    @initialize()
    def start(self) -> None:
        """Start empty."""
        self.scratch = tempfile.TemporaryDirectory()
        self.directory = Path(self.scratch.name)
        journal_module.SEGMENT_SIZE = 600
        self.journal = Journal.create(self.directory)
        self.copies = 0
        self.groups: dict[Key, list[Any]] = {}
        self.kept: dict[Key, list[Any]] = {}
        self.states: dict[str, bytes] = {}

    @rule(
        groups=st.dictionaries(st.integers(0, 3).map(build), st.lists(st.text().map(finished))),
        states=st.dictionaries(st.sampled_from("ab"), st.binary()),
    )
    def commit(self, groups: dict[Key, list[Any]], states: dict[str, bytes]) -> None:
        """Add entries and states."""
        assert self.journal.commit(groups, states=states) == sum(map(len, groups.values()))
        for group, entries in groups.items():
            if entries:
                self.groups.setdefault(group, []).extend(entries)
        self.states.update(states)

    @rule(group=st.integers(0, 3).map(build))
    def free(self, group: Key) -> None:
        """Finish a group."""
        self.journal.free(group)
        self.groups.pop(group, None)

    @rule(group=st.integers(0, 3).map(kept), kept=st.lists(st.text().map(finished), max_size=2))
    def keep(self, group: Key, kept: list[Any]) -> None:
        """Keep entries beyond the end of a group."""
        self.journal.commit({group: kept})
        self.kept.pop(group, None)
        if kept:
            self.kept[group] = kept

    @rule(group=st.integers(0, 3).map(kept))
    def drop_kept(self, group: Key) -> None:
        """Forget long-lived entries."""
        self.journal.free(group)
        self.kept.pop(group, None)

    @rule(point=st.sampled_from(["journal written", "journal committed"]))
    def killed(self, point: str) -> None:
        """Die in the middle of a commit; what is on disk at that instant is what the next process finds."""
        self.copies += 1
        found = self.directory.parent / f"{self.directory.name}-{self.copies}"

        def hook(name: str) -> None:
            if name == point:
                shutil.copytree(self.directory, found)
                raise Killed

        faults.hook = hook
        try:
            with pytest.raises(Killed):
                self.journal.commit({build(8): [finished("late")]})
        finally:
            faults.hook = None
        with contextlib.suppress(StoreError):
            self.journal.close()
        shutil.rmtree(self.directory)
        found.rename(self.directory)
        # What was written but not waited for may be there or not.
        self.groups.setdefault(build(8), []).append(finished("late"))
        self.open_again()

    @rule()
    def closed(self) -> None:
        """End in good order."""
        self.journal.close()
        self.open_again()

    def open_again(self) -> None:
        """What is found is what was committed."""
        self.journal, found = Journal.open(self.directory, trusted=False)
        assert found.damage == ()
        assert found.groups == {group: len(entries) for group, entries in self.groups.items()}
        assert found.long_lived == self.kept.keys()
        assert found.states == self.states

    @invariant()
    def everything_is_recovered(self) -> None:
        """Every group is read as it was written."""
        for group in range(10):
            assert self.journal.read(build(group)) == self.groups.get(build(group), [])
            assert self.journal.read(kept(group)) == self.kept.get(kept(group), [])

    def teardown(self) -> None:
        """Let go of the files."""
        journal_module.SEGMENT_SIZE = SEGMENT_SIZE
        if hasattr(self, "journal"):
            self.journal.close()
            self.scratch.cleanup()


TestJournalMachine = JournalMachine.TestCase
# Every step waits for the disk.
TestJournalMachine.settings = settings(max_examples=settings.default.max_examples // 10, stateful_step_count=20)
