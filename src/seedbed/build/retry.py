"""Trying dropped rows again in a later run: which ones, what is finished of them, and where they go in the part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..store.entries import Finished, FinishedRows, KeptRows
from .tasks import TaskKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..store.entries import Entry
    from ..store.records import Drop, GroupRecord
    from .identity import Identity
    from .plan import BuildPlan
    from .rows import Rows


@attrs.frozen(kw_only=True)
class RetriedRows:
    """The rows of a finished row group that are tried again.

    `order` names the rows that its part holds now, in its `revision`; `drops` are those that stay dropped.
    """

    revision: int
    identities: tuple[Identity, ...]
    order: tuple[Identity, ...]
    drops: tuple[Drop, ...]


def plan_retry(
    record: GroupRecord, kept: Sequence[Entry], *, processed: bool
) -> tuple[RetriedRows, Sequence[Entry]] | None:
    """What of a finished row group can be tried again, and what is finished of it; None if nothing can.

    Rows that a pre-batch processor has seen (`processed`) can be tried again only with what was kept of them.
    """
    failed = [drop for drop in record.drops if drop.kind == "failed"]
    known: Sequence[Entry] = ()
    order: list[Identity]
    identities: list[Identity]
    if kept and isinstance(kept[0], KeptRows):
        order, identities = list(kept[0].order), list(kept[0].identities)
        known = kept[1:]
    else:
        gone = {drop.row for drop in record.drops}
        order = [(row, 0) for row in range(record.start, record.stop) if row not in gone]
        identities = [] if processed else sorted((drop.row, drop.copy) for drop in failed if not drop.copy)
    if not identities or len(order) != record.rows:
        return None
    tried = set(identities)
    retry = RetriedRows(
        revision=record.revision,
        identities=tuple(identities),
        order=tuple(order),
        drops=tuple(drop for drop in record.drops if drop.kind != "failed" or (drop.row, drop.copy) not in tried),
    )
    return retry, known


def kept_entries(
    plan: BuildPlan,
    rows: Rows,
    dropped: Mapping[int, Identity],
    is_done: Callable[[int, int], bool],
    order: Sequence[Identity],
) -> list[Entry]:
    """What is finished of the `dropped` rows of a row group, for `plan_retry`; `order` names the rows of its part."""
    if not dropped:
        return []
    local = sorted(dropped, key=dropped.__getitem__)
    entries: list[Entry] = [KeptRows(order=list(order), identities=[dropped[row] for row in local])]
    for node in plan.graph.order:
        step = plan.steps[node]
        done = [(at, row) for at, row in enumerate(local) if is_done(node, row) and not rows.was_skipped(step, row)]
        columns = list(rows.buffer.take(step.outputs, [row for _, row in done]).values())
        if step.kind is TaskKind.CELL:
            values = columns[0] if len(columns) == 1 else zip(*columns, strict=True)
            entries += [
                Finished(column=step.name, row=at, attempt=1, salvage_round=0, value=value, cost=None)
                for (at, _), value in zip(done, values, strict=True)
            ]
        elif done:
            entries.append(FinishedRows(column=step.name, rows=[at for at, _ in done], columns=columns))
    return entries


def merge_order(before: Sequence[Identity], added: Sequence[Identity]) -> list[int]:
    """Where the rows of a part come from when rows are added to it: positions in `before` followed by `added`.

    Each added row goes in front of the first row that comes after it in the dataset; the others keep their order.
    """
    places: dict[int, list[int]] = {}
    for position in sorted(range(len(added)), key=added.__getitem__):
        place = next((at for at, identity in enumerate(before) if identity > added[position]), len(before))
        places.setdefault(place, []).append(len(before) + position)
    order: list[int] = []
    for at in range(len(before) + 1):
        order += places.get(at, ())
        if at < len(before):
            order.append(at)
    return order
