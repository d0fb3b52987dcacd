"""The checked plan of a build: all problems of its columns, processors and limits are found before anything runs."""

from __future__ import annotations

import functools
import pickle
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import pyarrow as pa

from ..checks import is_number, is_whole
from ..columns.base import Column
from ..errors import ConfigError, DatasetGenerationError, OutputDirectoryError
from ..graph import Graph, Kind, Stage, build_graph, check_columns, nearest
from ..recipe.file import recipe_text
from ..recipe.recipe import code_fields
from ..runtime.threads import check_main_guard
from ..runtime.throttle import KeyLimits
from ..store.manifest import Header, Layout, Manifest, is_dataset
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
from .stateful import stateful_nodes
from .tasks import ASYNC_LANE, PROCESS_LANE, THREAD_LANE, Processor, Step

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from pathlib import Path

    from ..columns.base import Call
    from ..graph import Node
    from ..recipe.acceptance import Acceptance
    from ..store.manifest import GroupRecord, Redo
    from .redo import RedoRequest
    from .source import Source


@attrs.frozen(kw_only=True, eq=False)
class BuildPlan:
    """A checked build. Row groups are counted, not listed."""

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
    layout: Layout
    done: Manifest | None = None  # of earlier runs, if this one resumes them
    retry_dropped: bool = False  # rows that earlier runs dropped are retried
    overwrite: bool = False  # a dataset in the directory is removed first
    # The revision that is generated, if one is; it begins with this run where `done` has none.
    redo: Redo | None = None

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

    def is_redone(self, column: str, record: GroupRecord) -> bool:
        """True if a row that an earlier recipe dropped because of this column gets another chance in this revision."""
        redo = self.redo
        return redo is not None and redo.where is None and self.header.added.get(column, 0) > record.edition

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
        return {identity: "+".join(steps[node].name for node in nodes) for identity, nodes in self.instances.items()}


def _is_ours(function: object) -> bool:
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.partition(".")[0] == __name__.partition(".")[0]


def plan_build(
    source: Source,
    *,
    rows: int,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    retry_dropped: bool = False,
    accept_changes: bool = False,
    redo: RedoRequest | None = None,
) -> BuildPlan:
    """Check everything and lay out the run, or raise one error that lists all problems.

    `resume` continues an existing directory, which may grow; `retry_dropped` retries its dropped rows, and
    `accept_changes` continues although code or data changed. `overwrite` removes the dataset that is there. With
    `redo` part of the dataset is regenerated as a revision.
    """
    config = source.config
    if not isinstance(config, RunConfig):
        raise ConfigError(f"config must be a RunConfig, not {config!r}; see RunConfig.from_mapping")
    for name, value in (("retry_dropped", retry_dropped), ("accept_changes", accept_changes)):
        if value and not (resume and out is not None):
            raise ConfigError(f"{name} applies to an existing dataset: pass out and resume=True with it")
    if overwrite and (resume or out is None):
        raise ConfigError("overwrite replaces the dataset in out: pass out with it, and not resume")
    if redo is not None and not (resume and out is not None and is_dataset(out)):
        raise ConfigError("redo applies to a finished dataset: pass out and resume=True with it")
    columns, processors, limits = source.columns, source.processors, source.limits
    problems = _check(columns, processors, limits) or [
        *_check_provenance(columns, config),
        *filter(None, (_too_few_rows(each, rows) for each in columns)),
    ]
    accepts = source.acceptance
    if not problems and accepts is not None and rows > accepts.rules.candidates(rows):
        limit = accepts.rules.max_candidates
        problems = [f"max_candidates={limit} is less than the {rows:,} rows that were requested"]
    if problems:
        raise DatasetGenerationError(problems)
    check_main_guard(starts_processes=any(column.process for column in columns))
    predicate = None if accepts is None else accepts.predicate
    graph = build_graph(columns, accept=() if predicate is None else predicate.requires)
    declared = {name: declared_type(dtype) for column in columns for name, dtype in column.dtypes().items()}
    done = read_manifest(out).working if out is not None and resume and is_dataset(out) else None
    if out is not None and done is None:
        if overwrite or is_half_removed(out):
            check_replaceable(out)
        elif not is_dataset(out):
            check_output(out)
    own = header = _new_header(source, graph, declared, rows=rows, stored=out is not None)
    if out is not None and done is None and not overwrite and is_dataset(out):
        raise OutputDirectoryError(describe_existing(out, read_manifest(out), own))
    positions = {node: position for position, node in enumerate(graph.order)}
    pairs = zip(columns, graph.nodes, strict=True)
    steps = tuple(_step(column, node, graph, positions[node.index], config) for column, node in pairs)
    revision = None if done is None else done.redo
    if done is not None and out is not None and redo is not None and revision is None:
        header, revision = begin_revision(
            out, done, header, redo, graph=graph, steps=steps, accept_changes=accept_changes
        )
    elif done is not None and out is not None:
        assert done.header is not None  # a manifest without one cannot be read
        if redo is not None and revision is not None:
            check_continued(out, revision, redo)
        progress = functools.partial(measure_progress, out, done)
        header = check_resumable(done.header, header, graph, progress=progress, accept_changes=accept_changes)
        if done.finished is None:  # a finished dataset is left as it is if only connection details differ
            header = msgspec.structs.replace(header, recipe=own.recipe)
        _check_started_with_provenance(config, header, out)
    config = attrs.evolve(config, buffer_size=header.buffer_size)
    return BuildPlan(
        graph=graph,
        steps=steps,
        rows=rows,
        config=config,
        limits={**source.inner_limits, **limits},
        pre_batch=_processor_steps(processors, Stage.PRE_BATCH),
        post_batch=_processor_steps(processors, Stage.POST_BATCH),
        after_generation=tuple(each for each in processors if each.stage is Stage.AFTER_GENERATION),
        declared=declared,
        out=out,
        header=header,
        source=source,
        layout=header.layout,
        done=done,
        retry_dropped=retry_dropped,
        overwrite=overwrite,
        redo=revision,
    )


def _new_header(
    source: Source, graph: Graph, declared: Mapping[str, pa.DataType], *, rows: int, stored: bool
) -> Header:
    """The header of a new dataset; only what is `stored` has a fingerprint, because files are read for it."""
    retyped = declared.keys() if source.retyped is None else source.retyped
    written = [(name, arrow) for name, arrow in declared.items() if name not in retyped]
    candidates = None if source.acceptance is None else _candidates(source, rows)
    fingerprint: Mapping[str, Any] = {}
    if stored:
        make = source.fingerprint or functools.partial(columns_fingerprint, source.columns, source.processors)
        fingerprint = make()
    return Header(
        rows=rows,
        buffer_size=source.config.buffer_size if candidates is None else _group_size(rows, source.config.buffer_size),
        candidates=candidates,
        columns=graph.outputs,
        declared=pa.schema(written),
        fingerprint=dict(fingerprint),
        recipe=None if source.recipe is None or not stored else recipe_text(source.recipe),
        provenance=source.config.provenance and stored,
        publishes_at_end=any(each.stage is Stage.AFTER_GENERATION for each in source.processors),
        created=time.time(),
        version=version("seedbed"),
    )


def _candidates(source: Source, rows: int) -> int:
    """How many candidates there may be: no more than a generator from scratch has rows."""
    assert source.acceptance is not None
    available = [
        getattr(each.generator, "available", None) for each in source.columns if each.kind is Kind.FROM_SCRATCH
    ]
    return min([source.acceptance.rules.candidates(rows), *(each for each in available if isinstance(each, int))])


# The number of row groups that the requested rows make up, so that the last one is a small part of a run.
_ACCEPTED_GROUPS = 20
_SMALLEST_GROUP = 16


def _group_size(rows: int, buffer_size: int) -> int:
    """The rows of a row group where not every row counts: it is fixed when the dataset begins."""
    return min(buffer_size, max(_SMALLEST_GROUP, rows // _ACCEPTED_GROUPS))


def _check(columns: Sequence[Column], processors: Sequence[Processor], limits: Mapping[str, KeyLimits]) -> list[str]:
    unknown = [f"{each!r} is not a Column" for each in columns if not isinstance(each, Column)]
    unknown += [f"{each!r} is not a Processor" for each in processors if not isinstance(each, Processor)]
    unknown += [
        f"the limits of key {key!r} are not KeyLimits"
        for key, each in limits.items()
        if not isinstance(each, KeyLimits)
    ]
    if unknown:
        return unknown
    if not columns:
        return ["a build needs at least one column"]
    problems = [column.problem for column in columns if column.problem]
    problems += check_columns(columns)
    for column in columns:
        problems += _check_column(column)
    keys = {key for column in columns for key in (column.key, *column.other_keys) if key is not None}
    problems += [
        f"limits are given for key {key!r}, which no column uses{nearest(key, sorted(keys))}"
        for key in limits
        if key not in keys
    ]
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
        if is_provenance(name)
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


def _step(column: Column, node: Node, graph: Graph, position: int, config: RunConfig) -> Step:
    call = column.call
    assert call is not None  # `_check` reported a column without one
    lane: Hashable
    if column.lane_limit is not None:
        lane = (column.key, column.lane or column.name)
    elif column.key is not None:
        lane = column.key
    elif column.process:
        lane = PROCESS_LANE
    else:
        lane = ASYNC_LANE if call.is_async else THREAD_LANE
    return Step(
        name=column.name,
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


def _processor_steps(processors: Sequence[Processor], stage: Stage) -> tuple[Step, ...]:
    return tuple(
        Step(name=processor.label, kind=stage, node=-1, lane=THREAD_LANE, processor=processor)
        for processor in processors
        if processor.stage is stage
    )
