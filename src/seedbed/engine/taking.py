"""Rows that a stage takes from another: which there are, and what each of them has from its parents.

Values of parents are read from their parts, or in a preview from memory, whenever a row group is opened: nothing of
them is written a second time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import BuildStopped, ConfigError, Permanent
from ..observe import events
from ..recipe.stages import PARENT, ROW, K
from ..store.children import Children, Taken
from ..store.parts import read_table
from ..store.values import values_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..recipe.stages import Stage
    from ..store.parts import PartRecord
    from .rows import Rows
    from .services import Services
    from .tasks import Step

# Values by column, each a list in the order of the rows.
Values = dict[str, list[Any]]


async def take(services: Services, parent: int | None) -> None:
    """Perform `Take`: record which rows the stage takes of a row group of its parent, before any of them is opened.

    A row whose `each` is no list stops the run: its recipe is wrong, and can be corrected before a resume.
    """
    children = services.plan.layout
    assert isinstance(children, Children)  # only these take rows
    taken = Taken(number=children.records)
    if parent is not None:
        of = services.stages[children.source.stage]
        numbers = (await _read(of, parent, [ROW]))[ROW]
        new = [row for row in numbers if children.is_new(row)]
        spec = services.plan.source.spec
        assert spec is not None  # a stage of a recipe
        known = await _look_up(services, of.stage, new, spec.needs)
        values: list[dict[str, Any]] = [{name: found[at] for name, found in known.items()} for at in range(len(new))]
        revision, edition = of.version(parent)
        taken = Taken(number=children.records, parent=parent, revision=revision, edition=edition, rows=tuple(new))
        try:
            if spec.group is not None:
                keys = tuple(json.dumps(list(row.values()), default=str, ensure_ascii=False) for row in values)
                taken = msgspec.structs.replace(taken, keys=keys)
            else:
                counts = await services.store_thread(lambda: _counts(spec, new, values))
                taken = msgspec.structs.replace(taken, counts=tuple(counts))
        except ConfigError as error:
            services.scheduler.stop(BuildStopped(f"stage {services.stage!r}, from stage {of.stage!r}, {error}"))
            services.scheduler.taken(services.stage)
            return
    store = services.store
    if store is not None:
        await services.store_thread(lambda: store.writer.take(taken))
    rows, groups = children.rows, children.count
    children.take(taken)
    services.notify.emit(events.RowsTaken, rows=children.rows - rows, row_groups=children.count - groups)
    services.scheduler.taken(services.stage)


def _counts(spec: Stage, rows: Sequence[int], values: Sequence[Mapping[str, Any]]) -> list[int]:
    """How many rows are made from each row; `ConfigError` names the first for which that is not known."""
    counts = []
    for row, known in zip(rows, values, strict=True):
        try:
            counts.append(spec.count(known)[0])
        except (ConfigError, Permanent) as error:
            raise ConfigError(f"row {row}: {error}") from error
    return counts


async def inherited_values(services: Services, step: Step, rows: Rows) -> tuple[list[int], list[list[Any]]]:
    """What the rows of a row group have from others, as the outcome of the column that stands for it."""
    numbers = [rows.identity(row)[0] for row in range(rows.count)]
    found: Values = {ROW: numbers}
    children, spec = services.plan.layout, services.plan.source.spec
    if isinstance(children, Children):
        assert spec is not None  # a stage of a recipe
        parent, owners = children.source.stage, services.plan.source.inherited.owners
        if spec.group is not None:
            members = [list(children.parents(number)) for number in numbers]
            found[PARENT] = members
            found |= await _look_up(services, parent, [each[0] for each in members], spec.group.by)
            found[parent] = await _members(services, parent, members)
        else:
            origins = [children.origin(number) for number in numbers]
            found[PARENT], found[K] = [row for row, _ in origins], [k for _, k in origins]
            needed = dict.fromkeys((*spec.needs, *(name for name in step.outputs if name in owners)))
            found |= await _look_up(services, parent, found[PARENT], tuple(needed))
            if spec.item_column is not None:
                found[spec.item_column] = _items(spec, found, origins)
    return list(range(rows.count)), [found[name] for name in step.outputs]


def _items(spec: Stage, found: Values, origins: Sequence[tuple[int, int]]) -> list[Any]:
    """The item of each row: that of its number in the list of its parent."""
    lists: dict[int, Sequence[Any]] = {}
    items = []
    for at, (row, k) in enumerate(origins):
        if row not in lists:
            lists[row] = spec.count({name: found[name][at] for name in spec.needs})[1]
        items.append(lists[row][k] if k < len(lists[row]) else None)
    return items


async def _members(services: Services, parent: str, members: Sequence[Sequence[int]]) -> list[list[dict[str, Any]]]:
    """The rows of each group, with the columns that their stage stores and their numbers."""
    flat = [row for each in members for row in each]
    names = [name for name in services.stages[parent].plan.stored if name not in (ROW, PARENT, K)]
    columns = {ROW: flat, **await _look_up(services, parent, flat, names)}
    rows = iter([dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)])
    return [[next(rows) for _ in each] for each in members]


async def _look_up(services: Services, stage: str, rows: Sequence[int], names: Iterable[str]) -> Values:
    """The values of some rows of a stage: of its own columns, and of those that its rows have from others."""
    of = services.stages[stage]
    own = [name for name in names if name in of.plan.stored]
    others = [name for name in names if name not in own]
    found: Values = {name: [None] * len(rows) for name in names}
    if own:
        places: dict[int, list[int]] = {}
        for at, row in enumerate(rows):
            places.setdefault(of.plan.layout.index_of(row), []).append(at)
        for group, wanted in places.items():
            # Where not every row counts, several files may have rows of one row group.
            units = [group] if of.decisions is None else [at for at, each in enumerate(of.placed) if each == group]
            for index in units:
                part = await _read(of, index, [ROW, *own])
                position = {row: at for at, row in enumerate(part[ROW])}
                for at in wanted:
                    # A row that damage took is missing: what was made from it stays.
                    if (where := position.get(rows[at])) is not None:
                        for name in own:
                            found[name][at] = part[name][where]
    if others and rows:
        children = of.plan.layout
        assert isinstance(children, Children)  # who else would have them
        found |= await _look_up(services, children.source.stage, [children.origin(row)[0] for row in rows], others)
    return found


async def _read(services: Services, index: int, names: Sequence[str]) -> Mapping[str, list[Any]]:
    """Columns of a finished row group or, where not every row counts, of a file of rows that do."""
    if services.store is None:
        kept = services.finished_rows.get(index, {})
        return {name: kept.get(name, []) for name in names}
    writer = services.store.writer
    if services.decisions is not None:
        part: PartRecord | None = writer.placed[index][1]
    else:
        record = writer.group(index)
        part = None if record is None else record.part
    if part is None:
        return {name: [] for name in names}

    def read() -> dict[str, list[Any]]:
        table = read_table(writer.path, part, list(names))
        return {name: values_of(table.column(name)) for name in names}

    return await services.store_thread(read)
