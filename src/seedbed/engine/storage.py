"""The files of a run: the writer of its directory and the journal, opened together, with the state of earlier runs."""

from __future__ import annotations

import contextlib
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from ..errors import OutputDirectoryError, StoreError
from ..recipe.file import recipe_text
from ..store.entries import Purpose
from ..store.files import exists
from ..store.journal import Journal, Recovered, has_journal
from ..store.records import Header
from ..store.writer import DatasetWriter
from .source import RECIPE_NAME, store_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from ..store.manifest import Manifest
    from .plan import BuildPlan


@attrs.define(eq=False)
class Store:
    """The writer, the journal if the run has one, and the manifest and entries of earlier runs if it resumes them.

    `damage` has one sentence for each damaged file or record, whose content is generated again.
    """

    writer: DatasetWriter
    journal: Journal | None = None
    manifest: Manifest | None = None
    recovered: Recovered = attrs.field(factory=Recovered)
    damage: tuple[str, ...] = ()

    def close(self) -> None:
        """Release the directory."""
        try:
            if self.journal is not None:
                # What is committed is on disk; that it could not be tidied up changes nothing.
                with contextlib.suppress(StoreError):
                    self.journal.close()
        finally:
            self.writer.close()


def open_store(plan: BuildPlan, out: Path) -> Store:
    """Create the directory of a new dataset, or open the one that is resumed."""
    return _new_store(plan, out) if plan.done is None else _left_store(plan, out)


def _new_store(plan: BuildPlan, out: Path) -> Store:
    recipe = None if plan.source.recipe is None else recipe_text(plan.source.recipe)
    header = Header(
        rows=plan.rows,
        buffer_size=plan.config.buffer_size,
        columns=plan.graph.outputs,
        declared=pa.schema(list(plan.declared.items())),
        fingerprint=dict(plan.fingerprint),
        recipe=recipe,
        publishes_at_end=bool(plan.after_generation),
        created=time.time(),
        version=version("seedbed"),
    )
    store = Store(DatasetWriter.create(out, header))
    try:
        if recipe is not None:
            store_recipe(out, recipe)
        if plan.config.durability == "cell":
            store.journal = Journal.create(out)
    except BaseException:
        store.close()
        raise
    return store


def _left_store(plan: BuildPlan, out: Path) -> Store:
    opened: list[tuple[Journal, Recovered]] = []

    def open_journal(commits: int = 0) -> tuple[Journal, Recovered]:
        if not opened:
            opened.append(Journal.open(out, trusted=plan.runs_own_code, commits=commits))
        return opened[0]

    def forget_states() -> None:
        # Before the damage is cleared away: a process that dies in between must not find states that look right.
        if has_journal(out):
            journal, recovered = open_journal()
            journal.forget_states()
            opened[0] = journal, attrs.evolve(recovered, states={})

    try:
        writer, manifest, damage = DatasetWriter.open(out, on_damage=forget_states)
    except BaseException:
        for journal, _ in opened:
            with contextlib.suppress(StoreError):
                journal.close()
        raise
    store = Store(writer, manifest=manifest, damage=damage)
    if opened:
        store.journal, store.recovered = opened[0]
    try:
        assert plan.done is not None
        if manifest.header != plan.done.header or manifest.groups.keys() - plan.done.groups.keys():
            raise OutputDirectoryError(f"another process wrote {str(out)!r} while this build started: start it again")
        if writer.header.recipe is not None and not exists(out, RECIPE_NAME):
            store_recipe(out, writer.header.recipe)  # the process died right after it had made the directory
        # An existing journal is read whatever the options are now: its cells are paid for.
        if plan.config.durability == "cell" or has_journal(out):
            store.journal, store.recovered = open_journal(manifest.commits)
            store.damage += store.recovered.damage
            lost = store.recovered.missing_groups(len(manifest.groups))
            if lost is not None:
                # Before anything is generated again: the states are those after the rows that are lost.
                store.journal.forget_states(len(manifest.groups))
                store.recovered = attrs.evolve(store.recovered, states={})
                store.damage += () if damage else (lost,)
            _clear(store.journal, store.recovered, manifest)
        # After the journal was opened: that of a finished dataset is gone, that of a growing one must be there.
        if plan.header is not None:
            writer.grow(plan.header)
    except BaseException:
        store.close()
        raise
    return store


def _clear(journal: Journal, recovered: Recovered, manifest: Manifest) -> None:
    """Remove what belongs to no state of the dataset any more: what a run that died had written but not freed yet."""
    for key in (*recovered.groups, *recovered.kept):
        record = manifest.groups.get(key.group)
        if key.purpose is Purpose.BUILD:
            # A group that was skipped as a whole may be generated again now.
            is_obsolete = record is not None and record.skipped is None
        else:
            is_obsolete = record is None or (key.purpose is not Purpose.CALLS and record.revision != key.revision)
        if is_obsolete:
            journal.free(key)
