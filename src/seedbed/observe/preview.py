"""The rows of a preview, as they finish: with what removed them, and the prompts that they were generated from."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, TypeAlias

import attrs

from . import events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl

# The values of a row, as texts.
_Look: TypeAlias = tuple[str, ...]


@attrs.frozen(kw_only=True)
class Prompt:
    """A call of a model."""

    column: str
    """The column whose cell called it."""
    model: str
    """The alias of the model."""
    messages: tuple[tuple[str, str], ...]
    """Each message: its role and its content."""


@attrs.frozen(kw_only=True)
class PreviewRow:
    """A row of a preview: as it was generated, before post-batch processors."""

    number: int | None
    """Its number; None for a row that a pre-batch processor removed."""
    values: Mapping[str, object]
    """Its values by column; of a dropped row those that were generated until then."""
    removed: str | None = None
    """What dropped or removed the row; None if it is in the preview."""
    prompts: tuple[Prompt, ...] = ()
    """The calls of its cells, with `show_prompts`."""


class PreviewReader:
    """A reader that collects the rows of one row group, and calls `on_row` with each that is finished or removed.

    A row that a post-batch or after-generation processor removes was finished before: `on_row` gets it once more.
    """

    wants_rows = True

    def __init__(self, on_row: Callable[[PreviewRow], None] | None, *, prompts: bool) -> None:
        self.wants_prompts = prompts
        self._on_row = on_row
        self._rows: dict[int, PreviewRow] = {}
        self._never_numbered: list[PreviewRow] = []  # removed before generation
        self._prompts: dict[int, list[Prompt]] = {}
        self._stage = ""  # whose rows are shown: that at the root
        # The numbers of the rows that the next processor sees; None before the first one.
        self._left: list[int] | None = None

    @property
    def rows(self) -> tuple[PreviewRow, ...]:
        """All rows so far; those that were removed before generation come last."""
        return (*(self._rows[number] for number in sorted(self._rows)), *self._never_numbered)

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.BuildStarted):
            self._stage = event.output
        if event.stage != self._stage:
            return
        match event:
            case events.ModelCalled(row=int(row)):
                self._note_prompt(row, Prompt(column=event.column, model=event.model, messages=event.messages))
            case events.RowFinished():
                self._note(event.row, event.values, None)
            case events.RowDropped():
                self._note(event.row, event.values, f"dropped by {event.column!r}: {event.error}")
            case events.RowRejected():
                values = event.values or (self._rows[event.row].values if event.row in self._rows else {})
                self._note(event.row, values, f"rejected by {event.by!r}")
            case events.RowsProcessed():
                self.processed(event.processor, event.before, event.after)

    def _note_prompt(self, row: int, prompt: Prompt) -> None:
        """Note a call; one that continues the conversation of the call before, as repairs do, replaces it."""
        known = self._prompts.setdefault(row, [])
        last = known[-1] if known else None
        if last is not None and last.column == prompt.column and prompt.messages[: len(last.messages)] == last.messages:
            known.pop()
        known.append(prompt)

    def _note(self, number: int, values: Mapping[str, object], removed: str | None) -> None:
        row = PreviewRow(number=number, values=values, removed=removed, prompts=tuple(self._prompts.get(number, ())))
        self._rows[number] = row
        self._notify(row)

    def _notify(self, row: PreviewRow) -> None:
        if self._on_row is not None:
            self._on_row(row)

    def processed(self, processor: str, before: pl.DataFrame, after: pl.DataFrame) -> None:
        """A processor ran: mark the rows that it removed, if that can be known."""
        reason = f"removed by {processor!r}"
        found = positions_before(before, after)
        gone = [] if found is None else sorted(set(range(before.height)).difference(found))
        if not self._rows:  # before generation
            for at in gone:
                row = PreviewRow(number=None, values=before.row(at, named=True), removed=reason)
                self._never_numbered.append(row)
                self._notify(row)
            return
        if self._left is None:
            self._left = [number for number, row in sorted(self._rows.items()) if row.removed is None]
        if len(self._left) != before.height:  # an earlier processor added or replaced rows
            return
        for at in gone:
            number = self._left[at]
            self._rows[number] = attrs.evolve(self._rows[number], removed=reason)
            self._notify(self._rows[number])
        self._left = [] if found is None else [self._left[at] for at in found]


def positions_before(before: pl.DataFrame, after: pl.DataFrame) -> list[int] | None:
    """Where each row that a processor returned was before; None if that cannot be known.

    Rows are recognized by the columns of which the processor changed no value, in any order. Of rows that are equal in
    all columns the first ones stay.
    """
    were = {name: list(map(repr, before[name])) for name in before.columns}
    are = {name: list(map(repr, after[name])) for name in after.columns if name in were}
    unchanged = [name for name in are if not Counter(are[name]) - Counter(were[name])]
    found = None
    if unchanged:
        looks, returned = (list(zip(*map(each.get, unchanged), strict=True)) for each in (were, are))
        found = _places(looks, returned, may_repeat=len(unchanged) == len(were))
    if found is None and before.height == after.height:
        return list(range(before.height))  # most processors that change values keep the order
    return found if after.height else []


def _places(looks: list[_Look], returned: list[_Look], *, may_repeat: bool) -> list[int] | None:
    """The first place of each returned row that none before it has; None if it has none, or several and may not."""
    places: defaultdict[_Look, deque[int]] = defaultdict(deque)
    for at, look in enumerate(looks):
        places[look].append(at)
    if any(len(places[look]) != 1 for look in returned) and not may_repeat:
        return None
    if Counter(returned) - Counter(looks):
        return None
    return [places[look].popleft() for look in returned]
