"""The journal of unfinished row groups."""

from __future__ import annotations

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
from seedbed.runtime import faults
from seedbed.store.journal import Batch, Journal, Recovered

SPENT = (("review", "small", 3, 10, 20, 0.5),)


def names(directory: Path) -> list[str]:
    """What is in the directory."""
    return sorted(path.name for path in directory.iterdir())


def cells(*numbers: int) -> list[tuple[Any, ...]]:
    """Entries as the engine writes them."""
    return [("ok", "review", number, f"text {number}") for number in numbers]


def reopen(journal: Journal) -> tuple[Journal, Recovered]:
    """Close it and open it again."""
    journal.close()
    return Journal.open(journal.directory, trusted=False)


def left_in(journal: Journal) -> Recovered:
    """Close it and say what the next who opens it finds."""
    journal, found = reopen(journal)
    journal.close()
    return found


def test_what_was_committed_comes_back_in_order(tmp_path: Path) -> None:
    """Entries of several groups and commits, what was spent and the newest states are there after opening."""
    journal = Journal.create(tmp_path)
    assert journal.commit(Batch(groups={0: cells(1, 2), 5: cells(3)}, states={"count": b"1"})) == 3
    assert journal.commit(Batch(groups={0: cells(0)}, spending=SPENT, states={"count": b"2", "other": b"x"})) == 1
    assert journal.commit(Batch()) == 0
    journal, found = reopen(journal)
    assert found == Recovered(groups={0: 3, 5: 1}, spending=SPENT, states={"count": b"2", "other": b"x"})
    assert journal.read(0) == cells(1, 2, 0)
    assert journal.read(5) == cells(3)
    assert journal.read(9) == []
    journal.close()


def test_a_finished_group_is_freed(tmp_path: Path) -> None:
    """Freeing a group forgets its entries; what is kept of it stays until it is dropped or replaced."""
    journal = Journal.create(tmp_path)
    journal.commit(Batch(groups={0: cells(1, 2), 1: cells(3)}))
    journal.keep(0, cells(2))
    journal.free(0)
    journal.free(7)
    journal.keep(7, [])
    journal, found = reopen(journal)
    assert (found.groups, found.kept, found.damage) == ({1: 1}, {0}, ())
    assert (journal.read(0), journal.kept(0), journal.kept(1)) == ([], cells(2), [])
    journal.commit(Batch(groups={0: cells(8)}))
    journal.keep(0, cells(8, 9))
    journal.free(0)
    assert journal.kept(0) == cells(8, 9)
    journal.drop_kept(0)
    journal.drop_kept(0)
    assert left_in(journal) == Recovered(groups={1: 1})


def test_the_end_of_a_build_leaves_nothing(tmp_path: Path) -> None:
    """Without anything kept the files go; with something kept only that stays, in a file that has shrunk."""
    journal = Journal.create(tmp_path)
    for _ in range(3):
        journal.commit(Batch(groups={0: cells(*range(20_000))}, states={"a": b"x" * 9_000}))
    journal.keep(-1, cells(1))
    journal.free(0)
    large = (tmp_path / "journal.sqlite").stat().st_size
    journal.finish()
    assert names(tmp_path) == ["journal.mark", "journal.sqlite"]
    assert (tmp_path / "journal.sqlite").stat().st_size < large / 10
    journal, found = Journal.open(tmp_path, trusted=False)
    assert found == Recovered(kept=frozenset({-1}))
    journal.drop_kept(-1)
    journal.finish()
    journal.close()
    assert names(tmp_path) == []


def test_a_missing_journal_is_made(tmp_path: Path) -> None:
    """A directory without a journal gets an empty one."""
    journal, found = Journal.open(tmp_path, trusted=False)
    assert found == Recovered()
    assert journal.commit(Batch(groups={0: cells(1)})) == 1
    journal.close()


def test_entries_that_cannot_be_kept_are_counted(tmp_path: Path) -> None:
    """An entry that cannot be pickled is left out and counted under its column; the others are durable."""
    journal = Journal.create(tmp_path)
    odd = ("ok", "handles", 0, threading.Lock())
    assert journal.commit(Batch(groups={0: [*cells(1), odd, *cells(2)], 1: [odd]})) == 2
    assert journal.unkept == {"handles": 2}
    assert journal.read(0) == cells(1, 2)
    journal.free(0)
    journal.keep(0, [odd])
    assert journal.unkept == {"handles": 3}
    assert left_in(journal) == Recovered()


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    """Nothing can be written or read after closing, and closing again does nothing."""
    journal = Journal.create(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(StoreError, match="is closed"):
        journal.commit(Batch(groups={0: cells(1)}))


@pytest.mark.parametrize("gone", ["directory", "file", "replaced"])
def test_a_journal_that_is_gone_stops_the_run(tmp_path: Path, gone: str) -> None:
    """A commit into a file that nobody will ever find again is an error, not a success."""
    out = tmp_path / "out"
    out.mkdir()
    journal = Journal.create(out)
    journal.commit(Batch(groups={0: cells(1)}))
    if gone == "directory":
        shutil.rmtree(out)
    else:
        (out / "journal.sqlite").unlink()
    if gone == "replaced":
        (out / "journal.sqlite").write_bytes(b"other")
    with pytest.raises(StoreError, match=r"the journal in '.*out' cannot be used: .*(No such file|removed)"):
        journal.commit(Batch(groups={0: cells(2)}))
    journal.close()


def test_threads_take_turns(tmp_path: Path) -> None:
    """Commits of several threads at once are all there."""
    journal = Journal.create(tmp_path)
    barrier = threading.Barrier(4)

    def work(group: int) -> None:
        barrier.wait()
        for number in range(20):
            journal.commit(Batch(groups={group: cells(number)}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    journal, found = reopen(journal)
    assert found == Recovered(groups=dict.fromkeys(range(4), 20))
    assert journal.read(3) == cells(*range(20))
    journal.close()


class Killed(BaseException):
    """Stands for the end of the process."""


class JournalMachine(RuleBasedStateMachine):
    """Whatever is done and wherever it is killed, what had been committed is there and nothing else is lost."""

    @initialize()
    def start(self) -> None:
        """Start empty."""
        self.scratch = tempfile.TemporaryDirectory()
        self.directory = Path(self.scratch.name)
        self.journal = Journal.create(self.directory)
        self.copies = 0
        self.groups: dict[int, list[Any]] = {}
        self.kept: dict[int, list[Any]] = {}
        self.states: dict[str, bytes] = {}

    @rule(
        groups=st.dictionaries(st.integers(0, 3), st.lists(st.tuples(st.just("ok"), st.just("c"), st.text()))),
        states=st.dictionaries(st.sampled_from("ab"), st.binary()),
    )
    def commit(self, groups: dict[int, list[Any]], states: dict[str, bytes]) -> None:
        """Add entries and states."""
        assert self.journal.commit(Batch(groups=groups, states=states)) == sum(map(len, groups.values()))
        for group, entries in groups.items():
            if entries:
                self.groups.setdefault(group, []).extend(entries)
        self.states.update(states)

    @rule(group=st.integers(0, 3))
    def free(self, group: int) -> None:
        """Finish a group."""
        self.journal.free(group)
        self.groups.pop(group, None)

    @rule(group=st.integers(0, 3), kept=st.lists(st.tuples(st.just("ok"), st.just("c"), st.text()), max_size=2))
    def keep(self, group: int, kept: list[Any]) -> None:
        """Keep entries beyond the end of a group."""
        self.journal.keep(group, kept)
        self.kept.pop(group, None)
        if kept:
            self.kept[group] = kept

    @rule(group=st.integers(0, 3))
    def drop_kept(self, group: int) -> None:
        """Forget what was kept."""
        self.journal.drop_kept(group)
        self.kept.pop(group, None)

    @rule(point=st.sampled_from(["journal written", "journal committed", "journal kept", "journal marked"]))
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
                if point == "journal kept":
                    self.journal.keep(9, [])
                else:
                    self.journal.commit(Batch(groups={8: [("ok", "c", "late")]}))
        finally:
            faults.hook = None
        self.journal.close()
        shutil.rmtree(self.directory)
        found.rename(self.directory)
        if point in {"journal committed", "journal marked"}:
            self.groups.setdefault(8, []).append(("ok", "c", "late"))
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
        assert found.kept == self.kept.keys()
        assert found.states == self.states

    @invariant()
    def all_there(self) -> None:
        """Every group reads as it was written."""
        for group in range(10):
            assert self.journal.read(group) == self.groups.get(group, [])
            assert self.journal.kept(group) == self.kept.get(group, [])
        assert len(names(self.directory)) <= 3

    def teardown(self) -> None:
        """Let go of the files."""
        if hasattr(self, "journal"):
            self.journal.close()
            self.scratch.cleanup()


TestJournalMachine = JournalMachine.TestCase
# Every step waits for the disk.
TestJournalMachine.settings = settings(max_examples=settings.default.max_examples // 10, stateful_step_count=20)
