"""The checked plan of a build: all problems of its columns, processors and limits are found before anything runs."""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import pyarrow as pa

from ..checks import is_number, is_whole
from ..columns.base import Column
from ..errors import ConfigError, DatasetGenerationError, ManifestError, OutputDirectoryError
from ..graph import Graph, Kind, Stage, build_graph, check_columns, nearest
from ..models.distributions import stable_seed
from ..recipe.file import recipe_text
from ..recipe.recipe import code_fields
from ..runtime.threads import check_main_guard
from ..runtime.throttle import KeyLimits
from ..store.children import Children
from ..store.entries import Key, Purpose
from ..store.files import stage_folder
from ..store.manifest import Header, Layout, Manifest, children_of, is_dataset
from ..store.manifest import read as read_manifest
from ..store.provenance import is_provenance
from ..store.replace import check_replaceable, is_half_removed
from ..store.schema import declared_type
from ..store.values import is_json
from ..store.writer import check_output
from .changes import check_resumable, describe_existing, measure_progress
from .config import RunConfig
from .fingerprint import columns_fingerprint
from .redo import begin_revision, check_continued
from .reuse import Reuse, plan_reuse
from .stateful import stateful_nodes
from .tasks import ASYNC_LANE, PROCESS_LANE, THREAD_LANE, Processor, Step

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from pathlib import Path

    from ..columns.base import Call
    from ..graph import Node
    from ..recipe.acceptance import Acceptance
    from ..store.manifest import GroupRecord, Redo
    from .redo import RedoRequest
    from .source import Source


@attrs.frozen(kw_only=True, eq=False)
class StagePlan:
    """One checked stage of a build; a recipe without stages has one, without a name.

    Row groups are counted, not listed.
    """

    stage: str = ""
    graph: Graph
    steps: tuple[Step, ...]  # by node index
    rows: int
    config: RunConfig
    limits: Mapping[str, KeyLimits]
    pre_batch: tuple[Step, ...]
    post_batch: tuple[Step, ...]
    after_generation: tuple[Processor, ...]
    declared: Mapping[str, pa.DataType]
    out: Path | None
    header: Header  # of the directory, as this build has it
    source: Source
    layout: Layout | Children
    """The rows of each row group; `Children`, which grow while the run takes rows, if they come from another stage."""
    parent_plan: StagePlan | None = None
    done: Manifest | None = None  # of earlier runs, if this one resumes them
    retry_dropped: bool = False  # rows that earlier runs dropped are retried
    overwrite: bool = False  # a dataset in the directory is removed first
    # The revision that is generated, if one is; it begins with this run where `done` has none.
    redo: Redo | None = None
    # What is copied from another dataset before anything is generated, if this run creates the directory.
    reuse: Reuse | None = None

    @property
    def begins_revision(self) -> bool:
        """True if this run begins a revision of a finished dataset."""
        return self.redo is not None and self.done is not None and self.done.redo is None

    @functools.cached_property
    def fresh(self) -> frozenset[str]:
        """The columns that this run is the first to generate anew, because of what changed."""
        before = None if self.done is None else self.done.header
        if before is None or before.edition == self.header.edition:
            return frozenset()
        return frozenset(name for name, edition in self.header.added.items() if edition == self.header.edition)

    @functools.cached_property
    def restarted(self) -> frozenset[str]:
        """The names of states that do not count any more, because columns of their generators are generated anew."""
        nodes = self.instances.items()
        fresh = {identity for identity, of in nodes if any(self.steps[node].name in self.fresh for node in of)}
        return frozenset(self.state_names[identity] for identity in fresh)

    def shared_key(self, column: str) -> Key:
        """What the answers of a column with `once_per` are stored under: others if the column is generated anew."""
        return self.key(0, revision=self.header.added.get(column, 0), purpose=Purpose.SHARED)

    def is_redone(self, column: str, record: GroupRecord) -> bool:
        """True if a row that was dropped because of this column is generated after all, since the column is anew."""
        is_revision = self.redo is not None and self.redo.where is None
        edition = self.header.edition
        return (is_revision or self.header.is_reusing) and self.header.added.get(column, edition) > record.edition

    @property
    def acceptance(self) -> Acceptance | None:
        """Which candidates become rows; None if all of them do."""
        return self.source.acceptance

    @property
    def deciding(self) -> tuple[int, ...]:
        """The nodes that decide whether a candidate is accepted."""
        predicate = None if self.acceptance is None else self.acceptance.predicate
        return () if predicate is None else tuple({self.graph.node(name).index: None for name in predicate.requires})

    @property
    def requested(self) -> int:
        """How many rows are requested: of a stage whose rows come from another one, those that it has so far."""
        return self.layout.rows if self.parent is not None else self.rows

    @property
    def finished_rows(self) -> int:
        """The number of rows that earlier runs wrote or dropped and that this run does not retry."""
        if self.done is not None and self.acceptance is not None:
            return min(self.rows, self.done.kept_rows)
        groups = [*self.done.groups.values()] if self.done is not None else []
        groups = [group for group in groups if group.edition == self.header.edition]  # others are written anew
        retried = sum(drop.kind in ("failed", "skipped") for group in groups for drop in group.drops)
        return sum(group.stop - group.start for group in groups) - (retried if self.retry_dropped else 0)

    @functools.cached_property
    def seeds(self) -> frozenset[str]:
        """The columns from scratch that pre-batch processors see."""
        late = self.header.late
        return frozenset(step.name for step in self.steps if step.kind is Kind.FROM_SCRATCH and step.name not in late)

    def origin(self, row: int) -> tuple[int, int]:
        """What random values of a row depend on: a row of the first stage, and which of the rows made from it it is.

        So they do not depend on the number of the row, nor on those of the rows between.
        """
        if self.parent_plan is None or not isinstance(self.layout, Children):
            return row, 0
        parent, k = self.layout.origin(row)
        first, path = self.parent_plan.origin(parent)
        return first, k if self.parent_plan.parent_plan is None else stable_seed(path, k) >> 2

    @property
    def wanted(self) -> int:
        """How many rows it is to have, where not every row counts."""
        return ALL_ROWS if self.parent is not None else self.rows

    @property
    def parent(self) -> str | None:
        """The stage that its rows come from, if they come from another one."""
        return None if self.header.source is None else self.header.source.stage

    @functools.cached_property
    def stored(self) -> tuple[str, ...]:
        """The outputs that its parts hold: all but those that another stage stores."""
        return tuple(name for name in self.graph.outputs if name not in self.source.inherited.owners)

    @functools.cached_property
    def inherited_step(self) -> Step | None:
        """The step of what a row has from others: its numbers, and values of its parents; None if it has nothing."""
        column = self.source.inherited.column
        return None if column is None else next(step for step in self.steps if step.column is column)

    def key(self, group: int, *, revision: int = 0, purpose: Purpose = Purpose.BUILD) -> Key:
        """What entries of the journal about one of its row groups belong to."""
        return Key(group=group, revision=revision, purpose=purpose, stage=self.stage)

    @functools.cached_property
    def seed_outputs(self) -> tuple[str, ...]:
        """The outputs of columns from scratch that pre-batch processors see."""
        return tuple(output for step in self.steps if step.name in self.seeds for output in step.outputs)

    @property
    def runs_own_code(self) -> bool:
        """True if code of the user takes part in the build, so that values of user-defined types may be unpickled.

        That is a function of a column, model or processor. A plug-in counts only where the recipe is written in Python
        or code is allowed: a recipe file that names one may come from someone else, whose directory must run nothing.
        """
        recipe, processors = self.source.recipe, self.source.processors
        if recipe is None:
            return not all(
                map(_is_ours, (*(step.call.function for step in self.steps), *(p.apply for p in processors)))
            )
        # Those that the caller passed beside the recipe come last.
        if not all(_is_ours(each.apply) for each in processors[len(recipe.processors) :]):
            return True
        specs = (*recipe.columns, *recipe.models.values(), *recipe.processors)
        has_plugins = not all(_is_ours(type(spec)) for spec in specs)
        may_run_code = recipe.access is None or recipe.access.grants.code
        return any(code_fields(spec) for spec in specs) or (has_plugins and may_run_code)

    @functools.cached_property
    def documents(self) -> frozenset[str]:
        """The outputs whose type is JSON."""
        return frozenset(name for name, arrow in self.declared.items() if is_json(arrow))

    @functools.cached_property
    def instances(self) -> dict[int, tuple[int, ...]]:
        """For each stateful generator (by identity) the nodes that use it, in the order of their turns."""
        return stateful_nodes(self.graph, self.steps)

    @functools.cached_property
    def state_names(self) -> dict[int, str]:
        """For each stateful generator (by identity) the name that its state is stored under: its columns."""
        steps = self.steps
        prefix = f"{self.stage}/" if self.stage else ""
        return {
            identity: prefix + "+".join(steps[node].name for node in nodes)
            for identity, nodes in self.instances.items()
        }


@attrs.frozen(kw_only=True, eq=False)
class BuildPlan:
    """A checked build: its stages, in the order of the recipe with each after the one that its rows come from."""

    stages: tuple[StagePlan, ...]
    output: StagePlan
    """The stage at the root of the dataset directory."""
    source: Source
    config: RunConfig
    limits: Mapping[str, KeyLimits]
    out: Path | None
    overwrite: bool

    @property
    def from_output(self) -> tuple[StagePlan, ...]:
        """All stages, that at the root first."""
        return (self.output, *(stage for stage in self.stages if stage is not self.output))

    @property
    def runs_own_code(self) -> bool:
        """As that of its stages."""
        return any(stage.runs_own_code for stage in self.stages)

    @property
    def is_finished(self) -> bool:
        """True if earlier runs left nothing to be generated."""
        return all(
            stage.done is not None and stage.done.complete and stage.finished_rows >= stage.rows
            if stage.parent is not None
            else stage.finished_rows >= stage.rows
            for stage in self.stages
        )


def _is_ours(function: object) -> bool:
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.partition(".")[0] == __name__.partition(".")[0]


def plan_build(
    source: Source,
    *,
    rows: int | Mapping[str, int] | None,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    retry_dropped: bool = False,
    accept_changes: bool = False,
    redo: RedoRequest | None = None,
    reuse: Path | None = None,
) -> BuildPlan:
    """Check everything and lay out the run, or raise one error that lists all problems.

    `rows` is a number for the only stage that takes its rows from no other, or one for each such stage. `resume`
    continues an existing directory, which may grow; `retry_dropped` retries its dropped rows, and `accept_changes`
    continues although code or data changed. `overwrite` removes the dataset that is there. With `redo` part of the
    dataset is regenerated as a revision; a new one takes over what it can from the dataset `reuse`.
    """
    config = source.config
    if not isinstance(config, RunConfig):
        raise ConfigError(f"config must be a RunConfig, not {config!r}; see RunConfig.from_mapping")
    is_resumable = resume and out is not None
    exists = out is not None and is_dataset(out)
    for name, applies, expected in (
        ("retry_dropped", not retry_dropped or is_resumable, "an existing dataset: pass out and resume=True"),
        ("accept_changes", not accept_changes or is_resumable, "an existing dataset: pass out and resume=True"),
        ("redo", redo is None or (resume and exists), "a finished dataset: pass out and resume=True"),
        ("reuse", reuse is None or out is not None, "a dataset that is written: pass out"),
    ):
        if not applies:
            raise ConfigError(f"{name} applies to {expected} with it")
    if overwrite and (resume or out is None):
        raise ConfigError("overwrite replaces the dataset in out: pass out with it, and not resume")
    if source.parts and (redo is not None or reuse is not None):
        name = "redo" if redo is not None else "reuse"
        raise ConfigError(f"{name} applies to recipes without stages: rows of other stages depend on the columns")
    done = read_manifest(out).working if out is not None and resume and is_dataset(out) else None
    counts = requested_rows(source, rows, out if done is not None else None)
    problems: list[str] = []
    for stage in source.stages:
        found = _check_stage(stage, counts[stage.stage])
        problems += [f"stage {stage.stage!r}: {each}" if stage.stage else each for each in found]
    problems += _check_limits(source)
    if problems:
        raise DatasetGenerationError(problems)
    check_main_guard(starts_processes=any(column.process for stage in source.stages for column in stage.columns))
    if out is not None and done is None:
        if overwrite or is_half_removed(out):
            check_replaceable(out)
        elif not is_dataset(out):
            check_output(out)
    stages: list[StagePlan] = []
    for stage in source.stages:
        is_output = stage.stage == source.output
        planned = _plan_stage(
            stage,
            rows=counts[stage.stage],
            root=out,
            out=out if out is None or is_output else out / stage_folder(stage.stage),
            stages=tuple(each.stage for each in source.stages if each.stage) if is_output else (),
            resumes=done is not None,
            accept_changes=accept_changes,
            redo=redo,
            parent=next((each for each in stages if each.stage == stage.parent), None),
            reuse=reuse,
        )
        stages.append(attrs.evolve(planned, retry_dropped=retry_dropped, overwrite=overwrite))
    output = next(stage for stage in stages if stage.stage == source.output)
    if out is not None and done is None and not overwrite and is_dataset(out):
        raise OutputDirectoryError(describe_existing(out, read_manifest(out), output.header))
    if output.done is not None and not output.begins_revision and output.reuse is None:
        at = stages.index(output)
        output = stages[at] = _with_recipe(output, stages, source)
    return BuildPlan(
        stages=tuple(stages),
        output=output,
        source=source,
        config=output.config,
        limits={**source.inner_limits, **source.limits},
        out=out,
        overwrite=overwrite,
    )


def requested_rows(source: Source, rows: int | Mapping[str, int] | None, directory: Path | None) -> dict[str, int]:
    """The number of rows of each stage, 0 for those whose rows come from another; `directory` is that of a dataset.

    What is not given is the number in the recipe or, if the dataset has more rows, those.
    """
    roots = {each.stage: each.rows for each in source.stages if each.parent is None}
    if isinstance(rows, Mapping):
        given = dict(rows)
    elif rows is None:
        given = {}
    elif len(roots) == 1:
        given = dict.fromkeys(roots, rows)
    else:
        names = ", ".join(f"{name}=N" for name in roots)
        raise ConfigError(f"the recipe has several stages with rows of their own: give the number of each: {names}")
    problems = []
    for name in given:
        if name not in roots:
            known = next((each for each in source.stages if each.stage == name), None)
            of = f"; its rows come from stage {known.parent!r}" if known is not None else nearest(str(name), roots)
            problems.append(f"rows are given for {name!r}, which is no stage with a number of rows{of}")
    for name, own in roots.items():
        if name not in given:
            stored = 0 if directory is None else _stored_rows(directory, name, is_output=name == source.output)
            found = max(stored, own or 0) if directory is not None else own
            if found is None:
                problems.append(
                    f"the number of rows of stage {name!r} is missing: give rows in the recipe, or -n {name}=N"
                    if name
                    else "the number of rows is missing: pass rows (-n)"
                )
            given[name] = found or 0
        value = given[name]
        if not is_whole(value) or value < 0:
            of = f" of stage {name!r}" if name else ""
            problems.append(f"rows{of} must be a whole number, 0 or more, not {value!r}")
    if problems:
        raise ConfigError("\n".join(problems))
    return {each.stage: given.get(each.stage, 0) for each in source.stages}


def _stored_rows(directory: Path, stage: str, *, is_output: bool) -> int:
    folder = directory if is_output else directory / stage_folder(stage)
    header = read_manifest(folder).working.header if is_dataset(folder) else None
    return 0 if header is None else header.rows


def _plan_stage(
    source: Source,
    *,
    rows: int,
    root: Path | None,
    out: Path | None,
    stages: tuple[str, ...],
    resumes: bool,
    accept_changes: bool,
    redo: RedoRequest | None,
    parent: StagePlan | None,
    reuse: Path | None,
) -> StagePlan:
    config, columns, processors = source.config, source.columns, source.processors
    predicate = None if source.acceptance is None else source.acceptance.predicate
    graph = build_graph(columns, accept=() if predicate is None else predicate.requires)
    declared = {name: declared_type(dtype) for column in columns for name, dtype in column.dtypes().items()}
    done = read_manifest(out).working if out is not None and resumes and is_dataset(out) else None
    header = _new_header(source, graph, declared, rows=rows, stored=out is not None, stages=stages)
    positions = {node: position for position, node in enumerate(graph.order)}
    steps = tuple(
        _step(column, node, graph, positions[node.index], config, stage=source.stage)
        for column, node in zip(columns, graph.nodes, strict=True)
    )
    revision = None if done is None else done.redo
    if done is not None and root is not None:
        assert done.header is not None  # a manifest without one cannot be read
        if done.header.stage != header.stage:
            before, now = (repr(each) if each else "none" for each in (done.header.stage, header.stage))
            raise ManifestError(
                f"{str(root)!r} belongs to another build: its output stage is {before}, that of this recipe {now}; "
                "for a new dataset in its place, pass --overwrite (overwrite=True)"
            )
        if redo is not None and revision is None:
            header, revision = begin_revision(
                root, done, header, redo, graph=graph, steps=steps, accept_changes=accept_changes
            )
        else:
            if redo is not None and revision is not None:
                check_continued(root, revision, redo)
            progress = functools.partial(measure_progress, root, done)
            header = check_resumable(done.header, header, graph, progress=progress, accept_changes=accept_changes)
        _check_started_with_provenance(config, header, root)
    reused: Reuse | None = None
    if reuse is not None and out is not None and done is None:
        header, done, reused = plan_reuse(reuse, out, header, graph=graph, steps=steps)
    config = attrs.evolve(config, buffer_size=header.buffer_size)
    taken = done.taken if done is not None and done.header is not None and done.header.source == header.source else ()
    return StagePlan(
        stage=source.stage,
        graph=graph,
        steps=steps,
        rows=rows,
        config=config,
        limits={**source.inner_limits, **source.limits},
        pre_batch=_processor_steps(processors, Stage.PRE_BATCH, source.stage),
        post_batch=_processor_steps(processors, Stage.POST_BATCH, source.stage),
        after_generation=tuple(each for each in processors if each.stage is Stage.AFTER_GENERATION),
        declared=declared,
        out=out,
        header=header,
        source=source,
        layout=header.layout if header.source is None else children_of(header, taken),
        parent_plan=parent,
        done=done,
        redo=revision,
        reuse=reused,
    )


def _with_recipe(output: StagePlan, stages: Sequence[StagePlan], source: Source) -> StagePlan:
    """The stage at the root with the recipe as it is now, whatever of it changed.

    But a finished dataset is left as it is if only connection details differ.
    """
    assert output.done is not None  # there is a dataset
    is_changed = output.done.finished is None or any(
        stage.done is None or stage.done.header != stage.header for stage in stages
    )
    if not is_changed or source.recipe is None:
        return output
    names = tuple(stage.stage for stage in stages if stage.stage)
    header = msgspec.structs.replace(output.header, recipe=recipe_text(source.recipe), stages=names)
    return attrs.evolve(output, header=header)


def _new_header(
    source: Source,
    graph: Graph,
    declared: Mapping[str, pa.DataType],
    *,
    rows: int,
    stored: bool,
    stages: tuple[str, ...],
) -> Header:
    """The header of a new dataset; only what is `stored` has a fingerprint, because files are read for it."""
    retyped = declared.keys() if source.retyped is None else source.retyped
    hidden = source.inherited.owners.keys() | set(retyped)
    written = [(name, arrow) for name, arrow in declared.items() if name not in hidden]
    is_root = not source.stage or bool(stages)
    candidates = None if source.acceptance is None else _candidates(source, rows)
    fingerprint: Mapping[str, Any] = {}
    if stored:
        make = source.fingerprint or functools.partial(columns_fingerprint, source.columns, source.processors)
        fingerprint = make()
    return Header(
        rows=rows,
        buffer_size=source.config.buffer_size if candidates is None else _group_size(rows, source.config.buffer_size),
        candidates=candidates,
        columns=tuple(name for name in graph.outputs if name not in source.inherited.owners),
        declared=pa.schema(written),
        fingerprint=dict(fingerprint),
        recipe=None if source.whole is None or not stored or not is_root else recipe_text(source.whole),
        provenance=source.config.provenance and stored,
        publishes_at_end=any(each.stage is Stage.AFTER_GENERATION for each in source.processors),
        stage=source.stage,
        source=source.rows_from,
        stages=stages,
        created=time.time(),
        version=version("seedbed"),
    )


def _candidates(source: Source, rows: int) -> int:
    """How many candidates there may be: no more than a generator from scratch has rows."""
    assert source.acceptance is not None
    if source.parent is not None:
        return ALL_ROWS
    available = [
        getattr(each.generator, "available", None) for each in source.columns if each.kind is Kind.FROM_SCRATCH
    ]
    return min([source.acceptance.rules.candidates(rows), *(each for each in available if isinstance(each, int))])


# The number of row groups that the requested rows make up, so that the last one is a small part of a run.
_ACCEPTED_GROUPS = 20
_SMALLEST_GROUP = 16
# As many rows as are accepted: those of a stage that takes them from another.
ALL_ROWS = 2**40 - 1


def _group_size(rows: int, buffer_size: int) -> int:
    """The rows of a row group where not every row counts: it is fixed when the dataset begins."""
    return min(buffer_size, max(_SMALLEST_GROUP, rows // _ACCEPTED_GROUPS))


def _check_stage(source: Source, rows: int) -> list[str]:
    """The problems of the columns, processors and rules of a stage with so many rows."""
    columns, accepts = source.columns, source.acceptance
    problems = _check(columns, source.processors)
    if problems:
        return problems
    problems = _check_provenance(columns, source.config)
    if source.parent is None:
        problems += filter(None, (_too_few_rows(each, rows) for each in columns))
        if not problems and accepts is not None and rows > accepts.rules.candidates(rows):
            limit = accepts.rules.max_candidates
            problems.append(f"max_candidates={limit} is less than the {rows:,} rows that were requested")
    return problems


def _check(columns: Sequence[Column], processors: Sequence[Processor]) -> list[str]:
    unknown = [f"{each!r} is not a Column" for each in columns if not isinstance(each, Column)]
    unknown += [f"{each!r} is not a Processor" for each in processors if not isinstance(each, Processor)]
    if unknown:
        return unknown
    if not columns:
        return ["a build needs at least one column"]
    problems = [column.problem for column in columns if column.problem]
    problems += check_columns(columns)
    for column in columns:
        problems += _check_column(column)
    if any(each.stage is Stage.PRE_BATCH for each in processors) and not any(
        column.kind is Kind.FROM_SCRATCH for column in columns
    ):
        problems.append("a pre-batch processor needs a column from scratch, whose rows it sees")
    return problems


def _check_started_with_provenance(config: RunConfig, header: Header, out: Path) -> None:
    if config.provenance and not header.provenance:
        raise ConfigError(
            f"the dataset in {str(out)!r} was started without the option provenance, which adds columns: resume "
            "without it, and read Dataset.provenance() instead"
        )


def _check_provenance(columns: Sequence[Column], config: RunConfig) -> list[str]:
    """The columns whose names are those of columns that the option `provenance` adds."""
    if not config.provenance:
        return []
    names = [name for column in columns for name in (*column.outputs, *column.side_effects)]
    return [
        f"column {name!r} has the name of a column that the option provenance adds"
        for name in names
        if is_provenance(name) and name != "_row"  # the number that rows of stages have anyway
    ]


def _check_limits(source: Source) -> list[str]:
    columns = [column for stage in source.stages for column in stage.columns]
    if not all(isinstance(column, Column) for column in columns):  # another problem, which has been found
        return []
    keys = {key for column in columns for key in (column.key, *column.other_keys) if key is not None}
    problems = [
        f"the limits of key {key!r} are not KeyLimits"
        for key, each in source.limits.items()
        if not isinstance(each, KeyLimits)
    ]
    return problems + [
        f"limits are given for key {key!r}, which no column uses{nearest(key, sorted(keys))}"
        for key in source.limits
        if key not in keys
    ]


def _check_column(column: Column) -> list[str]:
    name = column.name
    if not isinstance(name, str) or not name:
        return [f"a column's name must be text, not {name!r}"]
    problems: list[str] = []
    if not column.outputs:
        problems.append(f"column {name!r} has no outputs")
    if column.key is not None and (not isinstance(column.key, str) or not column.key):
        problems.append(f"column {name!r} has a key that is not text: {column.key!r}")
    if not is_whole(column.tokens) or column.tokens < 0:
        problems.append(f"column {name!r} has tokens={column.tokens!r}; it must be a whole number, 0 or more")
    if column.timeout is not None and (not is_number(column.timeout) or column.timeout <= 0):
        problems.append(f"column {name!r} has timeout={column.timeout!r}; it must be a number of seconds above 0")
    if any(not (isinstance(each, type) and issubclass(each, Exception)) for each in column.retry_on):
        problems.append(f"column {name!r} has something in retry_on that is no exception class")
    if column.skip_policy not in ("run", "skip"):
        problems.append(f"column {name!r} has skip_policy={column.skip_policy!r}; it must be 'run' or 'skip'")
    if column.skip is not None and column.kind is Kind.FROM_SCRATCH:
        problems.append(f"column {name!r} has a skip rule, but a column from scratch has no inputs to decide by")
    if column.once_per and column.kind is not Kind.CELL:
        problems.append(f"column {name!r} has once_per, but it is not generated cell by cell")
    elif column.once_per and column.is_stateful:
        problems.append(f"column {name!r} has once_per, but it is stateful: its cells may differ for one key")
    if column.lane_limit is not None and column.lane_limit < 1:
        problems.append(f"column {name!r} has lane_limit={column.lane_limit!r}; it must be 1 or more")
    if column.process and column.call is not None:
        problems += _check_process(column, column.call)
    outputs = (*column.outputs, *column.side_effects)
    for output, dtype in column.dtypes().items():
        if output not in outputs:
            problems.append(f"column {name!r} declares a type for {output!r}, which is not an output of it")
        try:
            declared_type(dtype)
        except ConfigError as error:
            problems.append(f"column {name!r}: {error}")
    return problems


def _too_few_rows(column: Column, rows: int) -> str | None:
    """The problem if a generator from scratch has fewer rows than requested; its attribute `available` counts them."""
    available = getattr(column.generator, "available", None)
    if column.kind is not Kind.FROM_SCRATCH or not isinstance(available, int) or available >= rows:
        return None
    return f"column {column.name!r} has {available} rows and does not repeat them, but {rows} were requested"


def _check_process(column: Column, call: Call) -> list[str]:
    name = column.name
    problems: list[str] = []
    if call.is_async:
        problems.append(f"column {name!r} has process=True with an async function; processes run sync functions only")
    if call.wants_context:
        problems.append(f"column {name!r} has process=True, but its function takes a context; processes have none")
    if column.is_stateful:
        problems.append(f"column {name!r} is stateful and has process=True; a process would lose its state")
    try:
        pickle.dumps(call.function)
    except Exception as error:  # noqa: BLE001  pickling runs user code
        problems.append(f"column {name!r} has process=True, but its function cannot be pickled: {error}")
    return problems


def _step(column: Column, node: Node, graph: Graph, position: int, config: RunConfig, *, stage: str) -> Step:
    call = column.call
    assert call is not None  # `_check` reported a column without one
    lane: Hashable
    if column.lane_limit is not None:
        lane = (column.key, column.lane or column.name)
    elif column.key is not None:
        # Tasks that may use another key are not behind tasks that may not.
        lane = (column.key, *column.fallback_keys) if column.fallback_keys else column.key
    elif column.process:
        lane = PROCESS_LANE
    else:
        lane = ASYNC_LANE if call.is_async else THREAD_LANE
    return Step(
        name=column.name,
        stage=stage,
        kind=column.kind,
        node=node.index,
        position=position,
        lane=lane,
        needs_slot=not call.is_async,
        timeout=config.cell_timeout if column.timeout is None and column.kind is Kind.CELL else column.timeout,
        outputs=node.outputs,
        column=column,
        instance=column.generator if column.is_stateful else None,
        # Not `node.upstream`: that has what decides whether the row is accepted, too.
        skipped_with=tuple({graph.node(name).index: None for name in column.requires})
        if column.skip_policy == "skip"
        else (),
    )


def _processor_steps(processors: Sequence[Processor], stage: Stage, of: str) -> tuple[Step, ...]:
    return tuple(
        Step(name=processor.label, stage=of, kind=stage, node=-1, lane=THREAD_LANE, processor=processor)
        for processor in processors
        if processor.stage is stage
    )
