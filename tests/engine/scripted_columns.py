"""Builds whose columns follow a script, and what the script alone says must come of them.

A `Scenario` is a value: columns, latencies, limits, and for each cell how its calls end. `expected` works out the
dataset and the drops from it without any engine. `Watch` hands out the columns for one run and looks on from inside.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
import trio
from hypothesis import strategies as st

import seedbed as sb
from seedbed.observe.events import ThrottleChanged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seedbed.engine.services import Services
    from seedbed.observe.events import Event

Identity = tuple[int, int]  # its number, and 0 or which of the rows added behind that it is
Who = Identity | int  # a cell's row, or the row group of a task for the whole group

# How one call may end; what is not in the script succeeds.
REFUSALS = ("refused", "refused for 2 s", "key paused for 3 s")
PASSING = ("retryable", "timeout")
FINAL = ("permanent", "crash")
TIMEOUT = 50.0  # of every column; latencies are far below

CELL, FULL, SEED = "cell", "full_column", "from_scratch"
KEYS = ("a", "b")


@attrs.frozen(kw_only=True)
class Spec:
    """One scripted column."""

    name: str
    kind: str
    requires: tuple[str, ...] = ()
    outputs: tuple[str, ...]
    side_effects: tuple[str, ...] = ()
    key: str | None = None
    second_key: str | None = None  # of a second model call in each attempt
    calls: bool = False  # it asks the context for its model calls; otherwise it is one call as a whole
    sync: bool = False
    # Columns of one number share a stateful generator; None: stateless.
    instance: int | None = None
    latencies: tuple[float, ...] = (1.0,)
    faults: Mapping[int, tuple[str, ...]] = attrs.field(factory=dict)  # by source row, or by row group


@attrs.frozen(kw_only=True)
class Scenario:
    """A whole build."""

    rows: int
    columns: tuple[Spec, ...]
    config: sb.RunConfig
    limits: Mapping[str, sb.KeyLimits]
    processor: str | None = None
    listening: bool = False  # somebody reads the events
    shared_throttles: bool = False

    @property
    def groups(self) -> list[range]:
        size = self.config.buffer_size
        return [range(start, min(start + size, self.rows)) for start in range(0, self.rows, size)]

    def ceiling(self, key: str) -> int:
        limits = self.limits.get(key)
        return self.config.max_parallel_requests if limits is None else limits.max_parallel_requests

    @property
    def outputs(self) -> list[str]:
        return [output for spec in self.columns for output in (*spec.outputs, *spec.side_effects)]

    @property
    def sorted_columns(self) -> list[Spec]:
        """Every column behind what it requires."""
        made: set[str] = set()
        left, order = list(self.columns), []
        while left:
            spec = next(spec for spec in left if made.issuperset(spec.requires))
            left.remove(spec)
            order.append(spec)
            made.update(spec.outputs, spec.side_effects)
        return order


# What a column makes: a function of its inputs and of nothing else.


def make_values(spec: Spec, inputs: Sequence[Any]) -> dict[str, Any]:
    """The outputs and side effects of one row."""
    values: dict[str, Any] = {}
    for position, output in enumerate(spec.outputs):
        number = zlib.crc32(repr((output, list(inputs))).encode())
        shape = (len(spec.name) + len(spec.requires) + position + ord(spec.name[-1])) % 3
        if shape == 0 and spec.kind != SEED:  # rows made from scratch must differ from each other
            values[output] = [number % 7, number % 5]
        else:
            values[output] = number if shape == 1 else f"{output}-{number:x}"
    for output in spec.side_effects:
        number = zlib.crc32(repr((output, list(inputs))).encode())
        if number % 3:  # otherwise it is missing
            values[output] = f"{output}-{number:x}"
    return values


def mark(row: Mapping[str, Any], seed: str) -> bool:
    """True if a processor does something about this row."""
    return zlib.crc32(repr(row[seed]).encode()) % 3 == 0


def process(how: str, rows: list[dict[str, Any]], seed: str) -> list[dict[str, Any]]:
    """What a pre-batch processor makes of its rows."""
    made: list[dict[str, Any]] = []
    for row in rows:
        marked = mark(row, seed)
        if how == "fail" and marked:
            raise ValueError("a marked row")
        if how == "change" and marked:
            changed = row[seed] + 1 if isinstance(row[seed], int) else row[seed] + "!"
            made.append({**row, seed: changed})
        elif how != "filter" or not marked:
            made.append(row)
        if how == "double" and marked:
            made.append(row)
    return made


def first_seed(scenario: Scenario) -> str:
    """The output that decides which rows a processor marks."""
    return next(spec.outputs[0] for spec in scenario.columns if spec.kind == SEED)


# What the script implies.


@attrs.frozen(kw_only=True)
class ExpectedGroup:
    """What must become of one row group."""

    source: range
    rows: list[dict[str, Any]]
    kept: list[Identity]
    # For each row that is not in the dataset: every (kind, column, attempts) that may be given as the reason.
    drops: dict[Identity, set[tuple[str, str, int]]]


def final_attempt(script: Sequence[str], rounds: int) -> int | None:
    """The number of the attempt that settles a row's fate, or None if the cell succeeds in the end."""
    attempt = 1
    for end in script:
        if end in FINAL:
            return attempt
        if end in PASSING:
            if attempt > rounds:
                return attempt
            attempt += 1
    return None


def expected(scenario: Scenario) -> list[ExpectedGroup]:
    """The dataset and the drops, from the script alone."""
    return [_expected_group(scenario, index, source) for index, source in enumerate(scenario.groups)]


def _expected_group(scenario: Scenario, index: int, source: range) -> ExpectedGroup:
    rounds = scenario.config.salvage_max_rounds
    order = scenario.sorted_columns

    def failures(spec: Spec, key: int) -> set[tuple[str, str, int]]:
        attempt = final_attempt(spec.faults.get(key, ()), rounds)
        return set() if attempt is None else {("failed", spec.name, attempt)}

    identities = [(row, 0) for row in source]
    lost = {reason for spec in order if spec.kind == SEED for reason in failures(spec, index)}
    if lost and scenario.processor is not None:  # then nothing else was begun
        return ExpectedGroup(source=source, rows=[], kept=[], drops=dict.fromkeys(identities, lost))
    rows: list[dict[str, Any]] = []
    for number in source:
        row = {name: None for spec in order if spec.kind == SEED for name in (*spec.outputs, *spec.side_effects)}
        for spec in order:
            if spec.kind == SEED:
                row.update(make_values(spec, [number]))
        rows.append(row)
    drops: dict[Identity, set[tuple[str, str, int]]] = {}
    if scenario.processor is not None:
        try:
            made = process(scenario.processor, rows, first_seed(scenario))
        except ValueError:
            skipped = {("skipped", "pre_batch", 1)}
            return ExpectedGroup(source=source, rows=[], kept=[], drops=dict.fromkeys(identities, skipped))
        last = len(source) - 1
        identities = [(source[min(at, last)], max(0, at - last)) for at in range(len(made))]
        rows = [dict(row) for row in made]
    for spec in order:
        for identity, row in zip(identities, rows, strict=True):
            reasons = failures(spec, identity[0] if spec.kind == CELL else index)
            if reasons:
                drops.setdefault(identity, set()).update(reasons)
            if spec.kind != SEED:
                row.update(dict.fromkeys((*spec.outputs, *spec.side_effects)))
                row.update(make_values(spec, cell_inputs(spec, row, identity)))
    kept = [identity for identity in identities if identity not in drops]
    finished = [
        {name: row[name] for name in scenario.outputs}
        for identity, row in zip(identities, rows, strict=True)
        if identity not in drops
    ]
    return ExpectedGroup(source=source, rows=finished, kept=kept, drops=drops)


def cell_inputs(spec: Spec, row: Mapping[str, Any], identity: Identity) -> list[Any]:
    """What a row's value is made of: the inputs, or which row it is where a cell has none."""
    if spec.kind == CELL and not spec.requires:
        return list(identity)
    return [row[name] for name in spec.requires]


# One run.


class Watch:
    """Makes the columns of one run and notes everything that must not happen.

    What a column function raises is that cell's outcome, so nothing is asserted in there: `problems` is read
    afterwards. Synchronous columns run in threads, so all counting is done under a lock.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.problems: list[str] = []
        self.limits: list[tuple[str, int]] = []  # of throttle keys, as they changed
        self.run: Services | None = None
        self.instances: dict[int, list[tuple[int, int, int]]] = {}
        self._lock = threading.Lock()
        self._plays: Counter[tuple[str, Who]] = Counter()  # calls begun, refused ones too
        self._failures: Counter[tuple[str, Who]] = Counter()  # calls that ended in what may pass
        self._done: set[tuple[str, Who]] = set()
        self._running: Counter[object] = Counter()
        self._generators = self._make_generators()
        self.columns = [self._column(spec) for spec in scenario.columns]
        order = sb.build_graph(self.columns).topological_order()
        self._place = {name: place for place, name in enumerate(order)}
        producers = {name: spec for spec in scenario.columns for name in (*spec.outputs, *spec.side_effects)}
        self._upstream = {spec.name: [producers[name] for name in spec.requires] for spec in scenario.columns}

    @property
    def still_running(self) -> dict[object, int]:
        with self._lock:
            return {what: count for what, count in self._running.items() if count}

    def read(self, event: Event) -> None:
        """Look at the limits at every event."""
        if isinstance(event, ThrottleChanged):
            self.limits.append((event.key, event.limit))
        self.check_limits()

    def check_limits(self) -> None:
        if self.run is None:
            return
        config = self.scenario.config
        now = self.run.scheduler.statistics()
        if now.submitted > config.max_submitted_tasks or now.active > config.max_active_tasks:
            self._problem(f"over the limits: {now}")
        if len(self.run.groups) > config.max_concurrent_row_groups:
            self._problem(f"{len(self.run.groups)} row groups at once")

    def processors(self) -> list[sb.Processor]:
        how = self.scenario.processor
        if how is None:
            return []
        seed = first_seed(self.scenario)

        def apply(frame: pl.DataFrame) -> pl.DataFrame:
            return pl.DataFrame(process(how, frame.to_dicts(), seed), schema=frame.schema)

        return [sb.Processor(stage="pre_batch", apply=apply, name="processor")]

    def _problem(self, text: str) -> None:
        self.problems.append(text)

    # The columns.

    def _make_generators(self) -> dict[str, Any]:
        shared: dict[int, Any] = {}
        generators: dict[str, Any] = {}
        for spec in self.scenario.columns:
            make = {CELL: self._cell_function, FULL: self._full_function, SEED: self._seed_function}[spec.kind]
            if spec.instance is None:
                generators[spec.name] = make({spec.name: spec}, spec.sync)
                continue
            if spec.instance not in shared:
                users = {each.name: each for each in self.scenario.columns if each.instance == spec.instance}
                function = make(users, spec.sync)
                shared[spec.instance] = _stateful(function, is_async=not spec.sync)
                self.instances[spec.instance] = []
            generators[spec.name] = shared[spec.instance]
        return generators

    def _column(self, spec: Spec) -> sb.Column:
        return sb.Column(
            spec.name,
            self._generators[spec.name],
            kind=spec.kind,
            requires=spec.requires,
            outputs=spec.outputs,
            side_effects=spec.side_effects,
            key=spec.key,
            timeout=None if spec.sync else TIMEOUT,
        )

    def _cell_function(self, users: Mapping[str, Spec], sync: bool) -> Any:
        def finish(spec: Spec, who: Identity, inputs: Mapping[str, Any]) -> Any:
            values = make_values(spec, cell_inputs(spec, inputs, who))
            self._finished(spec, who)
            return values if len(spec.outputs) + len(spec.side_effects) > 1 else values[spec.name]

        async def fill(context: sb.CellContext, **inputs: Any) -> Any:
            spec, who = users[context.column], identity(context)
            with self._inside(spec, who, context):
                await self._play(spec, who, context)
                return finish(spec, who, inputs)

        def fill_sync(context: sb.CellContext, **inputs: Any) -> Any:
            spec, who = users[context.column], identity(context)
            with self._inside(spec, who, context):
                self._play_sync(spec, who, context)
                return finish(spec, who, inputs)

        return fill_sync if sync else fill

    def _full_function(self, users: Mapping[str, Spec], sync: bool) -> Any:
        def finish(spec: Spec, group: int, frame: pl.DataFrame) -> Any:
            rows = frame.to_dicts() if frame.width else [{} for _ in range(frame.height)]
            return self._columns(spec, group, [cell_inputs(spec, row, (0, 0)) for row in rows])

        async def fill(frame: pl.DataFrame, context: sb.CellContext) -> Any:
            spec, group = users[context.column], context.row_group
            with self._inside(spec, group, context):
                await self._play(spec, group, context)
                return finish(spec, group, frame)

        def fill_sync(frame: pl.DataFrame, context: sb.CellContext) -> Any:
            spec, group = users[context.column], context.row_group
            with self._inside(spec, group, context):
                self._play_sync(spec, group, context)
                return finish(spec, group, frame)

        return fill_sync if sync else fill

    def _seed_function(self, users: Mapping[str, Spec], sync: bool) -> Any:
        async def fill(rows: range, context: sb.CellContext) -> Any:
            spec, group = users[context.column], context.row_group
            with self._inside(spec, group, context):
                await self._play(spec, group, context)
                return self._columns(spec, group, [[row] for row in rows])

        def fill_sync(rows: range, context: sb.CellContext) -> Any:
            spec, group = users[context.column], context.row_group
            with self._inside(spec, group, context):
                self._play_sync(spec, group, context)
                return self._columns(spec, group, [[row] for row in rows])

        return fill_sync if sync else fill

    def _columns(self, spec: Spec, group: int, inputs: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
        made = [make_values(spec, each) for each in inputs]
        self._finished(spec, group)
        return {name: [row.get(name) for row in made] for name in (*spec.outputs, *spec.side_effects)}

    def _finished(self, spec: Spec, who: Who) -> None:
        with self._lock:
            self._done.add((spec.name, who))

    # How a call goes.

    def _next(self, spec: Spec, who: Who) -> tuple[float, str]:
        with self._lock:
            play = self._plays[spec.name, who]
            self._plays[spec.name, who] += 1
        row = who if isinstance(who, int) else who[0]
        script = spec.faults.get(row, ())
        latency = spec.latencies[(row + play) % len(spec.latencies)]
        return latency, script[play] if play < len(script) else "ok"

    def _end(self, spec: Spec, who: Who, end: str) -> None:
        if end in PASSING:
            with self._lock:
                self._failures[spec.name, who] += 1
        if end == "refused":
            raise sb.RateLimited("scripted")
        if end == "refused for 2 s":
            raise sb.RateLimited("scripted", retry_after=2.0)
        if end == "key paused for 3 s":
            raise sb.RateLimited("scripted", reset=3.0)
        if end == "retryable":
            raise sb.Retryable("scripted")
        if end == "permanent":
            raise sb.Permanent("scripted")
        if end == "crash":
            raise ZeroDivisionError("scripted")

    async def _send(self, spec: Spec, who: Who, context: sb.CellContext, key: str | None) -> None:
        """One model call, or the work of a column that makes none."""
        latency, end = self._next(spec, who)
        with self._on_the_wire(key, context):
            if latency:
                await trio.sleep(latency)
            if end == "timeout":
                with self._lock:
                    self._failures[spec.name, who] += 1
                await trio.sleep_forever()
            self._end(spec, who, end)

    async def _answer(self, context: sb.CellContext, key: str | None) -> None:
        with self._on_the_wire(key, context):
            await trio.sleep(0.5)

    async def _play(self, spec: Spec, who: Who, context: sb.CellContext) -> None:
        if not spec.calls:
            await self._send(spec, who, context, spec.key)
        elif spec.second_key is None:
            await context.call(lambda: self._send(spec, who, context, spec.key))
        else:
            # The first call is answered; whatever the script says happens to the second.
            await context.call(lambda: self._answer(context, spec.key))
            await context.call(lambda: self._send(spec, who, context, spec.second_key), key=spec.second_key)

    def _play_sync(self, spec: Spec, who: Who, context: sb.CellContext) -> None:
        latency, end = self._next(spec, who)
        with self._on_the_wire(spec.key, context):
            if latency:
                context.run(trio.sleep, latency)
            self._end(spec, who, end)

    # What is looked at.

    @contextmanager
    def _inside(self, spec: Spec, who: Who, context: sb.CellContext) -> Iterator[None]:
        cell, instance = (spec.name, who), ("instance", spec.instance)
        with self._lock:
            self._begin(spec, who, context)
            self._running[cell] += 1
            # A thread whose task was abandoned runs on in its slot, but it is no task of its row group any more.
            self._running["threads"] += spec.sync
            self._running["tasks"] += not spec.sync
            self._running["group", context.row_group] += not spec.sync
            if spec.instance is not None:
                self._running[instance] += 1
                row = context._task.row  # type: ignore[attr-defined]
                self.instances[spec.instance].append((context.row_group, self._place[spec.name], row))
            self._check(spec, who)
        try:
            yield
        finally:
            with self._lock:
                self._running[cell] -= 1
                self._running["threads"] -= spec.sync
                self._running["tasks"] -= not spec.sync
                self._running["group", context.row_group] -= not spec.sync
                if spec.instance is not None:
                    self._running[instance] -= 1

    def _begin(self, spec: Spec, who: Who, context: sb.CellContext) -> None:
        """A call starts: its inputs must be there, and it must be the attempt that it says it is."""
        self.run = context._services  # type: ignore[attr-defined]
        group = context._group  # type: ignore[attr-defined]
        if (spec.name, who) in self._done:
            self._problem(f"{spec.name} of {who} was done and runs again")
        attempt = self._failures[spec.name, who] + 1
        if context.attempt != attempt or attempt > self.scenario.config.salvage_max_rounds + 1:
            self._problem(f"{spec.name} of {who}: attempt {context.attempt} follows {attempt - 1} failures")
        for up in self._upstream[spec.name]:
            if up.kind != CELL:
                needed: list[Who] = [context.row_group]
            elif spec.kind == CELL:
                needed = [who]
            else:
                needed = [group.rows.identity(row) for row in group.live_rows()]
            for each in needed:
                if (up.name, each) not in self._done:
                    self._problem(f"{spec.name} of {who} runs before {up.name} of {each}")

    def _check(self, spec: Spec, who: Who) -> None:
        config, running = self.scenario.config, self._running
        if running[spec.name, who] > 1:
            self._problem(f"{spec.name} of {who} runs twice at once")
        if running["tasks"] > config.max_submitted_tasks:
            self._problem(f"{running['tasks']} tasks at once")
        if running["threads"] > config.max_active_tasks:
            self._problem(f"{running['threads']} threads at once")
        if spec.instance is not None and running["instance", spec.instance] > 1:
            self._problem(f"the stateful generator of {spec.name} is in use twice")
        groups = [what for what, count in running.items() if count and isinstance(what, tuple) and what[0] == "group"]
        if len(groups) > config.max_concurrent_row_groups:
            self._problem(f"row groups {groups} at once")

    @contextmanager
    def _on_the_wire(self, key: str | None, context: sb.CellContext) -> Iterator[None]:
        if key is None:
            yield
            return
        with self._lock:
            self._running["key", key] += 1
            count, ceiling = self._running["key", key], self.scenario.ceiling(key)
            throttle = context._services.scheduler._throttle(key)  # type: ignore[attr-defined]
            if count > ceiling or count > throttle.in_flight:
                self._problem(f"{count} calls of key {key} with {throttle.statistics()}")
        try:
            yield
        finally:
            with self._lock:
                self._running["key", key] -= 1


def identity(context: sb.CellContext) -> Identity:
    """Which row it is; the public context does not tell the copies apart that a processor made."""
    row = context._task.row  # type: ignore[attr-defined]
    found: Identity = context._group.rows.identity(row)  # type: ignore[attr-defined]
    return found


def _stateful(function: Any, *, is_async: bool) -> Any:
    class Generator:
        is_stateful = True

    generator = Generator()
    setattr(generator, "agenerate" if is_async else "generate", function)
    return generator


# Strategies.


def _scripts(*, sync: bool) -> st.SearchStrategy[tuple[str, ...]]:
    ends = [*REFUSALS, *(PASSING[:1] if sync else PASSING), *FINAL]
    # Failures that may pass are the interesting ones: they need several in a row to matter.
    return st.lists(st.sampled_from([*ends, "retryable", "retryable"]), min_size=1, max_size=4).map(tuple)


@st.composite
def _specs(draw: st.DrawFn, index: int, made: Sequence[str], rows: int, groups: int) -> Spec:
    name = "uvwxyz"[index]
    kind = draw(st.sampled_from([SEED, CELL, CELL, CELL, FULL] if index else [SEED, SEED, CELL, FULL]))
    several = draw(st.integers(0, 7))
    outputs = (name, f"{name}2") if several == 1 else (f"{name}1", f"{name}2") if several == 2 else (name,)
    side_effects = (f"{name}__trace",) if several in (3, 4) else ()
    requires: tuple[str, ...] = ()
    if kind != SEED and made:
        fewest = draw(st.sampled_from([0, 1, 1, 1]))
        requires = tuple(draw(st.lists(st.sampled_from(made), unique=True, min_size=fewest, max_size=3)))
    key = draw(st.sampled_from([None, *KEYS]))
    sync = draw(st.sampled_from([False, False, False, False, True]))
    calls = key is not None and not sync and draw(st.booleans())
    second_key = draw(st.sampled_from([None, *KEYS])) if calls else None
    instance = draw(st.sampled_from([None, None, index]))
    return Spec(
        name=name,
        kind=kind,
        requires=requires,
        outputs=outputs,
        side_effects=side_effects,
        key=key,
        second_key=second_key,
        calls=calls,
        sync=sync,
        instance=instance,
        latencies=tuple(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0, 7.0]), min_size=1, max_size=3))),
        faults=draw(
            st.dictionaries(
                st.integers(0, max(0, (rows if kind == CELL else groups) - 1)), _scripts(sync=sync), max_size=3
            )
        ),
    )


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Random graphs, row groups, latencies, failures and limits."""
    rows = draw(st.one_of(st.integers(0, 3), st.integers(4, 10)))
    buffer_size = draw(st.sampled_from([1, 2, 3, 4, 5]))
    groups = -(-rows // buffer_size)
    specs: list[Spec] = []
    made: list[str] = []
    for index in range(draw(st.sampled_from([1, 2, 3, 4, 5]))):
        spec = draw(_specs(index, made, rows, groups))
        # Now and then two cell columns share one stateful generator.
        partner = next((each for each in specs if each.instance is not None and each.kind == spec.kind == CELL), None)
        if spec.instance is not None and partner is not None and partner.sync == spec.sync:
            spec = attrs.evolve(spec, instance=partner.instance)
        specs.append(spec)
        made += [*spec.outputs, *spec.side_effects]
    processor = None
    if any(spec.kind == SEED for spec in specs):
        processor = draw(st.sampled_from([None, None, None, "filter", "double", "change", "fail"]))
    limits = {
        key: sb.KeyLimits(
            max_parallel_requests=draw(st.integers(1, 4)),
            requests_per_minute=draw(st.sampled_from([None, None, 30.0])),
        )
        for key in KEYS
        if any(spec.key == key for spec in specs)
    }
    config = sb.RunConfig(
        buffer_size=buffer_size,
        max_concurrent_row_groups=draw(st.integers(1, 3)),
        max_submitted_tasks=draw(st.sampled_from([1, 2, 3, 1024])),
        max_active_tasks=draw(st.sampled_from([1, 1, 2, 3])),
        salvage_max_rounds=draw(st.integers(0, 2)),
        # Errors alone never end these runs, nor do rate limits.
        shutdown_error_rate=1.0,
        salvage_error_threshold=1.0,
        throttle_patience=1e6,
        # With no grace at all a thread that was abandoned is stuck before it had a chance to end.
        grace=draw(st.sampled_from([2.0, 30.0] if any(spec.sync for spec in specs) else [0.0, 2.0, 30.0])),
        jitter_seed=draw(st.integers(0, 3)),
        trace=draw(st.booleans()),
    )
    return Scenario(
        rows=rows,
        columns=tuple(draw(st.permutations(specs))),
        config=config,
        limits=limits,
        processor=processor,
        listening=draw(st.booleans()),
        shared_throttles=draw(st.booleans()),
    )
