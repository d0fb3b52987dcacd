"""Group commit: when, in which order, and what happens when it fails."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import trio

from seedbed import RunConfig
from seedbed.engine.storage import COMMIT_DEADLINE, Recorder
from seedbed.errors import StoreError
from seedbed.graph import GROUP
from seedbed.store.entries import Failed, Finished, Key, Purpose

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock


ONE, OTHER = Key(group=0), Key(group=1)


def entry(row: int, value: Any = "value", column: str = "v") -> Finished:
    """A finished cell."""
    return Finished(column=column, row=row, attempt=1, salvage_round=0, value=value, origin=None)


class FakeJournal:
    """Keeps what is committed, and when."""

    def __init__(self) -> None:
        self.commits: list[tuple[float, dict[Key, list[Any]]]] = []
        self.freed: list[Key] = []
        self.fail = False
        self.unpicklable: Counter[str] = Counter()

    def commit(self, groups: dict[Key, list[Any]], **_: object) -> int:
        if self.fail:
            raise StoreError("no space left")
        for entries in groups.values():
            self.unpicklable.update(
                each.column for each in entries if isinstance(each, Finished) and each.value == "unpicklable"
            )
        self.commits.append((trio.current_time(), {key: list(entries) for key, entries in groups.items()}))
        return sum(map(len, groups.values()))

    def free(self, key: Key, *, finished: int | None = None) -> None:
        self.freed.append(key)


class Scene:
    """A recorder over a journal that needs no thread."""

    def __init__(self, **options: Any) -> None:
        self.journal = FakeJournal()
        self.durable = 0
        self.hang = False
        self.unpicklable: list[str] = []
        self.recorder = Recorder(
            self.journal,  # type: ignore[arg-type]
            RunConfig(**options),
            in_thread=self._in_thread,
            usage=tuple,
            finished=int,
            on_commit=self._on_commit,
            on_unpicklable=self.unpicklable.append,
        )

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        if self.hang:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return work()

    def _on_commit(self, cells: int) -> None:
        self.durable += cells


async def test_entries_are_committed_after_the_interval(autojump_clock: MockClock) -> None:
    """What is added within an interval is one commit, in order; a cell is durable only after it."""
    scene = Scene(commit_interval=0.05)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.recorder.run)
        scene.recorder.add(ONE, entry(1))
        await trio.sleep(0.04)
        scene.recorder.add(OTHER, entry(2))
        scene.recorder.add(ONE, entry(3))
        assert scene.durable == 0
        await trio.sleep(1)
        assert scene.durable == 3
        nursery.cancel_scope.cancel()
    [(when, groups)] = scene.journal.commits
    assert when - start == pytest.approx(0.05)
    assert groups == {ONE: [entry(1), entry(3)], OTHER: [entry(2)]}


@pytest.mark.parametrize("count", [1, 3])
async def test_commit_count_entries_are_committed_at_once(count: int, autojump_clock: MockClock) -> None:
    """`commit_count` entries are committed at once, whatever the interval."""
    scene = Scene(commit_interval=10, commit_count=count)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.recorder.run)
        for row in range(count):
            scene.recorder.add(ONE, entry(row))
        await trio.testing.wait_all_tasks_blocked()
        assert scene.durable == count
        nursery.cancel_scope.cancel()


async def test_a_task_for_a_whole_group_counts_its_rows() -> None:
    """Durable cells are counted as cells, whoever made them."""
    scene = Scene()
    scene.recorder.add(ONE, entry(GROUP, ([0, 1, 2], [["a", "b", "c"]])))
    scene.recorder.add(ONE, Failed(column="v", row=0, attempt=1, salvage_round=0, error="no", consequence="dropped"))
    await scene.recorder.flush()
    assert scene.durable == 3


async def test_unpicklable_values_are_not_durable_and_are_reported_once() -> None:
    """A value that the journal had to leave out does not count, and its column is named."""
    scene = Scene()
    for row in range(2):
        scene.recorder.add(ONE, entry(row))
        scene.recorder.add(ONE, entry(row, "unpicklable", "odd"))
        await scene.recorder.flush()
    assert scene.durable == 2
    assert scene.unpicklable == ["odd"]


async def test_a_flush_is_not_interrupted() -> None:
    """Whatever was added is durable although the run is being cancelled."""
    scene = Scene()
    with trio.CancelScope() as scope:
        scope.cancel()
        scene.recorder.add(ONE, entry(1))
        await scene.recorder.flush()
    assert scene.durable == 1


async def test_nothing_is_committed_after_a_commit_that_failed() -> None:
    """What is durable is always a beginning of what happened, so after a gap nothing may follow."""
    scene = Scene()
    scene.recorder.add(ONE, entry(1))
    scene.journal.fail = True
    with pytest.raises(StoreError, match="no space left"):
        await scene.recorder.flush()
    scene.journal.fail = False
    scene.recorder.add(ONE, entry(2))
    await scene.recorder.flush()
    assert scene.journal.commits == []
    assert scene.durable == 0


async def test_a_disk_that_hangs_is_an_error(autojump_clock: MockClock) -> None:
    """A commit that does not come back is abandoned after its deadline."""
    scene = Scene()
    scene.hang = True
    scene.recorder.add(ONE, entry(1))
    start = trio.current_time()
    with pytest.raises(StoreError, match="could not be written within 60 s"):
        await scene.recorder.flush()
    assert trio.current_time() - start == pytest.approx(COMMIT_DEADLINE)


async def test_entries_that_are_stored_are_never_durable_before_those_added_earlier() -> None:
    """What outlives a checkpoint is committed together with what is pending, also that of other row groups."""
    scene = Scene()
    kept = Key(group=1, purpose=Purpose.DROPPED)
    scene.recorder.add(ONE, entry(1))
    await scene.recorder.store(kept, [entry(2)])
    assert [groups for _, groups in scene.journal.commits] == [{ONE: [entry(1)], kept: [entry(2)]}]


async def test_entries_that_are_stored_count_no_cell_a_second_time() -> None:
    """Entries that outlive a checkpoint repeat cells whose own entries were counted when they became durable."""
    scene = Scene()
    scene.recorder.add(ONE, entry(1))
    await scene.recorder.flush()
    await scene.recorder.store(Key(group=0, purpose=Purpose.DROPPED), [entry(1)])
    assert scene.durable == 1


async def test_nothing_is_stored_after_a_commit_that_failed() -> None:
    """A row group whose entries cannot be stored is not checkpointed: `store` raises."""
    scene = Scene()
    scene.recorder.add(ONE, entry(1))
    scene.journal.fail = True
    with pytest.raises(StoreError, match="no space left"):
        await scene.recorder.flush()
    scene.journal.fail = False
    with pytest.raises(StoreError, match="an earlier commit of it failed"):
        await scene.recorder.store(Key(group=1, purpose=Purpose.DROPPED), [entry(2)])
    assert scene.journal.commits == []


async def test_a_finished_group_is_not_committed_any_more() -> None:
    """Entries of a group that is in the dataset are dropped, and its cells count as durable."""
    scene = Scene()
    scene.recorder.add(ONE, entry(1))
    scene.recorder.add(OTHER, entry(2))
    await scene.recorder.free(ONE)
    assert scene.journal.freed == [ONE]
    assert scene.durable == 1
    await scene.recorder.flush()
    assert [groups for _, groups in scene.journal.commits] == [{OTHER: [entry(2)]}]
    assert scene.durable == 2
