"""Stateful generators: one call at a time, row groups in order, rows in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import StoreError
from ..graph import GROUP, Kind
from ..runtime.turnstile import Turnstile
from ..store.codec import decode, encode
from .identity import identities_by_position
from .recorder import CALL
from .tasks import TaskKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..graph import Frontier, Graph
    from ..store.codec import Entry
    from .plan import Step
    from .rows import Rows


def state_name(steps: Sequence[Step], nodes: Sequence[int]) -> str:
    """What the state of a stateful generator is kept under: the columns that it fills."""
    return "+".join(steps[node].name for node in nodes)


def read_state(step: Step) -> bytes | None:
    """The state of a stateful generator that has `get_state`, as the journal keeps it."""
    get_state = getattr(step.instance, "get_state", None)
    if get_state is None:
        return None
    state, lost = encode([(get_state(),)])
    if lost:
        raise StoreError(f"the state of column {step.name!r} cannot be kept: what get_state returns cannot be pickled")
    return state


def is_called_again(step: Step) -> bool:
    """Whether a stateful generator is called again where there is no state of it: also a kept one is lost by damage."""
    generator = step.instance
    return generator is not None and getattr(generator, "replays", True) and step.key is None


def restore_state(steps: Sequence[Step], nodes: Sequence[int], states: Mapping[str, bytes], *, trusted: bool) -> bool:
    """Bring a stateful generator where it was in an earlier run; False if it has to be called again for that.

    One that finds its rows by their numbers (`replays = False`) needs nothing, and one that calls models is not called
    again: that would be paid for twice. A state of user-defined types is read only if the directory is `trusted`.
    """
    generator = steps[nodes[0]].instance
    state, set_state = states.get(state_name(steps, nodes)), getattr(generator, "set_state", None)
    if state is not None and set_state is not None:
        found = decode(state, trusted=trusted)
        if found:
            set_state(found[0][0])
            return True
    return not getattr(generator, "replays", True) or any(steps[node].key is not None for node in nodes)


def call_entries(rows: Rows, calls: Iterable[tuple[Step, Sequence[int]]]) -> list[Entry]:
    """What stateful generators were called with, for those that may have to be called again."""
    return [
        (CALL, step.name, identities, rows.buffer.take(step.inputs, of))
        for step, of in calls
        if is_called_again(step)
        # Columns from scratch were made for the source rows, whatever pre-batch processors made of them.
        for identities in [
            identities_by_position(rows.source, len(of)) if step.kind is TaskKind.FROM_SCRATCH else rows.identities(of)
        ]
    ]


class Instance:
    """One stateful generator in one run, shared by all row groups."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes = tuple(nodes)  # the columns that it fills, in topological order
        self.turnstile = Turnstile()
        # A thread that was given up may still be in the generator; nobody else may enter before it has ended.
        self._busy = 0
        self._when_free: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        return self._busy > 0

    @property
    def wanted(self) -> bool:
        """Whether a task waits for a thread to leave the generator."""
        return self.busy and self._when_free is not None

    def thread_started(self) -> None:
        self._busy += 1

    def thread_ended(self) -> None:
        """The thread is really over; who waits for the generator goes on."""
        self._busy -= 1
        if not self._busy and self._when_free is not None:
            callback, self._when_free = self._when_free, None
            callback()

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call back once the generator is free; the last one to ask is the one whose turn it is."""
        self._when_free = callback


class Gate:
    """One row group's turn with one stateful generator.

    Tasks arrive in any order and are released one at a time in the order of (column, row); the next one only when the
    one before is settled: done, or given up after its last attempt. Rows whose inputs failed are passed over; those
    that were dropped for another column are not.
    """

    def __init__(
        self, instance: Instance, place: int, graph: Graph, frontier: Frontier, release: Callable[[int, int], None]
    ) -> None:
        self._instance = instance
        self._place = place
        self._graph = graph
        self._frontier = frontier
        self._release = release
        self._arrived: set[tuple[int, int]] = set()
        self._position = 0  # in instance.nodes
        self._row = 0
        self._out: tuple[int, int] | None = None  # released and not settled
        self._my_turn = False
        self._closed = False
        instance.turnstile.enter(place, self._turn)

    @property
    def waiting(self) -> bool:
        """Whether something here waits for other row groups or for a thread to end."""
        return bool(self._arrived)

    def _turn(self) -> None:
        self._my_turn = True
        self.advance()

    def arrive(self, node: int, row: int) -> None:
        """A task of this generator has its inputs."""
        self._arrived.add((node, row))
        self.advance()

    def settle(self, node: int, row: int) -> None:
        """The released task is over for good."""
        if self._out == (node, row):
            self._out = None
            self._step_on()
        self.advance()

    def is_out(self, node: int, row: int) -> bool:
        return self._out == (node, row)

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

    def _step_on(self) -> None:
        if self._is_cell(self._instance.nodes[self._position]):
            self._row += 1
        else:
            self._position += 1

    def _pass_over(self) -> None:
        frontier, nodes = self._frontier, self._instance.nodes
        while self._position < len(nodes):
            node = nodes[self._position]
            kind = self._graph.nodes[node].kind
            if frontier.barrier and kind is not Kind.FROM_SCRATCH:
                return  # there are other rows behind the barrier
            if kind is not Kind.CELL:
                if frontier.missing_rows(node):
                    return
                self._position += 1
                continue
            # Done without having been released: the cell was skipped, or kept by an earlier run.
            while self._row < frontier.rows and (
                frontier.is_dead(node, self._row) or (self._out is None and frontier.is_done(node, self._row))
            ):
                self._arrived.discard((node, self._row))
                self._row += 1
            if self._row < frontier.rows:
                return
            self._position += 1
            self._row = 0
