"""Turns of stateful generators: one call at a time, row groups in order, rows in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..graph import GROUP, Kind
from ..runtime.lanes import Turnstile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..graph import Graph
    from ..graph.frontier import Frontier
    from .tasks import Step


def stateful_nodes(graph: Graph, steps: Sequence[Step]) -> dict[int, tuple[int, ...]]:
    """For each stateful generator (by identity) the nodes that use it, in the order of their turns.

    That is a topological order with the columns from scratch first: they run before pre-batch processors, and the
    others behind them.
    """
    found: dict[int, list[int]] = {}
    for node in sorted(graph.order, key=lambda node: graph.nodes[node].kind is not Kind.FROM_SCRATCH):
        instance = steps[node].instance
        if instance is not None:
            found.setdefault(id(instance), []).append(node)
    return {identity: tuple(nodes) for identity, nodes in found.items()}


def always_nodes(graph: Graph, steps: Sequence[Step]) -> frozenset[int]:
    """The nodes that run for every row whose inputs to them succeeded, even if another cell of the row failed.

    These are stateful columns and all that they require: the calls of a stateful generator must not depend on which
    of two cells ends first.
    """
    found: set[int] = set()
    for node in reversed(graph.order):
        if steps[node].instance is not None or found.intersection(graph.nodes[node].downstream):
            found.add(node)
    return frozenset(found)


class Instance:
    """One stateful generator in one run, shared by all row groups."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes = tuple(nodes)  # the columns that it fills, in the order of their turns
        self.turnstile = Turnstile()
        # An abandoned thread may still be in the generator; no other call may enter before it has ended.
        self._busy = 0
        self._when_free: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        return self._busy > 0

    @property
    def wanted(self) -> bool:
        """True if a task waits for a thread to leave the generator."""
        return self.busy and self._when_free is not None

    def thread_started(self) -> None:
        self._busy += 1

    def thread_ended(self) -> None:
        """A thread really ended: a task that waits for the generator may enter."""
        self._busy -= 1
        if not self._busy and self._when_free is not None:
            callback, self._when_free = self._when_free, None
            callback()

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call back once the generator is free; the last caller is the one whose turn it is."""
        self._when_free = callback


@attrs.define(eq=False)
class Gate:
    """One row group's turn with one stateful generator.

    Tasks arrive in any order and are released one at a time in the order of (column, row), each only when the one
    before has ended for good. Rows whose inputs failed are passed over; those that were dropped for another column are
    not.
    """

    _instance: Instance
    _place: int
    _graph: Graph
    _frontier: Frontier
    _release: Callable[[int, int], None]
    _arrived: set[tuple[int, int]] = attrs.field(init=False, factory=set)
    _position: int = attrs.field(init=False, default=0)  # in instance.nodes
    _row: int = attrs.field(init=False, default=0)
    _out: tuple[int, int] | None = attrs.field(init=False, default=None)  # released and not settled
    _my_turn: bool = attrs.field(init=False, default=False)
    _closed: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._instance.turnstile.enter(self._place, self._turn)

    @property
    def waiting(self) -> bool:
        """True if tasks wait here for other row groups or for a thread to end."""
        return bool(self._arrived)

    def describe_wait(self) -> str:
        """What its tasks wait for, for the error of a stalled run."""
        what = "the tasks before them" if self._my_turn else f"turn {self._place}"
        return f"{len(self._arrived)} tasks of a stateful generator wait for {what}"

    def _turn(self) -> None:
        self._my_turn = True
        self.advance()

    def arrive(self, node: int, row: int) -> None:
        """A task of this generator has its inputs."""
        self._arrived.add((node, row))
        self.advance()

    def settle(self, node: int, row: int) -> None:
        """The released task has ended for good."""
        if self._out == (node, row):
            self._out = None
            if self._is_cell(node):
                self._row += 1
            else:
                self._position += 1
        self.advance()

    def advance(self) -> None:
        """Release the next task if it is here and may run."""
        if not self._my_turn or self._closed or self._out is not None:
            return
        self._pass_over()
        if self._position == len(self._instance.nodes):
            self.close()
            return
        node = self._instance.nodes[self._position]
        head = (node, self._row) if self._is_cell(node) else (node, GROUP)
        if head not in self._arrived:
            return
        if self._instance.busy:
            self._instance.when_free(self.advance)
            return
        self._arrived.remove(head)
        self._out = head
        self._release(*head)

    def close(self) -> None:
        """This row group is done with the generator, used or not."""
        if not self._closed:
            self._closed = True
            self._arrived.clear()
            self._instance.turnstile.leave(self._place)

    def _is_cell(self, node: int) -> bool:
        return self._graph.nodes[node].kind is Kind.CELL

    def _pass_over(self) -> None:
        frontier, nodes = self._frontier, self._instance.nodes
        while self._position < len(nodes):
            node = nodes[self._position]
            kind = self._graph.nodes[node].kind
            if frontier.barrier and kind is not Kind.FROM_SCRATCH:
                return  # the rows are other ones after the barrier
            if kind is not Kind.CELL:
                if frontier.missing_rows(node):
                    return
                self._position += 1
                continue
            # Done without having been released: the cell was skipped, or restored from an earlier run.
            while self._row < frontier.rows and (
                frontier.is_dead(node, self._row) or (self._out is None and frontier.is_done(node, self._row))
            ):
                self._arrived.discard((node, self._row))
                self._row += 1
            if self._row < frontier.rows:
                return
            self._position += 1
            self._row = 0
