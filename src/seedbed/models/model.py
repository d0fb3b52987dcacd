"""A model as a column uses it: bound to one cell, so that each call takes its permit and reports what it used."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..embed import anywhere
from .base import ChatAnswer, ChatRequest, Image, ImageAnswer, Message
from .dedupe import call_key, request_key
from .distributions import draw, is_distribution, stable_seed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    import trio

    from .base import ModelClient, ModelSpec, Tokens
    from .dedupe import Dedupe

T = TypeVar("T")


class Model:
    """What a parameter of this type gets. Made anew for each cell; `context` is the cell's `CellContext`.

    `seed` is the recipe's: with the column, the row and the number of the call it decides what sampled parameters are
    drawn, so that they are the same however often a cell is tried. With `dedupe` a chat that was asked before is
    answered from there, without a permit and without tokens. `scope` is the cell's, where its function lets it carry
    the deadlines of chats: it awaits nothing after a chat that failed.
    """

    def __init__(
        self,
        alias: str,
        spec: ModelSpec,
        client: ModelClient,
        context: Any,
        *,
        seed: int = 0,
        dedupe: Dedupe | None = None,
        scope: trio.CancelScope | None = None,
    ) -> None:
        self.alias = alias
        self._spec = spec
        self._client = client
        self._context = context
        self._seed = seed
        self._dedupe = dedupe
        self._scope = scope
        # Calls made so far; each draws anew.
        self._calls = 0

    @property
    def sync(self) -> SyncModel:
        """The same model for synchronous functions, which run in worker threads."""
        return SyncModel(self, self._context)

    async def chat(
        self,
        prompt: str | Sequence[Message],
        *,
        system: str | None = None,
        images: Iterable[Image] = (),
        schema: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> str:
        """Ask, and get the text of the answer."""
        answer = await self.complete(prompt, system=system, images=images, schema=schema, **parameters)
        return answer.text

    @anywhere
    async def complete(
        self,
        prompt: str | Sequence[Message],
        *,
        system: str | None = None,
        images: Iterable[Image] = (),
        schema: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> ChatAnswer:
        """Ask, and get the whole answer."""
        if isinstance(prompt, str):
            messages = [Message(role="user", text=prompt, images=tuple(images))]
        else:
            messages = list(prompt)
        if system is not None:
            messages.insert(0, Message(role="system", text=system))
        seed, drawn = self._draw(parameters)
        request = ChatRequest(messages=tuple(messages), parameters=drawn, schema=schema, seed=seed, scope=self._scope)
        key = self._spec.key("chat")
        call = partial(self._call, key, partial(self._client.chat, request), partial(request_key, str(seed), request))
        if self._dedupe is None:
            return await call()
        # While another cell asks the same, or if the answer is there already, this one needs no permit.
        asked = request_key(key, request)
        if self._dedupe.knows(asked):
            self._context.give_back()
        return await self._dedupe.once(asked, call)

    @anywhere
    async def embed(self, texts: Sequence[str], **parameters: Any) -> list[list[float]]:
        """A vector for each text."""
        seed, drawn = self._draw(parameters)
        idempotency_key = partial(call_key, seed, list(texts), drawn)
        answer = await self._call(
            self._spec.key("embedding"), partial(self._client.embed, texts, drawn), idempotency_key
        )
        return [list(vector) for vector in answer.vectors]

    @anywhere
    async def image(self, prompt: str, **parameters: Any) -> Image:
        """A picture."""
        seed, drawn = self._draw(parameters)
        idempotency_key = partial(call_key, seed, prompt, drawn)
        answer: ImageAnswer = await self._call(
            self._spec.key("image"), partial(self._client.image, prompt, drawn), idempotency_key
        )
        return answer.images[0]

    def _call(self, key: str, ask: Callable[[], Awaitable[T]], idempotency_key: Callable[[], bytes]) -> Awaitable[T]:
        # Not a coroutine around that of the context: each one costs whenever the call goes on (overhead benchmark).
        async def send() -> T:
            answer = await ask()
            self._report(answer.tokens)  # type: ignore[attr-defined]  # every answer of a client has them
            return answer

        called: Awaitable[T] = self._context.call(send, key=key, idempotency_key=idempotency_key)
        return called

    def _draw(self, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """The seed of the next call, and its parameters with what is to be sampled drawn.

        The attempt is no part of it: a cell that is tried again asks the same question.
        """
        self._calls += 1
        context = self._context
        seed = stable_seed(self._seed, context.column, context.row, self.alias, self._calls)
        parameters = {**self._spec.parameters, **given}
        for name, value in parameters.items():
            if is_distribution(value):
                parameters[name] = draw(value, random.Random(stable_seed(seed, name)))
        return seed, parameters

    def _report(self, tokens: Tokens) -> None:
        cost = (tokens.input * self._spec.input_price + tokens.output * self._spec.output_price) / 1_000_000
        self._context.report_usage(model=self.alias, input_tokens=tokens.input, output_tokens=tokens.output, cost=cost)


class SyncModel:
    """A `Model` whose methods wait: for synchronous functions, in their worker thread."""

    def __init__(self, model: Model, context: Any) -> None:
        self._model = model
        self._context = context

    @property
    def alias(self) -> str:
        return self._model.alias

    def chat(self, prompt: str | Sequence[Message], **options: Any) -> str:
        """Ask, and get the text of the answer; options as those of `Model.chat`."""
        text: str = self._context.run(partial(self._model.chat, prompt, **options))
        return text

    def complete(self, prompt: str | Sequence[Message], **options: Any) -> ChatAnswer:
        """Ask, and get the whole answer; options as those of `Model.complete`."""
        answer: ChatAnswer = self._context.run(partial(self._model.complete, prompt, **options))
        return answer

    def embed(self, texts: Sequence[str], **parameters: Any) -> list[list[float]]:
        """A vector for each text."""
        vectors: list[list[float]] = self._context.run(partial(self._model.embed, texts, **parameters))
        return vectors

    def image(self, prompt: str, **parameters: Any) -> Image:
        """A picture."""
        picture: Image = self._context.run(partial(self._model.image, prompt, **parameters))
        return picture
