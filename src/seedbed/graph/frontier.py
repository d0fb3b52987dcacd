"""Which tasks of one row group are ready.

Counters and not scans: a finished cell decrements the counters of what needs it, so it costs O(out-degree) whatever the
number of rows. Rows are local indices, 0 to rows - 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import GROUP, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from . import Graph

Ready = tuple[int, int]  # node index, row (or GROUP)


class Frontier:
    """The readiness of one row group; one writer, the row group's task.

    Each method that may make tasks ready returns them, each exactly once. `barrier=True` holds back all columns except
    those generated from scratch until `rebuild` is called with the rows that the pre-batch processors returned.

    Nothing runs for a dropped row except the nodes in `always`: those run for every row whose inputs to them succeeded,
    dropped or not. `always` must also contain all that its nodes need. Columns from scratch in `late` are generated
    behind the barrier.
    """

    def __init__(
        self,
        graph: Graph,
        rows: int,
        *,
        barrier: bool = False,
        always: frozenset[int] = frozenset(),
        late: frozenset[int] = frozenset(),
    ) -> None:
        self._graph = graph
        nodes = graph.nodes
        self._always = bytearray(node.index in always for node in nodes)
        self._always_order = tuple(index for index in graph.order if index in always)
        self._is_cell = [node.kind is Kind.CELL for node in nodes]
        self._cells_down = [tuple(d for d in node.downstream if self._is_cell[d]) for node in nodes]
        self._groups_down = [tuple(d for d in node.downstream if not self._is_cell[d]) for node in nodes]
        self._from_scratch = [node.index for node in nodes if node.kind is Kind.FROM_SCRATCH and node.index not in late]
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
        self._from_scratch_left = len(self._from_scratch)

    def begin(self) -> list[Ready]:
        """The tasks that can run at admission."""
        if not self.rows:
            return []
        return self._roots(self._from_scratch if self.barrier else range(len(self._graph.nodes)))

    def rebuild(self, rows: int) -> list[Ready]:
        """Start over with the rows that pre-batch processors returned; columns generated from scratch are done."""
        self.barrier = False
        self._reset(rows)
        if not rows:
            return []
        ready = self._roots(index for index in range(len(self._graph.nodes)) if index not in self._from_scratch)
        for index in self._from_scratch:
            ready += self.complete_group(index)
        return ready

    def _roots(self, indices: Iterable[int]) -> list[Ready]:
        ready: list[Ready] = []
        for index in indices:
            if not self._graph.nodes[index].upstream:
                ready += [(index, row) for row in (range(self.rows) if self._is_cell[index] else (GROUP,))]
        return ready

    @property
    def from_scratch_done(self) -> bool:
        """True if every column generated from scratch is complete, so that the pre-batch processors can run."""
        return self._from_scratch_left == 0

    @property
    def barrier_unreachable(self) -> bool:
        """True if every row was dropped before the barrier and no column is left to be generated from scratch."""
        always = (index for index in self._from_scratch if self._always[index])
        return not self.live and not any(map(self.missing_rows, always))

    def end_at_barrier(self) -> None:
        """No row reached the pre-batch processors: nothing after them will run."""
        self.barrier = False
        self._left = 0

    @property
    def complete(self) -> bool:
        """True if nothing is left to do; also when every row is dropped."""
        return self._left == 0

    @property
    def left(self) -> int:
        return self._left

    def runs_always(self, node: int) -> bool:
        """True if that node runs for dropped rows too."""
        return bool(self._always[node])

    def is_dead(self, node: int, row: int) -> bool:
        """True if a cell of a node that always runs can never be done: it, or one that it needs, failed for good."""
        return bool(self._dead[node][row])

    def runs_for_dropped(self, node: int, row: int) -> bool:
        """True if a node runs for a dropped row: it always runs, and its cell can still be done."""
        return bool(self._always[node]) and not self._dead[node][row]

    def is_done(self, node: int, row: int) -> bool:
        return bool(self._done[node][row])

    def is_row_done(self, row: int) -> bool:
        """True if every node is done for a row that was not dropped."""
        return not self.dropped[row] and all(done[row] for done in self._done)

    def live_rows(self) -> list[int]:
        return [row for row in range(self.rows) if not self.dropped[row]]

    def complete_cell(self, node: int, row: int) -> list[Ready]:
        """A cell is finished. A dropped row is ignored, unless the node runs for those too."""
        if self.dropped[row]:
            return self.complete_rows(node, (row,)) if self._always[node] else []
        ready: list[Ready] = []
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
        self._from_scratch_left -= node in self._from_scratch
        return self.complete_rows(node, range(self.rows))

    def missing_rows(self, node: int) -> list[int]:
        """The rows for which a column is still to be generated, in order."""
        done, out = self._done[node], self._out_of(node)
        return [row for row in range(self.rows) if not out[row] and not done[row]]

    def _out_of(self, node: int) -> bytearray:
        """Marks the rows that a node does not run for."""
        return self._dead[node] if self._always[node] else self.dropped

    def note_done(self, node: int, row: int) -> None:
        """A cell of a dropped row finished after the drop: nothing waits for it, but a retry need not generate it."""
        self._done[node][row] = 1

    def complete_rows(self, node: int, rows: Iterable[int]) -> list[Ready]:
        """Some rows of a whole column are finished, as those that an earlier run generated of rows that are retried."""
        ready: list[Ready] = []
        done, out = self._done[node], self._out_of(node)
        found = [row for row in rows if not out[row] and not done[row]]
        for row in found:
            done[row] = 1
        self._left -= len(found)
        # Before the barrier nothing else may run; `rebuild` completes columns generated from scratch once more.
        if not found or self.barrier:
            return ready
        # Row by row and not column by column: what needs several of these columns is then ready early on.
        downs = [(down, self._waits[down], self._out_of(down)) for down in self._cells_down[node]]
        for row in found:
            for down, waits, down_out in downs:
                waits[row] -= 1
                if not waits[row] and not down_out[row]:
                    ready.append((down, row))
        for down in self._groups_down[node]:
            # Rows that the column does not run for were subtracted when they were dropped.
            down_out = self._out_of(down)
            self._wait_for_less(down, sum(not down_out[row] for row in found), ready)
        return ready

    def _wait_for_less(self, node: int, pairs: int, ready: list[Ready]) -> None:
        """A whole column is ready once all rows that it is for have their inputs, if there are any."""
        if pairs:
            self._group_waits[node] -= pairs
            if not self._group_waits[node] and not self.barrier and self.missing_rows(node):
                ready.append((node, GROUP))

    def drop_row(self, row: int) -> list[Ready]:
        """Drop a row for all nodes except those that always run; a whole column may become ready by this."""
        if self.dropped[row]:
            return []
        self.dropped[row] = 1
        self.live -= 1
        ready: list[Ready] = []
        for node in self._graph.nodes:
            if not self._always[node.index]:
                self._take_off(node.index, row, ready)
        return ready

    def reject(self, row: int) -> list[Ready]:
        """Drop a row that was not accepted: no gated node runs for it, not even one that runs for dropped rows."""
        ready: list[Ready] = []
        for node in self._graph.nodes:
            if node.is_gated:
                self._kill(node.index, row, ready)
        return ready + self.drop_row(row)

    def _take_off(self, index: int, row: int, ready: list[Ready]) -> None:
        """A node no longer runs for a row."""
        done, upstream = self._done, self._graph.nodes[index].upstream
        if not done[index][row]:
            self._left -= 1
        if not self._is_cell[index]:
            self._wait_for_less(index, sum(not done[up][row] for up in upstream), ready)

    def fail(self, node: int, row: int) -> tuple[list[int], list[Ready]]:
        """A task failed for good: drop its row, or all rows of a task for the whole group.

        Returns the rows that were dropped and the tasks that became ready.
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
        """Mark a cell of a node that always runs, and those that need it, as never done."""
        if not self._always[node]:
            return
        dead, nodes = self._dead, self._graph.nodes
        for index in self._always_order:
            if dead[index][row] or self._done[index][row]:
                continue
            if index == node or any(self._always[up] and dead[up][row] for up in nodes[index].upstream):
                dead[index][row] = 1
                self._take_off(index, row, ready)
