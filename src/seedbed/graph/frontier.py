"""What is ready in one row group.

Counters and not scans: a finished cell decrements the counters of what needs it, so it costs O(out-degree) whatever the
number of rows. Rows are local indices, 0 to rows - 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .node import Kind

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
    """

    def __init__(self, graph: Graph, rows: int, *, barrier: bool = False) -> None:
        self._graph = graph
        nodes = graph.nodes
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
    def complete(self) -> bool:
        """Whether nothing is left to do; also when every row is dropped."""
        return self._left == 0

    @property
    def left(self) -> int:
        """Cells that are neither done nor dropped."""
        return self._left

    def is_done(self, node: int, row: int) -> bool:
        """Whether that cell is complete."""
        return bool(self._done[node][row])

    def live_rows(self) -> list[int]:
        """The rows that are not dropped, in order."""
        return [row for row in range(self.rows) if not self.dropped[row]]

    def complete_cell(self, node: int, row: int) -> list[Ready]:
        """A cell is finished. A dropped row is ignored."""
        ready: list[Ready] = []
        if self.dropped[row]:
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
        """A task for the whole row group is finished: every row that is not dropped is done."""
        ready: list[Ready] = []
        self._complete_group(node, ready)
        return ready

    def complete_rows(self, node: int, rows: Iterable[int]) -> list[Ready]:
        """Some rows of a whole column are finished: what an earlier run left of rows that are tried again."""
        ready: list[Ready] = []
        self._complete_rows(node, rows, ready)
        return ready

    def missing_rows(self, node: int) -> list[int]:
        """The rows that are neither dropped nor finished in that column, in order."""
        done, dropped = self._done[node], self.dropped
        return [row for row in range(self.rows) if not dropped[row] and not done[row]]

    def note_done(self, node: int, row: int) -> None:
        """A cell of a dropped row is finished after all: nothing waits for it, but it need not be made again."""
        self._done[node][row] = 1

    def _complete_group(self, node: int, ready: list[Ready]) -> None:
        if self._graph.nodes[node].kind is Kind.FROM_SCRATCH:
            self._seeds_left -= 1
        self._complete_rows(node, range(self.rows), ready)

    def _complete_rows(self, node: int, rows: Iterable[int], ready: list[Ready]) -> None:
        done, dropped = self._done[node], self.dropped
        live = [row for row in rows if not dropped[row] and not done[row]]
        for row in live:
            done[row] = 1
        self._left -= len(live)
        # Before the barrier nothing that needs a seed may run; `rebuild` completes the seeds once more.
        if not live or self.barrier:
            return
        # Row by row and not column by column: what needs several of these columns is then ready early on.
        downs = [(down, self._waits[down]) for down in self._cells_down[node]]
        for row in live:
            for down, waits in downs:
                waits[row] -= 1
                if not waits[row]:
                    ready.append((down, row))
        for down in self._groups_down[node]:
            self._group_waits[down] -= len(live)
            if not self._group_waits[down]:
                ready.append((down, GROUP))

    def drop_row(self, row: int) -> list[Ready]:
        """Take a row out everywhere; that may make a whole column ready or the group complete."""
        if self.dropped[row]:
            return []
        self.dropped[row] = 1
        self.live -= 1
        ready: list[Ready] = []
        done = self._done
        for node in self._graph.nodes:
            index = node.index
            if not done[index][row]:
                self._left -= 1
            if self._is_cell[index] or not node.upstream:
                continue
            missing = sum(1 for up in node.upstream if not done[up][row])
            if missing:
                self._group_waits[index] -= missing
                if not self._group_waits[index] and self.live and not self.barrier:
                    ready.append((index, GROUP))
        return ready

    def fail(self, row: int) -> tuple[list[int], list[Ready]]:
        """A task failed for good: drop its row, or every row if it was for the whole group.

        Returns the rows that were dropped by this and what became ready.
        """
        if row != GROUP:
            if self.dropped[row]:
                return [], []
            return [row], self.drop_row(row)
        rows = self.live_rows()
        for each in rows:
            self.drop_row(each)
        return rows, []
