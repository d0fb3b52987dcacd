"""Regenerate part of a dataset in place: which cells, and the header of the revision that holds them.

A revision regenerates the columns that are named or changed in the recipe, and all that depends on them, in all rows or
in those that an expression selects. `plan_revision` decides by the headers alone; `cells_to_redo` decides for the rows
of one row group.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import attrs
import msgspec
import polars as pl

from ..columns.templates import compile_condition
from ..errors import CellError, ConfigError
from ..graph import Kind, Stage, nearest
from ..store.manifest import Redo, read
from ..store.parts import read_table
from ..store.values import python_rows
from .changes import changed_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from ..graph import Graph
    from ..store.manifest import GroupRecord, Header, Manifest
    from .tasks import Step


@attrs.frozen(kw_only=True)
class RedoRequest:
    """What a caller wants to have regenerated: columns, in all rows or where an expression is true.

    Without columns it is what the recipe changed.
    """

    columns: tuple[str, ...] = ()
    where: str | None = None

    def draws(self, before: Mapping[str, int]) -> dict[str, int]:
        """How often each column was redone, this time included."""
        return {**before, **{name: before.get(name, 0) + 1 for name in self.columns}}


class _Recipe(TypedDict):
    graph: Graph
    steps: Sequence[Step]
    accept_changes: bool


def draws_of(out: Path, request: RedoRequest | None) -> Mapping[str, int]:
    """How often each column of a directory was redone, with what this request redoes."""
    manifest = read(out).working
    assert manifest.header is not None  # a manifest without one cannot be read
    draws = manifest.header.draws
    return draws if request is None or manifest.redo is not None else request.draws(draws)


def begin_revision(
    out: Path, done: Manifest, new: Header, request: RedoRequest, **recipe: Unpack[_Recipe]
) -> tuple[Header, Redo]:
    """`plan_revision` of a directory; also an error if its dataset is not finished or no row is selected."""
    assert done.header is not None  # a manifest without one cannot be read
    if not done.complete:
        name = shlex.quote(str(out))
        raise ConfigError(
            f"the dataset in {str(out)!r} is not finished, and only a finished one is redone: finish it "
            f"(seedbed resume {name}), or build a new one that takes over what has not changed (seedbed run … "
            f"--reuse {name})"
        )
    if done.header.candidates is not None or new.candidates is not None:
        raise ConfigError(
            f"the dataset in {str(out)!r} cannot be redone: with accept, unique or near_duplicates a row that counts "
            "never changes; build a new dataset"
        )
    header, redo = plan_revision(done.header, new, request, **recipe)
    if redo.where is not None and not any(rows for _, rows in selected_in(out, done, redo.where)):
        raise ConfigError(f"where: no row of {str(out)!r} is selected by {redo.where!r}")
    return header, redo


def check_continued(out: Path, redo: Redo, request: RedoRequest) -> None:
    """Raise `ConfigError` unless the pending revision of a directory is the one that is requested."""
    if request in (RedoRequest(columns=redo.columns, where=redo.where), RedoRequest()):
        return
    name = shlex.quote(str(out))
    raise ConfigError(
        f"the directory {str(out)!r} has an unfinished redo of {redo.text}: finish it (seedbed resume {name}), or "
        f"take it back (seedbed redo {name} --abandon)"
    )


def plan_revision(
    old: Header, new: Header, request: RedoRequest, *, graph: Graph, steps: Sequence[Step], accept_changes: bool
) -> tuple[Header, Redo]:
    """The header of the revision, and what it regenerates; `ConfigError` if that is nothing or impossible.

    `old` is the header of the dataset, `new` that of a dataset that this recipe would begin. With `accept_changes`
    columns of which only code or data changed stay as they are, unless they are named.
    """
    names = [node.name for node in graph.nodes]
    for name in request.columns:
        if name not in names:
            raise ConfigError(f"redo: no column named {name!r}{nearest(name, names)}")
    changes = changed_columns(old, new, accept_changes=accept_changes)
    redone = cascade(graph, steps, {*request.columns, *changes.columns})
    from_scratch = [step.name for step in steps if step.kind is Kind.FROM_SCRATCH]
    has_barrier = bool(new.fingerprint.get(Stage.PRE_BATCH.value))
    late = [name for name in from_scratch if name in (*old.late, *changes.added)] if has_barrier else []
    everything = changes.passes_barrier or (
        has_barrier and any(name in redone for name in from_scratch if name not in late)
    )
    if request.where is not None and not request.columns:
        raise ConfigError("where selects rows in which columns are redone: name the columns")
    if not (redone or everything or changes.anything):
        raise ConfigError("nothing to redo: no column is named, and the recipe is that of the dataset")
    if request.where is not None:
        _check_where(request, graph, changes.columns)
        if everything:
            raise ConfigError(
                "where: the pre-batch processors see the columns from scratch, so with one of these all rows are "
                "regenerated: leave out where"
            )
        for step in steps:
            if step.name in redone and step.once_per:
                raise ConfigError(
                    f"where: column {step.name!r} has once_per, and rows share its answers: it can only be redone in "
                    "all rows; leave out where"
                )
            if step.name in redone and step.instance is not None:
                raise ConfigError(
                    f"where: column {step.name!r} is stateful, and its values depend on earlier rows: it can only be "
                    "redone in all rows; leave out where"
                )
    edition = old.edition + 1
    fresh = set(names) if everything else redone if request.where is None else set[str]()
    header = msgspec.structs.replace(
        old,
        columns=new.columns,
        declared=new.declared,
        fingerprint=new.fingerprint,
        recipe=new.recipe,
        publishes_at_end=new.publishes_at_end,
        edition=edition,
        added={name: edition if name in fresh else old.added.get(name, 0) for name in names},
        draws=request.draws(old.draws),
        late=() if everything else tuple(late),
    )
    return header, Redo(columns=request.columns, where=request.where, everything=everything, edition=edition)


def cascade(graph: Graph, steps: Sequence[Step], names: Collection[str]) -> set[str]:
    """These columns and all that depend on them, with those that share a stateful generator: it starts anew."""
    found, pending = set[str](), [*names]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        pending += graph.downstream(name)
        instance = steps[graph.node(name).index].instance
        if instance is not None:
            pending += [step.name for step in steps if step.instance is instance]
    return found


def _check_where(request: RedoRequest, graph: Graph, changed: Collection[str]) -> None:
    assert request.where is not None
    for name in compile_condition(request.where, where="where").requires:
        if name not in graph.outputs:
            raise ConfigError(f"where: no column named {name!r}{nearest(name, graph.outputs)}")
    if changed:
        named = ", ".join(map(repr, sorted(changed)))
        raise ConfigError(
            f"where: the recipe changed {named}, and what is changed is regenerated in all rows: leave out where, or "
            "pass the recipe of the dataset"
        )


def selected_rows(where: str, table: pa.Table) -> list[int]:
    """The positions of the rows for which an expression is true; `ConfigError` if it fails for one."""
    condition = compile_condition(where, where="where")
    frame: Any = pl.from_arrow(table)
    found: list[int] = []
    for at, values in enumerate(python_rows(frame)):
        try:
            if condition.decide(values):
                found.append(at)
        except CellError as error:
            raise ConfigError(str(error)) from error
    return found


def selected_in(out: Path, manifest: Manifest, where: str) -> Iterator[tuple[GroupRecord, list[int]]]:
    """For each row group the positions of the rows, before post-batch processors, for which an expression is true."""
    names = compile_condition(where, where="where").requires
    for record in manifest.in_order:
        part = record.generated or record.part
        if part is not None:
            yield record, selected_rows(where, read_table(out, part, names or None))


def cells_to_redo(
    graph: Graph, steps: Sequence[Step], columns: Collection[str], selected: Collection[int], rows: Collection[int]
) -> dict[str, Collection[int]]:
    """By column, the rows of a row group that are regenerated if these columns are redone in the `selected` ones.

    A whole column is generated for all `rows`: the values of one may depend on others.
    """
    found: dict[str, Collection[int]] = {}
    for node in graph.order:
        step = steps[node]
        inputs = [found.get(steps[up].name, ()) for up in graph.nodes[node].upstream]
        wanted = {*(selected if step.name in columns else ())}.union(*inputs)
        found[step.name] = rows if wanted and step.kind is Kind.FULL_COLUMN else wanted
    return found
