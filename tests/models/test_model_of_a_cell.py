from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from model_helpers import FakeContext, ask

from seedbed.engine.context import CellModel
from seedbed.errors import Retryable
from seedbed.models import ChatAnswer, Dedupe, Image, Message, Scripted, Tokens
from seedbed.models.base import request_key
from seedbed.observe.report import Usage

SAMPLED = {"temperature": {"uniform": [0.2, 1.0]}, "style": {"choice": ["a", "b", "c"]}, "top_p": 0.9}


async def drawn(calls: int = 1, *, seed: int = 7, **where: Any) -> list[tuple[Any, ...]]:
    """The parameters of a cell's calls."""
    seen: list[tuple[Any, ...]] = []

    def answer(request: Any) -> str:
        seen.append((*(request.parameters[name] for name in ("temperature", "style", "top_p")), request.seed))
        return "x"

    spec = Scripted(answers=answer, parameters=SAMPLED)
    async with spec.open() as client:
        model = CellModel("writer", spec, client, FakeContext(**where), seed=seed)
        for _ in range(calls):
            await model.chat("hello")
    return seen


async def test_sampled_parameters_depend_on_the_cell_and_the_call() -> None:
    """Draws are equal in all attempts of a cell, and differ by seed, column, row and call."""
    first = await drawn(3)
    assert first == await drawn(3) == await drawn(3, attempt=2)
    assert len({temperature for temperature, *_ in first}) == 3
    assert all(0.2 <= temperature <= 1.0 and style in "abc" and top_p == 0.9 for temperature, style, top_p, _ in first)
    for other in (drawn(3, seed=8), drawn(3, column="else"), drawn(3, row=1)):
        assert first != await other
    temperatures = [(await drawn(row=row))[0][0] for row in range(200)]
    assert 0.55 < sum(temperatures) / 200 < 0.65


async def test_calls_take_their_key_and_report_usage() -> None:
    """Each call uses the throttle key of its domain, and its cost is reported."""

    def answer(_: Any) -> ChatAnswer:
        return ChatAnswer(text="y", tokens=Tokens(input=1_000_000, output=500_000))

    spec = Scripted(answers=answer, input_price=3.0, output_price=4.0)
    context = FakeContext()
    async with spec.open() as client:
        model = CellModel("writer", spec, client, context)
        assert await model.chat("hello", system="Be brief.") == "y"
        assert len(await model.embed(["a", "b"], dimensions=4)) == 2
        assert (await model.image("a cat")).media_type == "image/png"
    assert context.keys == ["scripted scripted chat", "scripted scripted embedding", "scripted scripted image"]
    assert context.usage[0] == Usage(calls=1, input_tokens=1_000_000, output_tokens=500_000, cost=5.0)


async def test_a_conversation_can_be_passed() -> None:
    """Messages are sent unchanged, after the system text; images are part of their message."""
    seen: list[Any] = []
    spec = Scripted(answers=lambda request: seen.append(request) or "x")
    async with spec.open() as client:
        model = CellModel("writer", spec, client, FakeContext())
        roles = {"a": "user", "b": "assistant", "c": "user"}
        turns = [Message(role=role, content=content) for content, role in roles.items()]
        await model.chat(turns, system="s")
        await model.complete("look", images=[Image(data=b"1")])
    assert [message.content for message in seen[0].messages] == ["s", "a", "b", "c"]
    assert seen[1].messages[0].images == (Image(data=b"1"),)


async def test_the_sync_view() -> None:
    """Synchronous functions in worker threads call the same model."""
    spec = Scripted(answers="You said {prompt}.")
    async with spec.open() as client:
        model = CellModel("writer", spec, client, FakeContext())

        def work() -> tuple[Any, ...]:
            view = model.sync
            picture, vectors = view.image("a cat"), view.embed(["a"])
            return view.alias, view.chat("hi", system="s"), view.complete("ho").text, picture.media_type, len(vectors)

        assert await trio.to_thread.run_sync(work) == ("writer", "You said hi.", "You said ho.", "image/png", 1)


async def test_identical_requests_are_sent_once(autojump_clock: Any) -> None:
    """Identical requests, in flight or answered, use one permit and count tokens once."""
    spec = Scripted(latency=1)
    contexts = [FakeContext(row=row) for row in range(6)]
    dedupe = Dedupe()
    texts: list[str] = []

    async def cell(client: Any, context: FakeContext, prompt: str) -> None:
        texts.append(await CellModel("writer", spec, client, context, dedupe=dedupe).chat(prompt))

    async with spec.open() as client:
        async with trio.open_nursery() as nursery:
            for context in contexts[:4]:
                nursery.start_soon(cell, client, context, "same")
        await cell(client, contexts[4], "same")
        assert sum(len(context.usage) for context in contexts) == 1
        assert sum(len(context.keys) for context in contexts) == 1
        await cell(client, contexts[5], "other")
    assert len(set(texts[:5])) == 1
    assert contexts[5].keys
    assert trio.current_time() == pytest.approx(2)


async def test_failures_are_not_shared(autojump_clock: Any) -> None:
    """If a call that others wait for fails or is cancelled, one of them sends its own."""
    dedupe = Dedupe()
    calls: list[str] = []
    answers: list[str] = []

    async def call(name: str, error: Exception | None) -> str:
        calls.append(name)
        await trio.sleep(1)
        if error is not None:
            raise error
        return name

    async def once(name: str, error: Exception | None, scope: trio.CancelScope) -> None:
        with scope:
            try:
                answers.append(await dedupe.once(b"key", partial(call, name, error)))
            except Retryable as failure:
                answers.append(str(failure))

    cancelled = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(once, "first", Retryable("broken"), trio.CancelScope())
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(once, "second", None, cancelled)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1.5)
        nursery.start_soon(once, "third", None, trio.CancelScope())
        await trio.testing.wait_all_tasks_blocked()
        cancelled.cancel()
    assert calls == ["first", "second", "third"]
    assert answers == ["broken", "third"]


async def test_the_cache_is_bounded() -> None:
    """The least recently used answer is evicted first."""
    dedupe = Dedupe(max_entries=2)
    calls: list[bytes] = []

    async def answer(key: bytes) -> bytes:
        calls.append(key)
        return key

    for key in (b"a", b"b", b"a", b"c", b"a", b"b"):
        assert await dedupe.once(key, partial(answer, key)) == key
    assert calls == [b"a", b"b", b"c", b"b"]


def test_the_key_of_a_request() -> None:
    """Model, text, roles, images, parameters and schema are part of the key; the seed is not."""
    base = request_key("m", ask("hi", parameters={"a": 1, "b": 2}))
    assert base == request_key("m", ask("hi", parameters={"b": 2, "a": 1}, seed_parts=(9,)))
    picture = Message(role="user", content="hi", images=(Image(data=b"1"),))
    others = [
        request_key("n", ask("hi", parameters={"a": 1, "b": 2})),
        request_key("m", ask("ho", parameters={"a": 1, "b": 2})),
        request_key("m", ask("hi", parameters={"a": 1, "b": 3})),
        request_key("m", ask("hi", parameters={"a": 1, "b": 2}, schema={})),
        request_key("m", type(ask("x"))(messages=(picture,), parameters={"a": 1, "b": 2})),
    ]
    assert len({base, *others}) == 6
