"""On resume, replay stateful generators whose state was not saved.

What they return is ignored; it is in the dataset already. They get the same arguments: the rows of the part or, where
rows are missing there, what the journal kept of their calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from ..graph import GROUP, Kind
from ..store.entries import GeneratorCall, Key, Purpose
from ..store.parts import read_table
from .rows import Rows, identities_by_position
from .services import OpenGroup
from .worker import repeat_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..store.entries import Entry
    from ..store.records import GroupRecord
    from .rows import Identity
    from .services import Services
    from .stateful import Instance
    from .tasks import Step


async def replay_calls(services: Services, group: OpenGroup, calls: Iterable[tuple[Step, int]]) -> None:
    """Call stateful generators once more, one call after the other, for the state that they are left in."""
    for step, row in calls:
        await repeat_call(services, group, step, row)


async def replay_group(
    services: Services, index: int, turn: int, nursery: trio.Nursery, instances: dict[int, Instance]
) -> None:
    """Replay a finished row group with every stateful generator that needs it, when its turn comes."""
    store, recorder, plan = services.store, services.recorder, services.plan
    kept: Sequence[Entry] = ()
    key = Key(group=index, purpose=Purpose.CALLS)
    if recorder is not None and store is not None and key in store.recovered.kept:
        kept = await recorder.read(key)
    past: OpenGroup | None = None
    for identity, instance in instances.items():
        if identity not in services.history.replaying:
            continue
        up = trio.Event()
        instance.turnstile.enter(turn, up.set)
        await up.wait()
        steps = {plan.steps[node].name: plan.steps[node] for node in instance.nodes}
        if kept:
            for call in kept:
                if isinstance(call, GeneratorCall) and call.column in steps:
                    record = _record(services, index)
                    one = _past_group(services, record, call.inputs, list(call.identities), nursery)
                    await _replay_step(services, one, steps[call.column])
        else:
            past = past or await _read_group(services, index, nursery)
            for step in steps.values():
                await _replay_step(services, past, step)


async def _replay_step(services: Services, group: OpenGroup, step: Step) -> None:
    rows = group.live_rows() if step.kind is Kind.CELL else [GROUP]
    await replay_calls(services, group, [(step, row) for row in rows])


def _record(services: Services, index: int) -> GroupRecord:
    assert services.store is not None
    assert services.store.manifest is not None  # only a resumed dataset has groups that are done
    return services.store.manifest.groups[index]


def _past_group(
    services: Services,
    record: GroupRecord,
    columns: dict[str, list[Any]],
    identities: list[Identity],
    nursery: trio.Nursery,
) -> OpenGroup:
    """Rows of a finished row group: those of its part, or those of one call."""
    rows = Rows(services.plan, range(record.start, record.stop))
    rows.replace(columns, identities)
    return OpenGroup(record.index, rows, nursery, journal_key=Key(group=record.index))


async def _read_group(services: Services, index: int, nursery: trio.Nursery) -> OpenGroup:
    store = services.store
    assert store is not None
    record = _record(services, index)
    columns: dict[str, list[Any]] = {}
    part = record.part
    if part is not None:
        table = await services.store_thread(lambda: read_table(store.writer.path, part))
        outputs = set(services.plan.graph.outputs)
        columns = {name: table.column(name).to_pylist() for name in table.column_names if name in outputs}
    # Where rows are missing in the part, or processors changed it, the calls were kept.
    identities = identities_by_position(range(record.start, record.stop), record.rows)
    return _past_group(services, record, columns, identities, nursery)
