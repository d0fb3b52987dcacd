"""The frontier against a model that scans every cell after each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plain import Plain

from seedbed.graph import GROUP, Graph, Kind, build_graph
from seedbed.graph.frontier import Frontier

if TYPE_CHECKING:
    from seedbed.graph.frontier import Ready


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to six columns of any kind, declared in any order."""
    columns: list[Plain] = []
    for index in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from([Kind.FROM_SCRATCH, Kind.CELL, Kind.CELL, Kind.FULL_COLUMN]))
        names = [column.name for column in columns]
        requires = draw(st.lists(st.sampled_from(names), unique=True)) if names and kind != Kind.FROM_SCRATCH else ()
        columns.append(Plain("abcdef"[index], tuple(requires), kind))
    return build_graph(draw(st.permutations(columns)))


class Model:
    """Stores which cells are done and which rows are dropped; everything else is found by scanning."""

    def __init__(self, graph: Graph, rows: int, *, barrier: bool, always: frozenset[int]) -> None:
        self.graph = graph
        self.always = always
        self.seeds = {node.index for node in graph.nodes if node.kind is Kind.FROM_SCRATCH}
        self.barrier = barrier
        self.reset(rows)

    def reset(self, rows: int) -> None:
        self.rows = rows
        self.done: set[Ready] = set()
        self.dropped: set[int] = set()
        self.failed: set[Ready] = set()
        self.released: set[Ready] = set()
        self.finished_seeds: set[int] = set()

    @property
    def live(self) -> list[int]:
        return [row for row in range(self.rows) if row not in self.dropped]

    @property
    def left(self) -> int:
        return sum((node.index, row) not in self.done for node in self.graph.nodes for row in self.rows_of(node.index))

    def rows_of(self, node: int) -> list[int]:
        """The rows that a column runs for: those that are not dropped or, if it always runs, whose inputs can be."""
        return [row for row in range(self.rows) if not self.is_dead(node, row)] if node in self.always else self.live

    def is_dead(self, node: int, row: int) -> bool:
        """Whether a cell or one that it needs has failed."""
        ups = self.graph.nodes[node].upstream
        return (node, row) in self.failed or any(self.is_dead(up, row) for up in ups)

    def fail(self, node: int, row: int) -> list[int]:
        """Returns the rows that are dropped by it."""
        rows = [each for each in self.rows_of(node) if (node, each) not in self.done] if row == GROUP else [row]
        dropped = [each for each in rows if each not in self.dropped]
        self.failed |= {(node, each) for each in rows}
        self.dropped |= set(dropped)
        return dropped

    def newly_ready(self) -> set[Ready]:
        """All tasks that may run and were not reported as ready before."""
        ready: set[Ready] = set()
        for node in self.graph.nodes:
            if self.barrier and node.index not in self.seeds:
                continue
            rows = self.rows_of(node.index)
            if node.kind is Kind.CELL:
                ready |= {(node.index, row) for row in rows if self._has_inputs(node.upstream, row)}
            elif rows and all(self._has_inputs(node.upstream, row) for row in rows):
                ready.add((node.index, GROUP))
        ready -= self.released
        self.released |= ready
        return ready

    def _has_inputs(self, upstream: tuple[int, ...], row: int) -> bool:
        return all((up, row) in self.done for up in upstream)

    def complete(self, node: int, row: int) -> None:
        if row != GROUP:
            if row in self.rows_of(node):
                self.done.add((node, row))
            return
        self.done |= {(node, each) for each in self.rows_of(node)}
        if node in self.seeds:
            self.finished_seeds.add(node)

    def rebuild(self, rows: int) -> None:
        self.barrier = False
        self.reset(rows)
        for node in self.seeds:
            self.released.add((node, GROUP))
            self.complete(node, GROUP)


class FrontierMachine(RuleBasedStateMachine):
    """Every task that the frontier ever called ready is finished, failed or dropped, in any order."""

    @initialize(graph=graphs(), rows=st.integers(0, 5), barrier=st.booleans(), data=st.data())
    def start(self, graph: Graph, rows: int, barrier: bool, data: st.DataObject) -> None:
        always = data.draw(st.sets(st.sampled_from(graph.order)))
        for node in reversed(graph.order):
            if node in always:
                always.update(graph.nodes[node].upstream)
        self.frontier = Frontier(graph, rows, barrier=barrier, always=frozenset(always))
        self.model = Model(graph, rows, barrier=barrier, always=frozenset(always))
        # Ready and not over: cells of dropped rows stay here, as their tasks may still be under way.
        self.under_way: list[Ready] = []
        self.expect(self.frontier.begin())

    def expect(self, ready: list[Ready]) -> None:
        """What just became ready is exactly what the model finds, each once."""
        assert len(ready) == len(set(ready))
        assert set(ready) == self.model.newly_ready()
        self.under_way += sorted(ready)

    def take(self, data: st.DataObject) -> Ready:
        task = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(task)
        return task

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        node, row = self.take(data)
        ready = self.frontier.complete_group(node) if row == GROUP else self.frontier.complete_cell(node, row)
        self.model.complete(node, row)
        self.expect(ready)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        node, row = self.take(data)
        dropped, ready = self.frontier.fail(node, row)
        assert dropped == self.model.fail(node, row)
        self.expect(ready)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.model.rows:
            row = data.draw(st.integers(0, self.model.rows - 1))
            ready = self.frontier.drop_row(row)
            self.model.dropped.add(row)
            self.expect(ready)

    @precondition(lambda self: self.model.barrier and self.model.finished_seeds == self.model.seeds)
    @rule(rows=st.integers(0, 5))
    def rebuild(self, rows: int) -> None:
        ready = self.frontier.rebuild(rows)
        self.model.rebuild(rows)
        self.under_way = []
        self.expect(ready)

    @invariant()
    def agrees(self) -> None:
        frontier, model = self.frontier, self.model
        assert frontier.barrier == model.barrier
        assert frontier.live_rows() == model.live
        assert frontier.live == len(model.live)
        assert frontier.left == model.left
        assert frontier.complete == (model.left == 0)
        if model.barrier:
            assert frontier.from_scratch_done == (model.finished_seeds == model.seeds)
        for node in model.graph.nodes:
            for row in model.rows_of(node.index):
                assert frontier.is_done(node.index, row) == ((node.index, row) in model.done)
            if node.index in model.always:
                dead = [row for row in range(model.rows) if frontier.is_dead(node.index, row)]
                assert dead == [row for row in range(model.rows) if model.is_dead(node.index, row)]

    @invariant()
    def never_stalls(self) -> None:
        """As long as something is left, something is under way, or the barrier can be passed."""
        at_barrier = self.model.barrier and (
            self.model.finished_seeds == self.model.seeds or self.frontier.barrier_unreachable
        )
        assert self.frontier.complete or self.under_way or at_barrier


TestFrontier = FrontierMachine.TestCase
