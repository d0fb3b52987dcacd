"""What every model client speaks: requests in, answers out, and the engine's failure classes in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    import trio

    from ..runtime.throttle import KeyLimits


HOW = {"seedbed": "how"}
"""Metadata of fields that say how a model is asked and not what it answers: no part of a recipe's fingerprint."""


@attrs.frozen(kw_only=True)
class Image:
    """A picture that goes with a message, or that a model made."""

    data: bytes = attrs.field(repr=False)
    media_type: str = "image/png"


@attrs.frozen(kw_only=True)
class Message:
    """One turn of a conversation; `role` is system, user or assistant."""

    role: str
    text: str
    images: tuple[Image, ...] = ()


@attrs.frozen(kw_only=True)
class ChatRequest:
    """One call of a chat model. `schema` asks for output that fits a JSON Schema, where the provider can do that.

    `seed` depends on the recipe's seed, the column, the row and the call's number only: for what is drawn per call. Two
    requests that differ in nothing else are the same request.
    """

    messages: tuple[Message, ...]
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    schema: Mapping[str, Any] | None = None
    seed: int = attrs.field(default=0, eq=False)
    # The caller's own, entered in this task: a client may let it carry the deadline of the call (`Endpoint.send`).
    scope: trio.CancelScope | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen(kw_only=True)
class Tokens:
    """What a call used, as the provider reported it (estimated where it did not)."""

    input: int = 0
    output: int = 0


@attrs.frozen(kw_only=True)
class ChatAnswer:
    """What a chat model answered. `reasoning` is what it thought aloud, if the provider says so."""

    text: str
    reasoning: str | None = None
    finish_reason: str | None = None
    tokens: Tokens = Tokens()


@attrs.frozen(kw_only=True)
class EmbeddingAnswer:
    """A vector for each text."""

    vectors: tuple[tuple[float, ...], ...]
    tokens: Tokens = Tokens()


@attrs.frozen(kw_only=True)
class ImageAnswer:
    """The pictures that were made."""

    images: tuple[Image, ...]
    tokens: Tokens = Tokens()


class ModelClient(Protocol):
    """One provider as it is spoken to while a build runs.

    Every method makes exactly one call and raises `RateLimited`, `Retryable` or `Permanent` when it fails; permits,
    retries and usage are the caller's. Cancelling a method closes its call.
    """

    async def chat(self, request: ChatRequest) -> ChatAnswer: ...
    async def embed(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> EmbeddingAnswer: ...
    async def image(self, prompt: str, parameters: Mapping[str, Any]) -> ImageAnswer: ...


class ModelSpec(Protocol):
    """A model as a recipe names it: a frozen value (`OpenAICompatible`, `Anthropic`, `Local`, `Scripted`)."""

    @property
    def model(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]:
        """Inference parameters; a number may also be a distribution to draw from, such as {"uniform": [0.2, 1.0]}."""
        ...

    @property
    def max_parallel_requests(self) -> int: ...
    @property
    def input_price(self) -> float:
        """Money per million input tokens."""
        ...

    @property
    def output_price(self) -> float: ...

    def key(self, domain: str) -> str:
        """The throttle key of this model for `chat`, `embedding` or `image`: provider + model + domain."""
        ...

    def limits(self) -> KeyLimits:
        """What its keys may be asked for."""
        ...

    def problems(self) -> list[str]:
        """What is wrong with it before anything runs, such as an API key that is not in the environment."""
        ...

    def open(self) -> AbstractAsyncContextManager[ModelClient]:
        """A client, for as long as a build runs; specs with the same `provider_id` share one."""
        ...

    @property
    def provider_id(self) -> str:
        """Specs with the same id can share a client (same kind, base URL, key and options)."""
        ...
