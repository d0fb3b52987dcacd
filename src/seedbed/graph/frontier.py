"""What is ready in one row group.

Counters and not scans: a finished cell decrements the counters of what needs it, so it costs O(out-degree) whatever the
number of rows. Rows are local indices, 0 to rows - 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .graph import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .graph import Graph

# The row of a task that is for the whole row group.
GROUP = -1

Ready = tuple[int, int]  # node index, row (or GROUP)


class Frontier:
    """The readiness of one row group; one writer, the row group's task.

    Each method that may make tasks ready returns them, each exactly once. `barrier=True` keeps everything but the
    columns made from scratch back until `rebuild` is called with the rows that the pre-batch processors left.

    A dropped row needs nothing more, but for the nodes in `always`: those run for every row whose inputs to them
    succeeded, dropped or not. With each node `always` must hold all that it needs.
    """

    def __init__(self, graph: Graph, rows: int, *, barrier: bool = False, always: frozenset[int] = frozenset()) -> None:
        self._graph = graph
        nodes = graph.nodes
        self._always = bytearray(node.index in always for node in nodes)
        self._always_order = tuple(index for index in graph.order if index in always)
        self._is_cell = [node.kind is Kind.CELL for node in nodes]
        self._cells_down = [tuple(d for d in node.downstream if self._is_cell[d]) for node in nodes]
        self._groups_down = [tuple(d for d in node.downstream if not self._is_cell[d]) for node in nodes]
        self._seeds = [node.index for node in nodes if node.kind is Kind.FROM_SCRATCH]
        self.barrier = barrier
        self._reset(rows)

    def _reset(self, rows: int) -> None:
        nodes = self._graph.nodes
        self.rows = rows
        self.live = rows
        self.dropped = bytearray(rows)
        self._done = [bytearray(rows) for _ in nodes]
        # Of nodes in `always`: the cell, or one that it needs, failed for good, so that it will never be done.
        self._dead = [bytearray(rows if self._always[node.index] else 0) for node in nodes]
        # For cell columns: inputs still missing, per row. For whole columns: (input, row) pairs still missing.
        self._waits = [[len(node.upstream)] * rows if self._is_cell[node.index] else [] for node in nodes]
        self._group_waits = [len(node.upstream) * rows for node in nodes]
        self._left = len(nodes) * rows
        self._seeds_left = len(self._seeds)

    def begin(self) -> list[Ready]:
        """What can run at admission."""
        if not self.rows:
            return []
        return self._roots(self._seeds if self.barrier else range(len(self._graph.nodes)))

    def rebuild(self, rows: int) -> list[Ready]:
        """Start over with the rows that pre-batch processors returned; columns made from scratch are done."""
        self.barrier = False
        self._reset(rows)
        if not rows:
            return []
        seeds = set(self._seeds)
        ready = self._roots(index for index in range(len(self._graph.nodes)) if index not in seeds)
        for index in self._seeds:
            self._complete_group(index, ready)
        return ready

    def _roots(self, indices: Iterable[int]) -> list[Ready]:
        ready: list[Ready] = []
        for index in indices:
            if not self._graph.nodes[index].upstream:
                if self._is_cell[index]:
                    ready.extend((index, row) for row in range(self.rows))
                else:
                    ready.append((index, GROUP))
        return ready

    @property
    def seeds_done(self) -> bool:
        """Whether every column made from scratch is complete, so that the pre-batch barrier can be passed."""
        return self._seeds_left == 0

    @property
    def seeds_over(self) -> bool:
        """Whether every row is dropped before the barrier and no column made from scratch is still to be run."""
        return not self.live and not any(self._always[index] and self.missing_rows(index) for index in self._seeds)

    def end_at_barrier(self) -> None:
        """No row reached the pre-batch processors: nothing behind them will ever run."""
        self.barrier = False
        self._left = 0

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do; also when every row is dropped."""
        return self._left == 0

    @property
    def left(self) -> int:
        """Cells that are still to be done."""
        return self._left

    def runs_always(self, node: int) -> bool:
        """Whether that node runs for dropped rows too."""
        return bool(self._always[node])

    def is_dead(self, node: int, row: int) -> bool:
        """Whether a cell of a node that always runs will never be done: it, or one that it needs, failed for good."""
        return bool(self._dead[node][row])

    def is_done(self, node: int, row: int) -> bool:
        """Whether that cell is complete."""
        return bool(self._done[node][row])

    def live_rows(self) -> list[int]:
        """The rows that are not dropped, in order."""
        return [row for row in range(self.rows) if not self.dropped[row]]

    def complete_cell(self, node: int, row: int) -> list[Ready]:
        """A cell is finished. A dropped row is ignored, unless the node runs for those too."""
        ready: list[Ready] = []
        if self.dropped[row]:
            if self._always[node]:
                self._complete_rows(node, (row,), ready)
            return ready
        self._done[node][row] = 1
        self._left -= 1
        for down in self._cells_down[node]:
            waits = self._waits[down]
            waits[row] -= 1
            if not waits[row]:
                ready.append((down, row))
        for down in self._groups_down[node]:
            self._group_waits[down] -= 1
            if not self._group_waits[down]:
                ready.append((down, GROUP))
        return ready

    def complete_group(self, node: int) -> list[Ready]:
        """A task for the whole row group is finished: every row that it was for is done."""
        ready: list[Ready] = []
        self._complete_group(node, ready)
        return ready

    def complete_rows(self, node: int, rows: Iterable[int]) -> list[Ready]:
        """Some rows of a whole column are finished: what an earlier run left of rows that are tried again."""
        ready: list[Ready] = []
        self._complete_rows(node, rows, ready)
        return ready

    def missing_rows(self, node: int) -> list[int]:
        """The rows that a column is still to be made for, in order."""
        done, out = self._done[node], self._out_of(node)
        return [row for row in range(self.rows) if not out[row] and not done[row]]

    def _out_of(self, node: int) -> bytearray:
        """Marks the rows that a node does not run for."""
        return self._dead[node] if self._always[node] else self.dropped

    def note_done(self, node: int, row: int) -> None:
        """A cell of a dropped row is finished after all: nothing waits for it, but it need not be made again."""
        self._done[node][row] = 1

    def _complete_group(self, node: int, ready: list[Ready]) -> None:
        if self._graph.nodes[node].kind is Kind.FROM_SCRATCH:
            self._seeds_left -= 1
        self._complete_rows(node, range(self.rows), ready)

    def _complete_rows(self, node: int, rows: Iterable[int], ready: list[Ready]) -> None:
        done, out, dropped = self._done[node], self._out_of(node), self.dropped
        found = [row for row in rows if not out[row] and not done[row]]
        for row in found:
            done[row] = 1
        self._left -= len(found)
        # Before the barrier nothing that needs a seed may run; `rebuild` completes the seeds once more.
        if not found or self.barrier:
            return
        # Row by row and not column by column: what needs several of these columns is then ready early on.
        downs = [(down, self._waits[down], self._always[down]) for down in self._cells_down[node]]
        for row in found:
            for down, waits, always in downs:
                waits[row] -= 1
                if not waits[row] and (always or not dropped[row]):
                    ready.append((down, row))
        for down in self._groups_down[node]:
            # Rows that the column does not run for were taken off when they went.
            down_out = self._out_of(down)
            self._wait_for_less(down, sum(not down_out[row] for row in found), ready)

    def _wait_for_less(self, node: int, pairs: int, ready: list[Ready]) -> None:
        """A whole column is ready once all rows that it is for have their inputs, if there are any."""
        if pairs:
            self._group_waits[node] -= pairs
            if not self._group_waits[node] and not self.barrier and self.missing_rows(node):
                ready.append((node, GROUP))

    def drop_row(self, row: int) -> list[Ready]:
        """Take a row out, but for what always runs; that may make a whole column ready or the group complete."""
        if self.dropped[row]:
            return []
        self.dropped[row] = 1
        self.live -= 1
        ready: list[Ready] = []
        for node in self._graph.nodes:
            if not self._always[node.index]:
                self._take_off(node.index, row, ready)
        return ready

    def _take_off(self, index: int, row: int, ready: list[Ready]) -> None:
        """A node does not run for a row any more."""
        done, upstream = self._done, self._graph.nodes[index].upstream
        if not done[index][row]:
            self._left -= 1
        if not self._is_cell[index]:
            self._wait_for_less(index, sum(not done[up][row] for up in upstream), ready)

    def fail(self, node: int, row: int) -> tuple[list[int], list[Ready]]:
        """A task failed for good: drop its row, or each row that it was for if it was for the whole group.

        Returns the rows that were dropped by this and what became ready.
        """
        rows = self.missing_rows(node) if row == GROUP else [row]
        live = [each for each in rows if not self.dropped[each]]
        ready: list[Ready] = []
        for each in rows:
            self._kill(node, each, ready)
        for each in live:
            ready += self.drop_row(each)
        # A whole column that became ready on the way may have lost its last row since.
        return live, [task for task in ready if task[1] != GROUP or self.missing_rows(task[0])]

    def _kill(self, node: int, row: int, ready: list[Ready]) -> None:
        """Of what always runs, take out a cell and all that need it."""
        if not self._always[node]:
            return
        dead, nodes = self._dead, self._graph.nodes
        for index in self._always_order:
            if dead[index][row] or self._done[index][row]:
                continue
            if index == node or any(self._always[up] and dead[up][row] for up in nodes[index].upstream):
                dead[index][row] = 1
                self._take_off(index, row, ready)
