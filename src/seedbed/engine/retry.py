"""Retry dropped rows in a later run: which ones, what is finished of them, and their position in the part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..store.entries import FinishedRows, KeptRows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ..store.entries import Entry
    from ..store.records import Drop, GroupRecord
    from .identity import Identity
    from .plan import BuildPlan
    from .rows import Rows


@attrs.frozen(kw_only=True)
class RetriedRows:
    """The rows of a finished row group that are tried again.

    `order` names the rows that its part holds now, in its `revision`; None if the part is made anew of all rows.
    `drops` are those that stay dropped. `resized` is how many rows pre-batch processors took out and added, None if
    they have yet to see the rows.
    """

    revision: int
    identities: tuple[Identity, ...]
    order: tuple[Identity, ...] | None
    drops: tuple[Drop, ...]
    resized: tuple[int, int] | None

    def merged(self, added: Sequence[Identity]) -> tuple[list[int], list[Identity]]:
        """Where the rows of the new part come from, the old one followed by those `added`, and which rows they are."""
        assert self.order is not None
        order = merge_order(self.order, added)
        return order, [[*self.order, *added][at] for at in order]


def plan_retry(
    record: GroupRecord, kept: Sequence[Entry], *, seeds: Collection[str], processed: bool
) -> tuple[RetriedRows, Sequence[Entry]] | None:
    """What of a finished row group can be tried again, and what is finished of it; None if nothing can.

    Rows that processors have seen (`processed`) can be tried again only with what was kept of them. `seeds` are the
    columns that pre-batch processors see, if there are such processors: a row that failed in one of them never came
    to the processors and has no identity behind them.
    """
    failed = [drop for drop in record.drops if drop.kind == "failed"]
    known: Sequence[Entry] = ()
    order: list[Identity] | None
    resized: tuple[int, int] | None = (0, 0)
    if kept and isinstance(kept[0], KeptRows):
        header, known = kept[0], kept[1:]
        resized, identities = header.resized, list(header.identities)
        order = None if header.order is None else list(header.order)
        if processed and len(known) != header.count:
            return None  # some values could not be kept, and must not be made of rows that were not processed
    else:
        gone = {drop.row for drop in failed}
        order = [(row, 0) for row in range(record.start, record.stop) if row not in gone]
        identities = sorted((row, 0) for row in gone)
        if processed:
            if order or any(drop.column not in seeds for drop in failed):
                return None
            resized = None  # every row failed before the processors
    if not identities or (order is not None and len(order) != record.rows):
        return None
    tried = {
        drop
        for drop in failed
        if (drop.row, drop.copy) in set(identities) and (resized is None or drop.column not in seeds)
    }
    retry = RetriedRows(
        revision=record.revision,
        identities=tuple(identities),
        order=None if order is None else tuple(order),
        drops=tuple(drop for drop in record.drops if drop not in tried),
        resized=None if resized is None else (resized[0], resized[1]),
    )
    return retry, known


def kept_entries(
    plan: BuildPlan,
    rows: Rows,
    kept: Sequence[int],
    is_done: Callable[[int, int], bool],
    *,
    order: Sequence[Identity] | None,
    resized: tuple[int, int] | None,
) -> list[Entry]:
    """What is finished of the rows `kept` of a row group, for `plan_retry`; `order` names the rows of its part."""
    entries: list[Entry] = []
    for node in plan.graph.order:
        step = plan.steps[node]
        done = [(at, row) for at, row in enumerate(kept) if is_done(node, row) and not rows.was_skipped(step, row)]
        if done:
            columns = list(rows.buffer.take(step.outputs, [row for _, row in done]).values())
            entries.append(FinishedRows(column=step.name, rows=[at for at, _ in done], columns=columns))
    of = None if order is None else list(order)
    header = KeptRows(order=of, identities=rows.identities(kept), resized=resized, count=len(entries))
    return [header, *entries]


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
