"""Helpers for the tests of models."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from seedbed.engine.context import CellModel
from seedbed.models import ChatRequest, Message, OpenAICompatible
from seedbed.observe.events import Events
from seedbed.testing import serve_openai

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from seedbed.models import ModelClient
    from seedbed.observe.report import Usage
    from seedbed.testing import OpenAIServer


def ask(text: str, **options: Any) -> ChatRequest:
    """A request with one user message."""
    return ChatRequest(messages=(Message(role="user", content=text),), **options)


@asynccontextmanager
async def open_pair(
    spec: dict[str, Any] | None = None, **server: Any
) -> AsyncIterator[tuple[OpenAIServer, ModelClient]]:
    """A server and a client connected to it."""
    async with serve_openai(**server) as running:
        model = OpenAICompatible(base_url=running.url, model="small", **(spec or {}))
        async with model.open() as client:
            yield running, client


@attrs.define(eq=False)
class FakeContext:
    """A cell context that permits every call and collects the reported usage."""

    column: str = "answer"
    row_group: int = 0
    row: int | None = 0
    attempt: int = 1
    keys: list[str] = attrs.field(factory=list)
    usage: list[Usage] = attrs.field(factory=list)
    model: str = ""

    readers = Events()

    @property
    def drawn_for(self) -> object:
        return self.row

    def answered_by(self, model: str) -> None:
        self.model = model

    def give_back(self) -> None:
        """Do nothing: there is no permit."""

    def add_usage(self, _model: str, usage: Usage) -> None:
        self.usage.append(usage)

    async def call(
        self,
        send: Callable[[], Awaitable[Any]],
        *,
        key: str | None = None,
        tokens: int = 0,
        idempotency_key: Callable[[], bytes] | None = None,
        report: Callable[[Any], None] | None = None,
        confirm: object = None,
    ) -> Any:
        self.keys.append(str(key))
        answer = await send()
        if report is not None:
            report(answer)
        return answer

    def bind_model(self, alias: str, spec: Any, client: Any, **options: Any) -> CellModel:
        return CellModel(alias, spec, client, self, **options)  # type: ignore[arg-type]

    def run(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        return trio.from_thread.run(function, *args)
