"""The sequential engine: column by column, row by row, nothing at once.

It shares with the concurrent engine how a generator is called, how failures are classed, the processors and the store,
and nothing of how work is ordered: no frontier, no lanes, no dispatcher. It is the oracle of the tests, the baseline of
the benchmarks, and the engine for columns that may resize.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from ..errors import CellError
from ..graph import GROUP
from ..observe import events
from ..store.entries import Answer, Failed, Fate, Finished, Key, Rebuilt
from ..store.records import Drop
from .cell import attempt, call_again
from .fill import error_text
from .identity import follow_rows
from .retry import kept_entries
from .row_group import cost_of, processor_failed
from .rows import Rows
from .salvage import Salvage
from .tasks import Cell, Outcome, Status, TaskKind, locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..store.entries import Entry
    from .identity import Identity
    from .plan import Step
    from .run import Run


class SequentialGroup:
    """One row group, filled one cell after the other."""

    retry = None  # this engine does not try dropped rows again

    def __init__(self, run: Run, index: int, nursery: trio.Nursery, entries: Iterable[Entry] = ()) -> None:
        """`entries` are what earlier runs have recorded of the row group."""
        self.run = run
        self.index = index
        self.journal_key = Key(group=index)
        self.nursery = nursery  # for what threads await
        self.rows = Rows(run.plan, run.plan.group_rows(index))
        self._recorder = run.recorder if run.plan.config.durability == "cell" else None
        self._dropped: dict[int, Identity] = {}
        self._done: set[tuple[int, int]] = set()  # (node, row)
        # Of each task the last thing that was recorded. Rows are numbered anew only between columns.
        self._recorded: dict[tuple[str, int], Finished | Failed] = {}
        self._answers: dict[tuple[str, int], dict[bytes, Any]] = {}  # of calls of tasks that were under way
        self._rebuilt: Rebuilt | None = None
        for entry in entries:
            match entry:
                case Rebuilt():
                    self._rebuilt = entry
                case Answer(column=column, row=row):
                    self._answers.setdefault((column, row), {})[entry.asked] = entry.answer
                case Finished(column=column, row=row) | Failed(column=column, row=row):
                    if isinstance(entry, Failed) and entry.fate != Fate.RETRIED_WITH_ANSWERS:
                        self._answers.pop((column, row), None)
                    self._recorded[column, row] = entry

    def kept_entries(self, order: Sequence[Identity]) -> list[Entry]:
        """What is finished of the rows that were dropped; nothing where columns make other rows of them."""
        if any(step.allow_resize for step in self.run.plan.steps):
            return []
        return kept_entries(self.run.plan, self.rows, self._dropped, lambda *at: at in self._done, order)

    def call_entries(self) -> list[Entry]:
        """Nothing: here generators that cannot tell their state are called again for what is in the part."""
        return []

    def live_rows(self) -> list[int]:
        """The rows that are not dropped, in order."""
        return [row for row in range(self.rows.buffer.rows) if row not in self._dropped]

    def missing_rows(self, _step: Step) -> list[int]:
        """The rows that a whole column is made for: all that are not dropped."""
        return self.live_rows()

    def record(self, entry: Entry) -> None:
        """Have the journal keep something of a task that is under way."""
        if self._recorder is not None:
            self._recorder.add(self.journal_key, entry)

    def gave_up(self, _cell: Cell[SequentialGroup]) -> bool:
        """Nothing else runs that could drop a row meanwhile."""
        return False

    async def fill(self) -> None:
        """Fill every column."""
        plan = self.run.plan
        steps = [plan.steps[node] for node in plan.graph.order]
        for step in steps:
            if step.kind is TaskKind.FROM_SCRATCH:
                await self._fill_column(step)
        if not await self._pre_process():
            return
        for step in steps:
            if step.kind is not TaskKind.FROM_SCRATCH and self.live_rows():
                await self._fill_column(step)
        for step in plan.post_batch if self.live_rows() else ():
            await self._process(step)

    async def _pre_process(self) -> bool:
        """Run the pre-batch processors, or take over what they left in an earlier run; False to skip the row group."""
        before = self.rows.buffer.rows
        if self._rebuilt is not None:
            found = self._rebuilt
            drops = [Drop(**drop) for drop in found.drops]
            after = self.rows.take_over(found.columns, list(found.identities), drops)
        else:
            for step in self.run.plan.pre_batch if self.live_rows() else ():
                if not await self._process(step):
                    return False
            if self.rows.frame is None:
                return True
            after = self.rows.rebuild()
            self.record(self.rows.rebuilt_as())
        self._dropped.clear()
        self._done = {(step.node, row) for step in self._seeds() for row in range(after)}
        self.run.emit_rebuilt(self.index, before, after)
        return True

    def _seeds(self) -> list[Step]:
        return [step for step in self.run.plan.steps if step.kind is TaskKind.FROM_SCRATCH]

    async def _process(self, step: Step) -> bool:
        """Run one processor; False if the row group is to be skipped for it."""
        live = self.live_rows()
        outcome = await self._attempt(Cell(step, self, GROUP))
        if outcome.status is Status.SUCCESS:
            before, after = outcome.value
            self.rows.processed(step, before, after, live)
            return True
        assert outcome.error is not None
        if step.kind is TaskKind.POST_BATCH:
            raise processor_failed(step, self.index, outcome.error) from outcome.error
        self.rows.skip(f"{step.name}: {error_text(outcome.error)}")
        self.run.emit_skipped(self.index, self.rows.skipped or step.name)
        return False

    async def _fill_column(self, step: Step) -> None:
        """One column of the row group: a pass over its rows, then salvage rounds over what may still succeed."""
        salvage: Salvage[SequentialGroup] = Salvage(self.run.plan.config, self.run.rng)
        resized: dict[int, list[Any]] = {}
        rows: Iterable[int] = self.live_rows() if step.kind is TaskKind.CELL else [GROUP]
        for row in rows:
            if row != GROUP and (step.skip is not None or step.skipped_with) and self._skip_cell(step, row):
                continue
            await self._try(Cell(step, self, row), salvage, resized)
            # A stateful generator must see its rows in order, so one that failed is tried again before the next.
            while step.instance is not None and len(salvage):
                await self._salvage(salvage, resized)
        while len(salvage):
            await self._salvage(salvage, resized)
        if step.allow_resize and step.kind is TaskKind.CELL:
            self._explode(step, resized)

    def _skip_cell(self, step: Step, row: int) -> bool:
        try:
            return self.rows.skips(step, row)
        except Exception as error:  # noqa: BLE001  a rule reads values that generators made; anything may happen
            self._drop(row, step, 1, f"skip_when: {error_text(error)}")
            return True

    def _drop(self, row: int, step: Step, attempts: int, error: str) -> None:
        drop = self.rows.drop(row, step, attempts, error)
        self._dropped[row] = (drop.row, drop.copy)
        self.run.emit_drop(self.index, drop)

    async def _salvage(self, salvage: Salvage[SequentialGroup], resized: dict[int, list[Any]]) -> None:
        deferred = sorted(salvage.start_round(self.rows.buffer.rows), key=lambda each: each[1])
        self.run.emit_salvage(self.index, salvage.rounds, len(deferred))
        for cell, eligible_at in deferred:
            await trio.sleep_until(eligible_at)
            await self._try(cell, salvage, resized)

    async def _try(
        self, cell: Cell[SequentialGroup], salvage: Salvage[SequentialGroup], resized: dict[int, list[Any]]
    ) -> None:
        run, step = self.run, cell.step
        cell.answers = self._answers.pop((step.name, cell.row), cell.answers)
        recorded = self._recorded.pop((step.name, cell.row), None)
        if recorded is not None:
            await self._take_recorded(cell, recorded, salvage, resized)
            return
        outcome = await self._attempt(cell)
        if self._recorder is not None and outcome.status is Status.SUCCESS:
            self._record(cell, Finished, value=outcome.value, cost=None if step.key is None else cost_of(outcome))
        run.record(outcome, salvage.window, error=outcome.status is not Status.SUCCESS)
        if outcome.status is Status.SUCCESS:
            if step.key is None:
                run.note_latency(step, outcome.seconds)
            self._write(cell, outcome.value, resized)
        else:
            run.ledger.waste(step.name, *cost_of(outcome))
            self._failed(outcome, salvage)
        if run.stopping is not None:
            raise run.stopping

    async def _take_recorded(
        self,
        cell: Cell[SequentialGroup],
        entry: Finished | Failed,
        salvage: Salvage[SequentialGroup],
        resized: dict[int, list[Any]],
    ) -> None:
        """Go on from the last thing that an earlier run recorded of this task."""
        cell.attempt, cell.salvage_round = entry.attempt, entry.salvage_round
        if self.run.must_replay(cell.step):
            await call_again(self.run, cell)
        if isinstance(entry, Finished):
            self._write(cell, entry.value, resized)
            self.run.restored(self.index, {entry.column: entry.cells})
        elif (
            entry.fate == Fate.DROPPED or salvage.defer(cell, self.run.now(), self.run.mean_latency(cell.step)) is None
        ):
            self._drop_rows(cell, entry.error)

    def _record(self, cell: Cell[SequentialGroup], kind: type[Finished | Failed], **fields: Any) -> None:
        if cell.step.instance is not None:
            self.run.keep_state(cell.step)
        self.record(
            kind(
                column=cell.step.name,
                row=cell.row,
                attempt=cell.attempt,
                salvage_round=cell.salvage_round,
                **fields,
            )
        )

    def _drop_rows(self, cell: Cell[SequentialGroup], error: str) -> None:
        for row in self.live_rows() if cell.row == GROUP else [cell.row]:
            self._drop(row, cell.step, cell.attempt, error)

    def _failed(self, outcome: Outcome[SequentialGroup], salvage: Salvage[SequentialGroup]) -> None:
        """Defer the task if it may still succeed, else drop its rows."""
        run, cell = self.run, outcome.cell
        assert outcome.error is not None
        error = error_text(outcome.error)
        eligible_at: float | None = None
        if outcome.status is Status.RETRYABLE:
            eligible_at = salvage.defer(cell, outcome.finished, run.mean_latency(cell.step))
        if self._recorder is not None:
            again = Fate.RETRIED_WITH_ANSWERS if outcome.goes_on else Fate.RETRIED
            self._record(cell, Failed, error=error, fate=Fate.DROPPED if eligible_at is None else again)
        if eligible_at is None:
            self._drop_rows(cell, error)
        elif run.events.active:
            run.emit_task(events.TaskDeferred, cell, eligible_at=eligible_at)

    async def _attempt(self, cell: Cell[SequentialGroup]) -> Outcome[SequentialGroup]:
        """One attempt, however often it is refused on the way."""
        run, step = self.run, cell.step
        instance = run.instance_of(step)
        if run.events.active and cell.attempt == 1:
            run.emit_task(events.TaskReady, cell)
        while True:
            cell.ready_at = run.now()
            await trio.lowlevel.checkpoint()
            if instance is not None and instance.busy:
                # A thread that was given up is still in the generator.
                free = trio.Event()
                instance.when_free(free.set)
                await free.wait()
            if step.key is not None:
                over = run.spending.would_pass(step)
                if over is not None:
                    raise over
                cell.permit = await run.throttles.get(step.key).acquire(step.tokens)
                cell.reserved = run.spending.reserve(step)
            cell.submitted_at = run.now()
            try:
                outcome = await attempt(run, cell)
            except Exception as error:
                locate(error, self.index, cell)
                raise
            if run.events.active:
                run.emit_finished(outcome)
            if run.stopping is not None:
                raise run.stopping
            usage = outcome.usage
            if usage is not None and usage.calls:
                run.ledger.spend(step.name, usage.take())
            if outcome.status is Status.REFUSED:
                cell.refusals += 1
                eligible_at = outcome.finished + outcome.retry_delay
                if run.events.active:
                    run.emit_task(events.TaskRefused, cell, key=step.key, eligible_at=eligible_at)
                await trio.sleep_until(eligible_at)
                continue
            run.ledger.attempts[step.name] += 1
            if outcome.status is not Status.SUCCESS:
                run.ledger.errors[step.name] += 1
            return outcome

    def _write(self, cell: Cell[SequentialGroup], value: Any, resized: dict[int, list[Any]]) -> None:
        step, update_cell = cell.step, self.rows.buffer.update_cell
        if cell.row == GROUP:
            rows, columns = value
            if step.allow_resize:
                self._resize(step, columns)
                return
            self._done.update((step.node, row) for row in rows)
            for name, values in zip(step.outputs, columns, strict=True):
                for row, each in zip(rows, values, strict=True):
                    if not isinstance(each, CellError):
                        update_cell(row, name, each)
                    elif row not in self._dropped:
                        self._drop(row, step, cell.attempt, error_text(each))
            return
        self._done.add((step.node, cell.row))
        if step.allow_resize:
            resized[cell.row] = value
        elif len(step.outputs) == 1:
            update_cell(cell.row, step.outputs[0], value)
        else:
            for name, each in zip(step.outputs, value, strict=True):
                update_cell(cell.row, name, each)

    def _resize(self, step: Step, columns: list[list[Any]]) -> None:
        """Take the rows that a whole-column generator returned in place of those it was given."""
        live, buffer = self.live_rows(), self.rows.buffer
        before = list(zip(*buffer.take(step.inputs, live).values(), strict=True))
        made = dict(zip(step.outputs, columns, strict=True))
        after = list(zip(*(made[name] for name in step.inputs), strict=True))
        identities = [self.rows.identity(row) for row in live]
        followed = follow_rows(before, after, identities)
        self.rows.removed(step, identities, followed)
        self._replace(made, followed)

    def _explode(self, step: Step, resized: dict[int, list[Any]]) -> None:
        """Put as many rows in a row's place as its cell function returned values."""
        plan, buffer = self.run.plan, self.rows.buffer
        kept = [name for name in plan.graph.outputs if name not in step.outputs]
        columns: dict[str, list[Any]] = {name: [] for name in plan.graph.outputs}
        before = [self.rows.identity(row) for row in self.live_rows()]
        copies: dict[int, int] = {}
        for source, copy in before:
            copies[source] = max(copy, copies.get(source, 0))
        followed: list[Identity] = []
        for row in self.live_rows():
            source, copy = self.rows.identity(row)
            for position, value in enumerate(resized[row]):
                for name in kept:
                    columns[name].append(buffer.values(name)[row])
                values = (value,) if len(step.outputs) == 1 else value
                for name, each in zip(step.outputs, values, strict=True):
                    columns[name].append(each)
                if position:
                    copies[source] += 1
                    copy = copies[source]
                followed.append((source, copy))
        self.rows.removed(step, before, followed)
        self._replace(columns, followed)

    def _replace(self, columns: dict[str, list[Any]], identities: list[Identity]) -> None:
        self._dropped.clear()
        self.rows.replace(columns, identities)
