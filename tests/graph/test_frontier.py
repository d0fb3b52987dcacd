"""Which tasks of one row group are ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plain import Plain

from seedbed.graph import GROUP, Kind, build_graph
from seedbed.graph.frontier import Frontier

if TYPE_CHECKING:
    from seedbed.graph import Graph


SEED, CELL, WHOLE, LAST, FREE = range(5)


def make_graph() -> Graph:
    """A seed, a cell column of it, a whole column of that, a cell column of both, and a cell column on its own."""
    return build_graph(
        [
            Plain("seed", kind=Kind.FROM_SCRATCH),
            Plain("cell", ("seed",)),
            Plain("whole", ("cell",), kind=Kind.FULL_COLUMN),
            Plain("last", ("cell", "whole")),
            Plain("free"),
        ]
    )


def test_roots_are_ready_at_admission() -> None:
    """Columns from scratch as a whole, columns without requirements cell by cell."""
    assert Frontier(make_graph(), 2).begin() == [(SEED, GROUP), (FREE, 0), (FREE, 1)]


def test_a_barrier_holds_back_all_but_columns_from_scratch() -> None:
    """Before the pre-batch processors ran, a column without requirements waits too."""
    frontier = Frontier(make_graph(), 2, barrier=True)
    assert frontier.begin() == [(SEED, GROUP)]
    assert not frontier.from_scratch_done
    frontier.complete_group(SEED)
    assert frontier.from_scratch_done


def test_a_cell_makes_its_own_row_ready() -> None:
    """A whole column is ready only with the last of its rows."""
    frontier = Frontier(make_graph(), 2)
    assert frontier.complete_group(SEED) == [(CELL, 0), (CELL, 1)]
    assert frontier.complete_cell(CELL, 1) == []
    assert frontier.complete_cell(CELL, 0) == [(WHOLE, GROUP)]
    assert frontier.is_done(CELL, 0)
    assert not frontier.is_done(WHOLE, 0)
    assert frontier.complete_group(WHOLE) == [(LAST, 0), (LAST, 1)]


def test_complete_when_nothing_is_left() -> None:
    """Every cell counts down to zero."""
    frontier = Frontier(make_graph(), 1)
    assert frontier.left == 5
    frontier.complete_group(SEED)
    frontier.complete_cell(CELL, 0)
    frontier.complete_group(WHOLE)
    frontier.complete_cell(LAST, 0)
    assert not frontier.complete
    frontier.complete_cell(FREE, 0)
    assert frontier.complete
    assert frontier.left == 0


def test_dropping_the_last_missing_row_makes_a_whole_column_ready() -> None:
    """A whole column does not wait for a dropped row."""
    frontier = Frontier(make_graph(), 3)
    frontier.complete_group(SEED)
    frontier.complete_cell(CELL, 0)
    frontier.complete_cell(CELL, 2)
    assert frontier.drop_row(1) == [(WHOLE, GROUP)]
    assert frontier.live_rows() == [0, 2]
    assert frontier.complete_group(WHOLE) == [(LAST, 0), (LAST, 2)]


def test_a_row_dropped_while_its_whole_column_runs() -> None:
    """The column does not become ready a second time, and the row's cells are not done."""
    frontier = Frontier(make_graph(), 2)
    frontier.complete_group(SEED)
    frontier.complete_cell(CELL, 0)
    assert frontier.complete_cell(CELL, 1) == [(WHOLE, GROUP)]
    assert frontier.drop_row(0) == []
    assert frontier.complete_group(WHOLE) == [(LAST, 1)]
    assert not frontier.is_done(WHOLE, 0)


def test_a_dropped_row_is_ignored() -> None:
    """A late completion or a second drop changes nothing."""
    frontier = Frontier(make_graph(), 2)
    frontier.complete_group(SEED)
    frontier.drop_row(0)
    left = frontier.left
    assert frontier.complete_cell(CELL, 0) == []
    assert frontier.drop_row(0) == []
    assert frontier.fail(CELL, 0) == ([], [])
    assert frontier.left == left
    assert not frontier.is_done(CELL, 0)


def test_all_rows_dropped_is_complete_and_runs_nothing() -> None:
    """A group whose rows are all dropped is complete, and no full column becomes ready for it."""
    frontier = Frontier(make_graph(), 2)
    frontier.complete_group(SEED)
    assert frontier.drop_row(0) == []
    assert frontier.drop_row(1) == []
    assert frontier.complete
    assert frontier.live == 0


def test_a_failed_cell_drops_its_row_and_a_failed_column_all() -> None:
    """`fail` returns the dropped rows and the tasks that became ready."""
    frontier = Frontier(make_graph(), 3)
    frontier.complete_group(SEED)
    assert frontier.fail(CELL, 1) == ([1], [])
    assert frontier.fail(WHOLE, GROUP) == ([0, 2], [])
    assert frontier.complete


def test_rebuild_starts_over_with_other_rows() -> None:
    """After the barrier the seeds are done, whatever the number of rows, and everything else is new."""
    frontier = Frontier(make_graph(), 1, barrier=True)
    frontier.begin()
    frontier.complete_group(SEED)
    ready = frontier.rebuild(3)
    assert sorted(ready) == [(CELL, 0), (CELL, 1), (CELL, 2), (FREE, 0), (FREE, 1), (FREE, 2)]
    assert frontier.rows == frontier.live == 3
    assert not frontier.barrier
    assert frontier.is_done(SEED, 2)
    assert frontier.left == 12


def test_rebuild_without_rows_is_complete() -> None:
    """After a processor that removed every row the group is complete."""
    frontier = Frontier(make_graph(), 2, barrier=True)
    frontier.complete_group(SEED)
    assert frontier.rebuild(0) == []
    assert frontier.complete


def test_no_rows_are_complete_from_the_beginning() -> None:
    """Nothing is ready and nothing is missing in an empty group."""
    frontier = Frontier(make_graph(), 0)
    assert frontier.begin() == []
    assert frontier.complete


def test_each_task_is_ready_exactly_once() -> None:
    """In any order of completions and drops, no task is returned twice."""
    frontier = Frontier(make_graph(), 4)
    seen = frontier.begin()
    todo = list(seen)
    while todo:
        node, row = todo.pop(0)
        if row == GROUP:
            ready = frontier.complete_group(node)
        elif (node, row) == (CELL, 2):
            ready = frontier.drop_row(row)
        else:
            ready = frontier.complete_cell(node, row)
        seen += ready
        todo += ready
    assert len(seen) == len(set(seen))
    assert frontier.complete
    assert (LAST, 2) not in seen
