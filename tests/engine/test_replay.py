"""A run that ends anywhere and is resumed makes what it would have made, and asks for nothing twice."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import seedbed as sb
from seedbed import Column, RunConfig
from seedbed.errors import Permanent, Retryable
from seedbed.store.journal import has_journal

ROWS = 14


def numbers(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


class Counting:
    """From scratch and stateful: each group begins where the one before it ended."""

    is_stateful = True

    def __init__(self) -> None:
        self.total = 0

    def generate(self, rows: range) -> list[int]:
        made = []
        for row in rows:
            self.total += row + 1
            made.append(self.total)
        return made


class Remembering(Counting):
    """The same, and it reports its state."""

    def get_state(self) -> int:
        return self.total

    def set_state(self, state: int) -> None:
        self.total = state


class Chain:
    """A stateful cell: each value continues the one before it."""

    is_stateful = True

    def __init__(self) -> None:
        self.last = 0

    async def agenerate(self, n: int) -> int:
        await trio.sleep(0.01)
        self.last = (self.last * 31 + n) % 1_000_003
        return self.last


class KeptChain(Chain):
    def get_state(self) -> int:
        return self.last

    def set_state(self, state: int) -> None:
        self.last = state


class Server:
    """Answers every cell the same way in every run: at once or late, after so many failures, or never."""

    def __init__(self, seed: int, *, drops: bool = True) -> None:
        self.seed = seed
        self.drops = drops
        self.answers: Counter[tuple[str, int]] = Counter()
        self.failures: Counter[tuple[str, int]] = Counter()
        self.calls = 0
        self.stop_at: int | None = None
        self.build: sb.Build | None = None

    def column(self, name: str, *needs: str) -> Column:
        async def ask(context: sb.CellContext, **values: Any) -> str:
            n = values["n"]
            self.calls += 1
            if self.calls == self.stop_at:
                assert self.build is not None
                self.build.stop()
                self.build.stop()
            await trio.sleep(0.01 + (n * 7 + len(name) + self.seed) % 5 * 0.03)
            fate = (n * 13 + len(name) * 5 + self.seed) % 11
            if fate == 0 and self.drops:
                raise Permanent(f"no {name}")
            if fate < 3 and context.attempt <= fate:
                self.failures[name, n] += 1
                raise Retryable(f"not yet {name}")
            self.answers[name, n] += 1
            context.report_usage(model="m", input_tokens=1, output_tokens=1, cost=1.0)
            return name + ":" + ",".join(str(values[each]) for each in needs)

        return Column(name, ask, requires=("n", *needs), key="k")


def total(frame: Any) -> list[str]:
    """A whole column that sees which rows are left."""
    return [f"{n} of {frame.height}" for n in frame["n"]]


def shuffled(frame: Any) -> Any:
    """A processor that changes the rows."""
    return frame.filter(frame["n"] % 5 != 3).reverse()


def recipe(server: Server, *, stateful: bool, keeps: bool) -> list[Column]:
    """Columns of every kind, most of them asked of the server."""
    columns = [Column("n", numbers, kind="from_scratch")]
    if stateful:
        columns += [
            Column("count", Remembering() if keeps else Counting(), kind="from_scratch"),
            Column("chain", KeptChain() if keeps else Chain()),
        ]
    return [
        *columns,
        server.column("a"),
        server.column("bb", "a"),
        server.column("ccc", "a"),
        server.column("dddd", "bb", "ccc"),
        Column("total", total, kind="full_column", requires=("n", "dddd")),
        server.column("eeeee", "total"),
    ]


CONFIGS = st.builds(
    RunConfig,
    buffer_size=st.sampled_from([1, 4, 5, 20]),
    max_concurrent_row_groups=st.integers(1, 3),
    max_parallel_requests=st.sampled_from([2, 32]),
    shutdown_error_rate=st.just(1.0),
    salvage_error_threshold=st.just(1.0),
    engine=st.sampled_from(["concurrent", "concurrent", "sequential"]),
    grace=st.just(0.0),
    jitter_seed=st.just(1),
)


async def run(
    out: Path, columns: list[Column], config: RunConfig, processors: list[sb.Processor], server: Server, *, resume: bool
) -> sb.BuildReport:
    """Build, or continue with what is there."""
    async with sb.open_build(
        columns, rows=ROWS, out=out, config=config, processors=processors, resume=resume
    ) as server.build:
        return await server.build.wait()


@settings(max_examples=settings().max_examples // 5)
@given(
    config=CONFIGS,
    stops=st.lists(st.integers(1, 60), max_size=4),
    seed=st.integers(0, 30),
    stateful=st.sampled_from(["no", "tells its state", "is called again"]),
    processed=st.booleans(),
)
def test_a_build_that_is_stopped_anywhere_becomes_what_it_would_have_become(
    *,
    config: RunConfig,
    stops: list[int],
    seed: int,
    stateful: str,
    processed: bool,
) -> None:
    """The same rows, drops and spending; no answer that had arrived is sent again; nothing is left behind."""
    # Which rows are dropped before a stateful cell's turn is a matter of time; and one that is called again for what
    # is in the dataset does not see what a processor took out.
    drops = stateful == "no"
    processors = (
        [sb.Processor(stage="pre_batch", apply=shuffled)] if processed and stateful != "is called again" else []
    )

    def columns(server: Server) -> list[Column]:
        return recipe(server, stateful=stateful != "no", keeps=stateful == "tells its state")

    async def main(folder: Path) -> None:
        whole = Server(seed, drops=drops)
        report = await run(folder / "whole", columns(whole), config, processors, whole, resume=False)
        answers: Counter[tuple[str, int]] = Counter()
        for at in [*stops, None]:
            server = Server(seed, drops=drops)
            server.stop_at = at
            try:
                last = await run(folder / "parts", columns(server), config, processors, server, resume=True)
            except sb.Interrupted:
                last = None
            answers += server.answers
            if last is not None:
                break
        assert last is not None
        assert sb.Dataset.open(folder / "parts").to_polars().equals(sb.Dataset.open(folder / "whole").to_polars())
        assert [(drop.row, drop.column) for drop in last.dropped] == [
            (drop.row, drop.column) for drop in report.dropped
        ]
        assert max(answers.values(), default=1) == 1
        assert sum(spent.calls for spent in last.usage.values()) == answers.total()
        names = {path.name for path in (folder / "parts").rglob("*")}
        assert not any(name.endswith(".tmp") for name in names)
        if not last.dropped:
            assert not has_journal(folder / "parts")

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, Path(folder), clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("kind", [Counting, Remembering])
async def test_a_stateful_generator_resumes_from_its_saved_state(kind: type[Counting], tmp_path: Path) -> None:
    """Its rows are those of an uninterrupted run, with and without a state that it can tell."""

    class Stop:
        build: sb.Build

        async def agenerate(self, n: int) -> int:
            if n == 11:
                self.build.stop()
                self.build.stop()
                await trio.sleep_forever()
            return n

    def columns(last: Any) -> list[Column]:
        return [
            Column("n", numbers, kind="from_scratch"),
            Column("count", kind(), kind="from_scratch"),
            Column("last", last),
        ]

    config = RunConfig(buffer_size=5, max_concurrent_row_groups=1)
    stop = Stop()
    with pytest.raises(sb.Interrupted):
        async with sb.open_build(columns(stop), rows=20, out=tmp_path / "out", config=config) as stop.build:
            await stop.build.wait()

    async def go_on(n: int) -> int:
        return n

    dataset = await sb.build_async(
        columns(go_on), rows=20, out=tmp_path / "out", config=config, resume=True, accept_changes=True
    )
    assert dataset.to_polars()["count"].to_list() == Counting().generate(range(20))


@pytest.mark.parametrize("how", ["processor", "drops"])
async def test_a_generator_that_is_called_again_sees_what_it_saw(
    how: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Rows that a post-batch processor took out, or that were dropped after it, were part of what it was given."""
    processors = (
        [sb.Processor(stage="post_batch", apply=lambda frame: frame.filter(frame["n"] % 3 != 1))]
        if how == "processor"
        else []
    )

    class Last:
        stop_at: int | None = None
        build: sb.Build

        async def agenerate(self, n: int, chain: int) -> int:
            if n == self.stop_at:
                self.build.stop()
                self.build.stop()
                await trio.sleep_forever()
            if how == "drops" and n % 3 == 1:
                raise Permanent("no")
            return chain

    config = RunConfig(buffer_size=4, max_concurrent_row_groups=1, shutdown_error_rate=1)

    async def build(out: Path, stop_at: int | None) -> None:
        last = Last()
        last.stop_at = stop_at
        columns = [Column("n", numbers, kind="from_scratch"), Column("chain", Chain()), Column("last", last)]
        async with sb.open_build(
            columns, rows=ROWS, out=out, config=config, processors=processors, resume=True
        ) as last.build:
            await last.build.wait()

    await build(tmp_path / "whole", None)
    for stop_at in (5, 9):
        with pytest.raises(sb.Interrupted):
            await build(tmp_path / "parts", stop_at)
    await build(tmp_path / "parts", None)
    whole, parts = (sb.Dataset.open(tmp_path / name).to_polars() for name in ("whole", "parts"))
    assert parts.equals(whole)
    if how == "processor":
        assert not has_journal(tmp_path / "parts")


class Asking(KeptChain):
    """A stateful generator with a key: it is not called again just for its state."""

    calls = 0

    async def agenerate(self, n: int) -> int:
        type(self).calls += 1
        return await super().agenerate(n)


@pytest.mark.parametrize("durability", ["cell", "row_group"])
async def test_a_growing_dataset_starts_with_the_saved_states(
    durability: str, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state outlives the journal, which is gone when a build is complete."""
    monkeypatch.setattr(Asking, "calls", 0)

    def columns() -> list[Column]:
        return [Column("n", numbers, kind="from_scratch"), Column("chain", Asking(), key="k")]

    config = RunConfig(buffer_size=4, durability=durability)
    for rows in (6, 6, 9, 15):
        await sb.build_async(columns(), rows=rows, out=tmp_path / "grown", config=config, resume=True)
    assert Asking.calls == 15
    whole = await sb.build_async(columns(), rows=15, out=tmp_path / "whole", config=config)
    assert sb.Dataset.open(tmp_path / "grown").to_polars().equals(whole.to_polars())
    assert not has_journal(tmp_path / "grown")


async def test_a_resume_counts_the_attempts_of_earlier_runs(tmp_path: Path) -> None:
    """A cell that failed before the stop has two attempts left of three; a failure while stopping does not count."""
    attempts: list[int] = []
    stop_at = [2]

    class Failing:
        build: sb.Build

        async def agenerate(self, n: int, context: sb.CellContext) -> int:
            attempts.append(context.attempt)
            if len(attempts) == stop_at[0]:
                self.build.stop()
            raise Retryable("no")

    failing = Failing()
    columns = [Column("n", numbers, kind="from_scratch"), Column("v", failing)]
    config = RunConfig(backoff_base=0.02, shutdown_error_rate=1, salvage_error_threshold=1)
    with pytest.raises(sb.Interrupted):
        async with sb.open_build(columns, rows=1, out=tmp_path / "out", config=config) as failing.build:
            await failing.build.wait()
    assert attempts == [1, 2]
    stop_at[0] = 0
    with pytest.raises(sb.AllRowsDropped) as raised:
        await sb.build_async(columns, rows=1, out=tmp_path / "out", config=config, resume=True)
    assert attempts == [1, 2, 2, 3]
    assert raised.value.report is not None
    assert [drop.attempts for drop in raised.value.report.dropped] == [3]


async def test_row_group_durability_writes_no_journal_but_reads_one(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`durability="row_group"` keeps whole groups; cells that an earlier run has journaled are used all the same."""
    server = Server(1)
    server.stop_at = 9
    out = tmp_path / "out"
    config = RunConfig(buffer_size=4, grace=0.0, shutdown_error_rate=1, salvage_error_threshold=1)
    with pytest.raises(sb.Interrupted):
        await run(out, recipe(server, stateful=False, keeps=False), config, [], server, resume=False)
    assert has_journal(out)
    groups = RunConfig(
        buffer_size=4, grace=0.0, shutdown_error_rate=1, salvage_error_threshold=1, durability="row_group"
    )
    again = Server(1)
    await run(out, recipe(again, stateful=False, keeps=False), groups, [], again, resume=True)
    assert max((server.answers + again.answers).values()) == 1
    other = tmp_path / "other"
    server = Server(1)
    server.stop_at = 9
    with pytest.raises(sb.Interrupted):
        await run(other, recipe(server, stateful=False, keeps=False), groups, [], server, resume=False)
    assert not has_journal(other)
