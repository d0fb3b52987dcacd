"""Cells that make several calls: an answer that has arrived is not sent again, whatever happens to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

import seedbed as sb
from seedbed import Column, RunConfig
from seedbed.errors import Permanent, Retryable
from seedbed.models.base import ChatAnswer, Tokens
from seedbed.store.entries import Answer, Key
from seedbed.testing import Reply, serve_openai

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

    from seedbed.testing import ServerRequest

ENGINES = pytest.mark.parametrize("engine", ["concurrent", "sequential"])


def numbers(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


class Talk:
    """A cell of three calls, each said to be what it is; what becomes of a call is up to the test."""

    def __init__(self, fate: Callable[[str, int], Any] = lambda _call, _attempt: None) -> None:
        self.sent: list[str] = []
        self.answered: list[str] = []
        self.fate = fate
        self.between: Callable[[int], Any] = lambda _attempt: None

    async def agenerate(self, n: int, context: sb.CellContext) -> str:
        parts = []
        for turn in range(3):
            call = f"{n}.{turn}"

            async def send(call: str = call) -> ChatAnswer:
                self.sent.append(call)
                await trio.sleep(0.1)
                fate = self.fate(call, context.attempt)
                if isinstance(fate, Exception):
                    raise fate
                if fate is not None:
                    await fate()
                context.report_usage(model="m", input_tokens=1, output_tokens=1, cost=1.0)
                self.answered.append(call)
                return ChatAnswer(text=f"answer {call}", tokens=Tokens(input=1, output=1))

            answer = await context.call(send, idempotency_key=call.encode)
            parts.append(answer.text)
        self.between(context.attempt)
        return ", ".join(parts)

    @property
    def columns(self) -> list[Column]:
        return [Column("n", numbers, kind="from_scratch"), Column("talk", self, key="k")]


def said(rows: int) -> list[str]:
    """What the cells hold in the end."""
    return [", ".join(f"answer {n}.{turn}" for turn in range(3)) for n in range(rows)]


@ENGINES
async def test_a_later_call_that_fails_costs_only_itself(
    engine: str, autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The next attempt has the answers of the one before and sends what is missing."""

    def fate(call: str, attempt: int) -> Exception | None:
        return Retryable("overloaded") if call == "1.2" and attempt == 1 else None

    talk = Talk(fate)
    dataset = await sb.build_async(
        talk.columns, rows=3, out=tmp_path / "out", config=RunConfig(engine=engine, shutdown_error_rate=1)
    )
    assert dataset.to_polars()["talk"].to_list() == said(3)
    assert sorted(talk.sent) == sorted([f"{n}.{turn}" for n in range(3) for turn in range(3)] + ["1.2"])
    assert dataset.report is not None
    assert dataset.report.usage["talk"].calls == 9


async def test_a_cell_that_does_not_like_its_answers_gets_others(autojump_clock: MockClock) -> None:
    """What the generator's own code raises judges the answers: the next attempt asks anew."""
    talk = Talk()

    def between(attempt: int) -> None:
        if attempt == 1:
            raise Retryable("no good")

    talk.between = between
    async with sb.open_build(talk.columns, rows=1) as build:
        [group] = [group async for group in build]
    assert group.to_polars()["talk"].to_list() == said(1)
    assert talk.sent == ["0.0", "0.1", "0.2"] * 2


async def test_a_timeout_does_not_cost_what_was_answered_before_it(autojump_clock: MockClock) -> None:
    """A cell that ran out of time in its last call has only that one left."""

    def fate(call: str, attempt: int) -> Any:
        return trio.sleep_forever if call == "0.2" and attempt == 1 else None

    talk = Talk(fate)
    columns = [talk.columns[0], Column("talk", talk, key="k", timeout=1.0)]
    async with sb.open_build(columns, rows=1) as build:
        [group] = [group async for group in build]
    assert group.to_polars()["talk"].to_list() == said(1)
    assert talk.sent == ["0.0", "0.1", "0.2", "0.2"]


@ENGINES
@pytest.mark.parametrize("stops", [1, 2])
async def test_a_run_that_ends_between_two_calls_of_a_cell_loses_neither(
    engine: str, stops: int, autojump_clock: MockClock, tmp_path: Path
) -> None:
    """After a stop or a kill, a resume sends only the calls that were not answered; usage is counted across runs."""
    config = RunConfig(engine=engine, grace=0.0)

    async def stop() -> None:
        for _ in range(stops):
            build.stop()
        await trio.sleep_forever()

    first = Talk(lambda call, _: stop if call == "0.2" else None)
    with pytest.raises(sb.Interrupted):
        async with sb.open_build(first.columns, rows=2, out=tmp_path / "out", config=config) as build:
            await build.wait()
    again = Talk()
    dataset = await sb.build_async(again.columns, rows=2, out=tmp_path / "out", config=config, resume=True)
    assert dataset.to_polars()["talk"].to_list() == said(2)
    assert sorted([*first.answered, *again.sent]) == [f"{n}.{turn}" for n in range(2) for turn in range(3)]
    assert dataset.report is not None
    assert dataset.report.usage["talk"].calls == 6


async def test_an_answer_is_durable_after_a_commit_while_its_cell_still_runs(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A commit takes the answers of cells that are still under way; those of finished cells need no entry."""
    waiting = trio.Event()

    async def wait() -> None:
        waiting.set()
        await trio.sleep_forever()

    talk = Talk(lambda call, _: wait if call == "0.1" else None)
    config = RunConfig(commit_interval=0.05)
    async with sb.open_build(talk.columns, rows=1, out=tmp_path / "out", config=config) as build:
        await waiting.wait()
        await trio.sleep(0.1)
        assert build._stores is not None
        assert build._stores.journal is not None
        entries = build._stores.journal.read(Key(group=0))
        build.stop()
        build.stop()
        with pytest.raises(sb.Interrupted):
            await build.wait()
    (entry,) = (entry for entry in entries if isinstance(entry, Answer))
    assert (entry.column, entry.row, entry.attempt) == ("talk", 0, 1)


async def test_calls_that_fail_for_good_drop_their_row(autojump_clock: MockClock) -> None:
    """A permanent failure of a later call is no reason to ask again."""
    talk = Talk(lambda call, _: Permanent("no") if call == "0.1" else None)
    async with sb.open_build(talk.columns, rows=1, config=RunConfig(shutdown_error_rate=1)) as build:
        with pytest.raises(sb.AllRowsDropped):
            await build.wait()
    assert [drop.reason for drop in build.report.dropped] == ["talk: no"]
    assert talk.sent == ["0.0", "0.1"]


async def test_a_repair_whose_server_fails_does_not_ask_the_first_question_again() -> None:
    """The first answer does not fit, the server fails on the repair, and only the repair is sent again."""
    asked: list[str] = []

    def script(request: ServerRequest) -> Reply | str:
        turns = len(request.body["messages"])
        asked.append("question" if turns == 1 else "repair")
        if turns == 1:
            return "not JSON at all"
        if asked.count("repair") == 1:
            return Reply(status=503, body={"error": {"message": "come back later"}})
        return '{"stars": 4}'

    async with serve_openai(script=script) as server:
        recipe = sb.Recipe(
            seed=1,
            models={"writer": sb.OpenAICompatible(base_url=server.url, model="m")},
            columns=[
                sb.Category("topic", values=["tea"]),
                sb.LLMStructured(
                    "review",
                    model="writer",
                    prompt="Review {{ topic }}.",
                    schema={"type": "object", "properties": {"stars": {"type": "integer"}}, "required": ["stars"]},
                ),
            ],
            run={"backoff_base": 0.02, "shutdown_error_rate": 1.0},
        )
        async with sb.open_build(recipe, rows=1) as build:
            [group] = [group async for group in build]
    assert group.to_polars()["review"].to_list() == [{"stars": 4}]
    assert asked == ["question", "repair", "repair"]
