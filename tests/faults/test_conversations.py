"""Conversations and tool loops that are killed in the middle: by signals, and at every fault point in virtual time."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from harness import Made, open_trial
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from shapes import BOOKINGS, ColumnShape, Shape
from snapshots import hooked
from trio.testing import MockClock

import seedbed as sb
from seedbed.models import ChatAnswer, ChatRequest, Scripted, ToolCall

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Builds, Running, Trial

TALK = Shape(rows=32, buffer_size=4, columns=(ColumnShape(name="a", type="talk"), ColumnShape(name="b", type="model")))
BOOKING = attrs.evolve(TALK, columns=(ColumnShape(name="a", type="booking"), TALK.columns[1]))
SHAPES = pytest.mark.parametrize("shape", [TALK, BOOKING], ids=["idempotent", "not idempotent"])
FORKS = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform != "linux", reason="needs fork and /proc")
INTERVAL = 0.05  # the default of `commit_interval`
UNKNOWN = "was started, but its result is not known, and it is not idempotent: it is not run again"


def bookings(directory: Path) -> Counter[str]:
    """How often a tool ran for each turn of each cell, in all runs."""
    log = directory / BOOKINGS
    return Counter(log.read_text(encoding="utf-8").splitlines() if log.exists() else ())


def check(trial: Trial, expected: Made, directory: Path) -> None:
    """The dataset is the undisturbed one; with a tool that must not run twice, but for rows where it may have run."""
    if trial.shape is TALK:
        trial.check_dataset(expected)
        return
    dataset = sb.Dataset.open(trial.out)
    assert dataset.complete
    assert all(UNKNOWN in drop.reason for drop in dataset.drops)
    lost = {drop.row for drop in dataset.drops}
    rows = [row for row in expected.frame.to_dicts() if row["n"] not in lost]
    assert dataset.to_polars().to_dicts() == rows
    assert set(bookings(directory).values()) == {1}


def uninterrupted(builds: Builds, directory: Path, shape: Shape) -> Made:
    """The dataset of a run that nothing happens to."""
    with open_trial(builds, directory, shape, latency=0) as trial:
        trial.run().through  # noqa: B018  it asserts
        made = Made.read(trial.out)
    messages = made.frame["a"].to_list()
    assert [message["role"] for message in messages[0]] == ["user", "assistant", "tool", "assistant"] * 2
    assert len(bookings(directory)) == 2 * shape.rows
    return made


@FORKS
@SHAPES
@pytest.mark.parametrize("point", ["tool begins", "tool has run", "journal committed"])
def test_killed_at_a_point_within_a_tool_loop(shape: Shape, point: str, builds: Builds, tmp_path: Path) -> None:
    """Before a tool does something, after it did and before its result is known, and when an intent is durable."""
    expected = uninterrupted(builds, tmp_path / "whole", shape)
    with open_trial(builds, tmp_path / "killed", shape, commit_interval=0.005) as trial:
        assert trial.run(kill={"point": point, "nth": 5}).killed
        trial.run(kill={"point": point, "nth": 2})
        trial.run().through  # noqa: B018  it asserts
        check(trial, expected, tmp_path / "killed")


@FORKS
@SHAPES
@settings(
    max_examples=settings.default.max_examples // 60,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(delays=st.lists(st.floats(0.02, 0.2), min_size=1, max_size=3))
def test_killed_at_any_instant(
    shape: Shape, delays: list[float], builds: Builds, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Again and again, somewhere in the middle."""
    directory = tmp_path_factory.mktemp("kills")
    expected = uninterrupted(builds, directory / "whole", shape)
    with open_trial(builds, directory / "killed", shape, commit_interval=0.005, latency=0.02) as trial:
        for delay in delays:

            def kill(running: Running, delay: float = delay) -> None:
                trial.wait_for(lambda: bool(trial.server.requests))
                time.sleep(delay)  # the instant is drawn
                running.kill()

            trial.run(disturb=kill)
        trial.run().through  # noqa: B018  it asserts
        check(trial, expected, directory / "killed")


@attrs.define(eq=False)
class World:
    """What is outside of a build in virtual time: models and a tool, which note when they answered and ran."""

    idempotent: bool
    answered: list[tuple[str, float]] = attrs.Factory(list)
    began: list[tuple[str, float]] = attrs.Factory(list)
    ran: list[tuple[str, float]] = attrs.Factory(list)

    def answer(self, request: ChatRequest) -> ChatAnswer:
        last = request.messages[-1]
        self.answered.append((f"{last.role} {last.content}", trio.current_time()))
        if last.role != "tool" and last.content.startswith("help"):
            call = ToolCall(id="1", name="book", arguments=f'{{"turn": "{last.content}"}}')
            return ChatAnswer(text="", tool_calls=(call,))
        return ChatAnswer(text=f"to {last.content}")

    async def book(self, turn: str) -> str:
        """Books something, which takes a while."""
        self.began.append((turn, trio.current_time()))
        await trio.sleep(0.07)
        self.ran.append((turn, trio.current_time()))
        return f"booked for {turn}"

    def recipe(self) -> sb.Recipe:
        """Conversations with a tool, and a column that reads them."""
        tool = sb.FunctionTool(function=self.book, idempotent=self.idempotent)
        speakers = [
            sb.Speaker(name="asker", model="m", prompt="ask {{ n }} {{ turns | length }}"),
            sb.Speaker(name="helper", model="m", prompt="help {{ n }} {{ turns | length }}", tools=[tool]),
        ]
        numbers = sb.Custom("n", number_rows)
        chat = sb.Conversation("chat", speakers=speakers, max_turns=6)
        last = sb.Expression("last", expr="chat[-1].content")
        models = {"m": Scripted(answers=self.answer, latency={"uniform": [0.02, 0.2]}, max_parallel_requests=3)}
        return sb.Recipe(columns=[numbers, chat, last], models=models)


def number_rows(rows: range) -> list[int]:
    """The numbers of the rows."""
    return list(rows)


@attrs.frozen
class Killed:
    """A directory as a kill would have left it, and what had happened until then."""

    directory: Path
    time: float
    answered: dict[str, float]
    began: set[str]
    ran: dict[str, float]


def grow(world: World, out: Path, into: Path | None = None) -> tuple[sb.Dataset, list[Killed]]:
    """Begin or continue in virtual time; with `into` the directory is copied at every fault point."""
    clock, killed = MockClock(autojump_threshold=0), list[Killed]()

    def copy(_: str) -> None:
        if into is None or not out.exists():
            return
        shutil.copytree(out, target := into / f"{len(killed)}")
        began = {turn for turn, _ in world.began}
        killed.append(Killed(target, clock.current_time(), dict(world.answered), began, dict(world.ran)))

    async def main() -> sb.Dataset:
        config = sb.RunConfig(buffer_size=3, jitter_seed=1)
        async with sb.open_build(world.recipe(), rows=6, out=out, config=config, resume=True) as build:
            await build.wait()
            return build.dataset

    with hooked(copy):
        return trio.run(main, clock=clock), killed


@pytest.mark.parametrize("idempotent", [True, False])
def test_killed_at_every_fault_point(idempotent: bool, tmp_path: Path) -> None:
    """No turn and no result that is older than a commit interval is lost, and no tool runs twice that must not."""
    whole, _ = grow(World(idempotent), tmp_path / "whole")
    expected = {row["n"]: row for row in whole.to_polars().to_dicts()}
    _, snapshots = grow(World(idempotent), tmp_path / "run", tmp_path / "killed")
    assert len(snapshots) > 40
    dropped = 0
    for snapshot in snapshots[::5]:
        after = World(idempotent)
        dataset, _ = grow(after, snapshot.directory)
        assert dataset.complete
        written = dataset.to_polars().to_dicts() if dataset.rows else []
        assert all(row == expected[row["n"]] for row in written)
        assert len(written) + len(dataset.drops) == 6
        assert all(UNKNOWN in drop.reason for drop in dataset.drops)
        assert not (idempotent and dataset.drops)
        dropped += len(dataset.drops)
        durable = {prompt for prompt, when in snapshot.answered.items() if when < snapshot.time - INTERVAL - 1e-6}
        assert not durable & dict(after.answered).keys()
        again = (
            snapshot.began
            if not idempotent
            else {turn for turn, when in snapshot.ran.items() if when < snapshot.time - INTERVAL - 1e-6}
        )
        assert not again & {turn for turn, _ in after.began}
    assert idempotent or dropped
