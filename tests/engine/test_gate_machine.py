"""Turnstile and gate: however tasks arrive and however row groups end, a stateful generator sees them in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import seedbed as sb
from seedbed.engine.stateful import Gate, Instance
from seedbed.graph import GROUP, Graph, Kind
from seedbed.graph.frontier import Frontier
from seedbed.runtime.lanes import Turnstile

if TYPE_CHECKING:
    from collections.abc import Callable

PLACES = 4
places = st.integers(0, PLACES - 1)


class TurnstileMachine(RuleBasedStateMachine):
    """Places enter and leave in any order; some leave from within their own turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turnstile = Turnstile()
        self.entered: set[int] = set()
        self.left: set[int] = set()
        self.turns: list[int] = []

    @rule(place=places, leaves_at_once=st.booleans())
    def enter(self, place: int, leaves_at_once: bool) -> None:
        if place in self.entered | self.left:
            return
        self.entered.add(place)

        def turn() -> None:
            self.turns.append(place)
            assert self.turnstile.up == place
            assert place not in self.left
            if leaves_at_once:
                self.leave(place)

        self.turnstile.enter(place, turn)

    @rule(place=places)
    def leave(self, place: int) -> None:
        self.left.add(place)
        self.turnstile.leave(place)

    @invariant()
    def one_at_a_time_in_order(self) -> None:
        up = next(place for place in range(PLACES + 1) if place not in self.left)
        assert self.turnstile.up == up
        assert self.turns == sorted(set(self.turns))
        # Who is up and waits has had its call; who has not come up yet has not.
        assert (up in self.turns) == (up in self.entered)
        assert all(place <= up for place in self.turns)


TestTurnstile = TurnstileMachine.TestCase


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Columns without requirements: a gate looks at their kinds only."""
    kinds = draw(st.lists(st.sampled_from(list(Kind)), min_size=1, max_size=3))
    return sb.build_graph(
        [sb.Column(name, lambda _=None: None, kind=kind) for name, kind in zip("abc", kinds, strict=False)]
    )


class GateMachine(RuleBasedStateMachine):
    """Four row groups share one generator that fills up to three columns."""

    @initialize(graph=graphs(), rows=st.lists(st.integers(0, 3), min_size=PLACES, max_size=PLACES))
    def start(self, graph: Graph, rows: list[int]) -> None:
        self.graph = graph
        self.instance = Instance(graph.order)
        self.frontiers = [Frontier(graph, count, always=frozenset(graph.order)) for count in rows]
        self.released: list[tuple[int, int, int]] = []  # (place, node, row)
        self.out: tuple[int, int, int] | None = None
        self.threads = 0
        self.arrived: list[set[tuple[int, int]]] = [set() for _ in rows]
        self.settled: list[set[tuple[int, int]]] = [set() for _ in rows]
        self.closed: set[int] = set()
        self.gates: list[Gate] = []
        for place, frontier in enumerate(self.frontiers):
            gate = Gate(self.instance, place, graph, frontier, self.release(place))
            self.gates.append(gate)
            gate.advance()

    def release(self, place: int) -> Callable[[int, int], None]:
        def release(node: int, row: int) -> None:
            assert self.out is None, "two at once"
            assert not self.threads, "a thread is still in the generator"
            assert place not in self.closed
            self.out = (place, node, row)
            self.released.append(self.out)

        return release

    # The model.

    def tasks(self, place: int) -> list[tuple[int, int]]:
        """The tasks of a row group in order, without those that are settled; it does not matter which are dropped."""
        frontier = self.frontiers[place]
        found: list[tuple[int, int]] = []
        for node in self.graph.order:
            if self.graph.nodes[node].kind is Kind.CELL:
                found += [(node, row) for row in range(frontier.rows)]
            elif frontier.rows:
                found.append((node, GROUP))
        return [task for task in found if task not in self.settled[place]]

    def is_over(self, place: int) -> bool:
        return place in self.closed or (not self.tasks(place) and (self.out is None or self.out[0] != place))

    @property
    def up(self) -> int | None:
        """The first row group that is not done with the generator."""
        return next((place for place in range(PLACES) if not self.is_over(place)), None)

    # What happens.

    @rule(data=st.data(), place=places)
    def arrive(self, data: st.DataObject, place: int) -> None:
        missing = [task for task in self.tasks(place) if task not in self.arrived[place]]
        if missing and place not in self.closed:
            task = data.draw(st.sampled_from(missing))
            self.arrived[place].add(task)
            self.gates[place].arrive(*task)

    @precondition(lambda self: self.out is not None)
    @rule(fails=st.booleans(), leaves_a_thread=st.booleans())
    def settle(self, fails: bool, leaves_a_thread: bool) -> None:
        """The task outside has ended: it succeeded or it failed for good, and perhaps its thread continues."""
        place, node, row = self.out
        if leaves_a_thread:
            self.threads += 1
            self.instance.thread_started()
        self.out = None
        self.settled[place].add((node, row))
        frontier = self.frontiers[place]
        if fails:
            frontier.fail(node, row)
        elif row == GROUP:
            frontier.complete_group(node)
        else:
            frontier.complete_cell(node, row)
        self.gates[place].settle(node, row)

    @precondition(lambda self: self.threads)
    @rule()
    def thread_ends(self) -> None:
        self.threads -= 1
        self.instance.thread_ended()

    @rule(data=st.data(), place=places)
    def drop(self, data: st.DataObject, place: int) -> None:
        """A cell of another column failed; the tasks of that row have their turns all the same."""
        rows = self.frontiers[place].live_rows()
        if rows and place not in self.closed:
            self.frontiers[place].drop_row(data.draw(st.sampled_from(rows)))
            self.gates[place].advance()

    @rule(place=places)
    def close(self, place: int) -> None:
        """The row group has ended, whether it had its turn or not; a task of it that is outside has ended by then."""
        if self.out is not None and self.out[0] == place:
            self.settled[place].add(self.out[1:])
            self.out = None
        self.closed.add(place)
        self.gates[place].close()

    # What must hold.

    @invariant()
    def in_order(self) -> None:
        position = {node: index for index, node in enumerate(self.graph.order)}
        order = [(place, position[node], row) for place, node, row in self.released]
        assert order == sorted(set(order))

    @invariant()
    def whoever_may_go_is_out(self) -> None:
        """If the generator is free and the next task is there, it has been released; nothing waits without a reason."""
        up = self.up
        if self.out is not None:
            assert self.out[0] == up
        elif up is not None and not self.threads:
            assert self.tasks(up)[0] not in self.arrived[up]

    @invariant()
    def turns_are_passed(self) -> None:
        assert self.instance.turnstile.up == (PLACES if self.up is None else self.up)

    def teardown(self) -> None:
        """Whatever happened before, everybody gets through."""
        if not hasattr(self, "gates"):
            return
        while self.up is not None:
            place = self.up
            while self.threads:
                self.thread_ends()
            for task in self.tasks(place):
                if task not in self.arrived[place]:
                    self.arrived[place].add(task)
                    self.gates[place].arrive(*task)
            if self.up == place:
                assert self.out is not None
                self.settle(fails=False, leaves_a_thread=False)
            self.in_order()
        assert self.instance.turnstile.up == PLACES


TestGate = GateMachine.TestCase
