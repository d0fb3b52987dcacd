"""What earlier runs left of a dataset, and which of its row groups are done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..store.entries import Purpose
from .states import restore_state

if TYPE_CHECKING:
    from ..observe.report import Ledger
    from ..store.journal import Recovered
    from ..store.manifest import Manifest
    from ..store.records import GroupRecord
    from .budget import Budget
    from .plan import BuildPlan
    from .storage import Store
    from .tasks import Step


class History:
    """Row groups that are done, those to be retried, and stateful generators to be replayed.

    Changed when a row group is checkpointed.
    """

    def __init__(self, plan: BuildPlan, store: Store | None, ledger: Ledger, budget: Budget) -> None:
        self._plan = plan
        # Row groups that are done: all below the first number, and these.
        self._done_below = 0
        self._done_above: set[int] = set()
        # Row groups whose record is in the manifest, but which are not done yet.
        self._written: set[int] = set()
        # Finished row groups whose dropped rows are to be retried, and were not yet.
        self.retrying: dict[int, GroupRecord] = {}
        # Stateful generators whose state was not saved, by identity: they are called again.
        self.replaying: set[int] = set()
        # Keys of the journal's records of calls of stateful generators, kept until everything is generated.
        self.calls_kept = (
            set() if store is None else {key for key in store.recovered.kept if key.purpose is Purpose.CALLS}
        )
        # Row groups that the journal has entries of.
        self.recorded = frozenset(
            () if store is None else (key.group for key in store.recovered.groups if key.purpose is Purpose.BUILD)
        )
        if store is not None:
            ledger.damage = store.damage
            if store.manifest is not None:
                self._take_over(store.manifest, store.recovered, ledger, budget)

    def _take_over(self, manifest: Manifest, recovered: Recovered, ledger: Ledger, budget: Budget) -> None:
        retry = self._plan.retry_dropped
        for index, group in sorted(manifest.groups.items()):
            if retry and group.skipped is not None:
                continue  # nothing of it was generated that could be lost: it is generated as a whole
            self.group_done(index)
            ledger.written += group.rows
            ledger.removed += group.removed
            ledger.added += group.added
            if group.skipped is not None:
                ledger.skipped.append(index)
            if retry and any(drop.kind == "failed" for drop in group.drops):
                self.retrying[index] = group
            else:
                ledger.dropped.extend(group.drops)
        # The journal is usually ahead of the manifest, which was written at the last checkpoint.
        entries = (*(manifest.spending.entries if manifest.spending is not None else ()), *recovered.spending)
        for column, model, calls, input_tokens, output_tokens, cost in entries:
            if calls >= ledger.spent[column, model][0]:
                ledger.spent[column, model] = (calls, input_tokens, output_tokens, cost)
        for (column, _), (calls, input_tokens, output_tokens, cost) in ledger.spent.items():
            budget.take_over(column, calls, input_tokens + output_tokens, cost)
        if manifest.groups or recovered.groups:
            states = {**(manifest.states.states if manifest.states is not None else {}), **recovered.states}
            for identity, nodes in self._plan.instances.items():
                if not restore_state(self._plan.steps, nodes, states, trusted=self._plan.runs_own_code):
                    self.replaying.add(identity)

    def is_open(self, index: int) -> bool:
        """True if a row group is to be generated, retried or replayed."""
        return not self.is_done(index) or index in self.retrying or bool(self.replaying)

    def is_done(self, index: int) -> bool:
        """True if a row group is checkpointed or skipped, by this run or an earlier one."""
        return index < self._done_below or index in self._done_above

    def finished_groups(self) -> int:
        """How many row groups are in the manifest."""
        return self._done_below + len(self._done_above | self._written)

    def group_written(self, index: int) -> None:
        """The record of a row group is in the manifest; that of a retried one was there before."""
        if not self.is_done(index):
            self._written.add(index)

    def must_replay(self, step: Step) -> bool:
        """True if a stateful generator must be called again for rows that earlier runs finished."""
        return step.instance is not None and id(step.instance) in self.replaying

    def group_done(self, index: int) -> None:
        """A row group is checkpointed or skipped."""
        self._written.discard(index)
        self._done_above.add(index)
        while self._done_below in self._done_above:
            self._done_above.remove(self._done_below)
            self._done_below += 1

    def unfinished(self) -> list[range]:
        """The source rows of all row groups that are not done, as few ranges as possible."""
        plan = self._plan
        ranges: list[range] = []
        start = self._done_below
        for index in [*sorted(self._done_above), plan.group_count]:
            if start < index:
                ranges.append(range(plan.group_rows(start).start, plan.group_rows(index - 1).stop))
            start = index + 1
        return ranges
