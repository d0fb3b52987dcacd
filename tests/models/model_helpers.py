"""What the tests of models share."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from seedbed.models import ChatRequest, Message, OpenAICompatible
from seedbed.testing import serve_openai

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from seedbed.models import ModelClient
    from seedbed.testing import OpenAIServer


def ask(text: str, **options: Any) -> ChatRequest:
    """A request with one turn."""
    return ChatRequest(messages=(Message(role="user", text=text),), **options)


@asynccontextmanager
async def open_pair(
    spec: dict[str, Any] | None = None, **server: Any
) -> AsyncIterator[tuple[OpenAIServer, ModelClient]]:
    """A server and a client of it."""
    async with serve_openai(**server) as running:
        model = OpenAICompatible(base_url=running.url, model="small", **(spec or {}))
        async with model.open() as client:
            yield running, client


@attrs.define(eq=False)
class FakeContext:
    """A cell's context that lets every call through and adds up what is reported."""

    column: str = "answer"
    row_group: int = 0
    row: int | None = 0
    attempt: int = 1
    keys: list[str] = attrs.field(factory=list)
    usage: list[dict[str, Any]] = attrs.field(factory=list)

    def give_back(self) -> None:
        """There is no permit."""

    def report_usage(self, **usage: Any) -> None:
        self.usage.append(usage)

    async def call(
        self,
        send: Callable[[], Awaitable[Any]],
        *,
        key: str | None = None,
        tokens: int = 0,
        idempotency_key: Callable[[], bytes] | None = None,
    ) -> Any:
        self.keys.append(str(key))
        return await send()

    def run(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        return trio.from_thread.run(function, *args)
