"""Models in a simulation: the keys, limits and prices of the recipe's own, and nobody behind them."""

from __future__ import annotations

import math
import re
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from ..models.answers import count_tokens, fitting_json, hash_vector, plausible_text, small_png
from ..models.base import HOW, ChatAnswer, EmbeddingAnswer, Image, ImageAnswer, Tokens
from ..models.behaviour import Behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ..models.base import ChatRequest, ModelSpec
    from ..runtime.throttle import KeyLimits
    from .calls import Caller

# The caller of the column that runs, by alias: a client is not told who asks.
current_callers: ContextVar[Mapping[str, Caller] | None] = ContextVar("seedbed.simulated_callers", default=None)

_CODE = re.compile(r"one fenced code block of (\S+?)[.,]")
_SMALLEST = {"json": "{}", "python": "pass", "python3": "pass", "py": "pass"}


@attrs.frozen(kw_only=True)
class SimulatedModel:
    """A `ModelSpec` that has everything of another but its address: no key is needed, and no call is made."""

    type: ClassVar[str] = "simulated"

    alias: str
    # No part of what a recipe makes, so its fingerprint passes over them.
    spec: ModelSpec = attrs.field(metadata=HOW)
    # Who calls it where no column is known, by domain: a function of the user's in a thread.
    caller: Callable[[str, str], Caller] = attrs.field(metadata=HOW)

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.spec.parameters

    @property
    def max_parallel_requests(self) -> int:
        return self.spec.max_parallel_requests

    @property
    def input_price(self) -> float:
        return self.spec.input_price

    @property
    def output_price(self) -> float:
        return self.spec.output_price

    @property
    def timeout(self) -> float:
        """Seconds after which a call is given up; a scripted model gives up only those that hang."""
        return math.inf if isinstance(self.spec, Behaviour) else float(getattr(self.spec, "timeout", math.inf))

    def key(self, domain: str) -> str:
        return self.spec.key(domain)

    def limits(self) -> KeyLimits:
        return self.spec.limits()

    def problems(self) -> list[str]:
        """Nothing is called, so nothing can be missing."""
        return []

    @property
    def provider_id(self) -> str:
        """Each alias has a client of its own, which knows by what name it is called."""
        return f"simulated {self.alias}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SimulatedClient]:
        """A client, for as long as the simulation runs."""
        yield SimulatedClient(self)


class SimulatedClient:
    """Answers what the scripted model would, after as long as the profile says."""

    def __init__(self, model: SimulatedModel) -> None:
        self._model = model

    def _caller(self, domain: str) -> Caller:
        callers = current_callers.get() or {}
        alias = self._model.alias
        return callers[alias] if alias in callers else self._model.caller(alias, domain)

    async def _call(self, domain: str, texts: Sequence[str]) -> Tokens:
        caller = self._caller(domain)
        await caller.call()
        asked, answered = caller.tokens(sum(map(count_tokens, texts)))
        return Tokens(input=asked, output=answered)

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        tokens = await self._call("chat", [message.text for message in request.messages])
        prompt = request.messages[-1].text
        if request.schema:
            text = fitting_json(request.schema, prompt)
        elif found := _CODE.search(prompt):
            text = f"```{found[1]}\n{_SMALLEST.get(found[1].lower(), 'placeholder')}\n```"
        else:
            text = plausible_text(prompt)
        return ChatAnswer(text=text, finish_reason="stop", tokens=tokens)

    async def embed(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> EmbeddingAnswer:
        tokens = await self._call("embedding", texts)
        size = int(parameters.get("dimensions") or 16)
        return EmbeddingAnswer(vectors=tuple(hash_vector(text, size) for text in texts), tokens=tokens)

    async def image(self, prompt: str, parameters: Mapping[str, Any]) -> ImageAnswer:
        tokens = await self._call("image", [prompt])
        pictures = tuple(Image(data=small_png(f"{prompt} {n}")) for n in range(int(parameters.get("n") or 1)))
        return ImageAnswer(images=pictures, tokens=tokens)
