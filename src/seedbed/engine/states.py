"""The state of stateful generators: saved with their outcomes, restored on resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import StoreError
from ..graph import Kind
from ..store.codec import decode, encode
from ..store.entries import GeneratorCall
from .identity import identities_by_position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .rows import Rows
    from .tasks import Step


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


def call_entries(rows: Rows, calls: Iterable[tuple[Step, Sequence[int]]]) -> list[GeneratorCall]:
    """What stateful generators were called with, for those that may have to be called again."""
    return [
        GeneratorCall(column=step.name, identities=identities, inputs=rows.buffer.take(step.inputs, of))
        for step, of in calls
        if is_called_again(step)
        # Columns from scratch were made for the source rows, whatever pre-batch processors made of them.
        for identities in [
            identities_by_position(rows.source, len(of)) if step.kind is Kind.FROM_SCRATCH else rows.identities(of)
        ]
    ]
