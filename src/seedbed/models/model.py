"""A model as a column uses it: bound to one cell, so that each call takes its permit and reports what it used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .base import ChatAnswer, ChatRequest, Image, ImageAnswer, Message

if TYPE_CHECKING:
    from .base import ModelClient, ModelSpec


class Model:
    """What a parameter of this type gets. Made anew for each cell; `context` is the cell's `CellContext`."""

    def __init__(self, alias: str, spec: ModelSpec, client: ModelClient, context: Any) -> None:
        self.alias = alias
        self._spec = spec
        self._client = client
        self._context = context

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
        request = ChatRequest(messages=tuple(messages), parameters=self._parameters(parameters), schema=schema)

        async def send() -> ChatAnswer:
            answer = await self._client.chat(request)
            self._report(answer.tokens.input, answer.tokens.output)
            return answer

        return await self._context.call(send, key=self._spec.key("chat"))

    async def embed(self, texts: Sequence[str], **parameters: Any) -> list[list[float]]:
        """A vector for each text."""

        async def send() -> list[list[float]]:
            answer = await self._client.embed(texts, self._parameters(parameters))
            self._report(answer.tokens.input, answer.tokens.output)
            return [list(vector) for vector in answer.vectors]

        return await self._context.call(send, key=self._spec.key("embedding"))

    async def image(self, prompt: str, **parameters: Any) -> Image:
        """A picture."""

        async def send() -> ImageAnswer:
            answer = await self._client.image(prompt, self._parameters(parameters))
            self._report(answer.tokens.input, answer.tokens.output)
            return answer

        answer = await self._context.call(send, key=self._spec.key("image"))
        return answer.images[0]

    def _parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._spec.parameters, **given}

    def _report(self, input_tokens: int, output_tokens: int) -> None:
        cost = (input_tokens * self._spec.input_price + output_tokens * self._spec.output_price) / 1_000_000
        self._context.report_usage(input_tokens=input_tokens, output_tokens=output_tokens, cost=cost)
