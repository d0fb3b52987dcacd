"""The interface of model clients: specs, requests and their digests, answers, and one call for identical requests."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import attrs
import msgspec
import trio

from ..observe.report import Usage
from .distributions import stable_seed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from ..runtime.throttle import KeyLimits

T = TypeVar("T")

NOT_IN_FINGERPRINT = {"seedbed": "not in fingerprint"}
"""Metadata of fields that determine how a build runs and not its data: a changed value does not prevent a resume."""


@attrs.frozen(kw_only=True)
class Image:
    """An image of a message or of an answer."""

    data: bytes = attrs.field(repr=False)
    """The bytes of the file."""
    media_type: str = "image/png"
    """Its type, such as `image/png`."""


@attrs.frozen(kw_only=True)
class Tool:
    """A function that a chat model may call."""

    name: str
    """What the model calls it."""
    description: str
    """What it does, for the model."""
    parameters: Mapping[str, Any]
    """The JSON Schema of its arguments, an object."""


@attrs.frozen(kw_only=True)
class ToolCall:
    """A call of a tool that a chat model asks for."""

    id: str
    """Identifies the call in the conversation."""
    name: str
    """The tool."""
    arguments: str
    """The arguments as the model wrote them: JSON, or what it took for JSON."""


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One turn of a conversation."""

    # A struct, because every call creates one: that takes a tenth of the time (overhead benchmark).
    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str
    """What is said, or what a tool returned."""
    images: tuple[Image, ...] = ()
    """Pictures that go with it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that the assistant calls."""
    tool_call_id: str = ""
    """The call that a tool answers."""
    thinking: tuple[dict[str, Any], ...] = ()
    """`ChatAnswer.thinking` of the answer that this message repeats."""


@attrs.frozen(kw_only=True)
class ChatRequest:
    """One call of a chat model. `schema` is the JSON Schema of the output, for providers that support one.

    Requests that differ only in `seed` are equal.
    """

    messages: tuple[Message, ...]
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    schema: Mapping[str, Any] | None = None
    tools: tuple[Tool, ...] = ()
    # The seed of the recipe, the column, the row, the alias of the model and the number of the call.
    seed_parts: tuple[object, ...] = attrs.field(default=(), eq=False)
    # A scope that the caller entered in this task, with the deadline of this call (`Endpoint.send`).
    scope: trio.CancelScope | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def seed(self) -> int:
        """What clients draw random values from, if they do: few need it, and a hash costs (overhead benchmark)."""
        return stable_seed(*self.seed_parts)

    def idempotency_key(self) -> bytes:
        """What identifies this call of a cell across attempts."""
        return request_key(str(self.seed), self)


@attrs.frozen(kw_only=True)
class Tokens:
    """Token usage of a call as reported by the provider, otherwise estimated."""

    input: int = 0
    """Tokens of the prompt, cached ones included."""
    output: int = 0
    """Tokens of the answer."""
    cached: int = 0
    """Tokens of the prompt that the provider read from its cache."""
    cache_written: int = 0
    """Tokens of the prompt that the provider stored in its cache."""


@attrs.frozen(kw_only=True)
class ChatAnswer:
    """The answer of a chat model."""

    text: str
    """What it wrote."""
    reasoning: str | None = None
    """Its thinking, if the provider returns it."""
    finish_reason: str | None = None
    """Why it ended, in the words of the provider."""
    tokens: Tokens = Tokens()
    """The usage: `input` and `output`."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that it calls; it goes on when it has their results."""
    thinking: tuple[dict[str, Any], ...] = ()
    """Signed thinking, which a provider wants back together with the results of the tools that it calls."""


@attrs.frozen(kw_only=True)
class EmbeddingAnswer:
    """A vector for each text."""

    vectors: tuple[tuple[float, ...], ...]
    tokens: Tokens = Tokens()


@attrs.frozen(kw_only=True)
class ImageAnswer:
    """The generated images."""

    images: tuple[Image, ...]
    tokens: Tokens = Tokens()


class ModelClient(Protocol):
    """An open connection to a provider.

    Every method sends exactly one call and raises `RateLimited`, `Retryable` or `Permanent` when it fails. The caller
    handles permits, retries and usage. Cancelling a method closes its call.
    """

    async def chat(self, request: ChatRequest) -> ChatAnswer: ...
    async def embed(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> EmbeddingAnswer: ...
    async def image(self, prompt: str, parameters: Mapping[str, Any]) -> ImageAnswer: ...


class Prices(Protocol):
    """The prices of a model, for a million tokens."""

    # Read-only, so that frozen classes conform.
    @property
    def input_price(self) -> float: ...
    @property
    def output_price(self) -> float: ...
    @property
    def cached_price(self) -> float | None: ...  # None: as `input_price`
    @property
    def cache_write_price(self) -> float | None: ...


class ModelSpec(Prices, Protocol):
    """The definition of a model in a recipe, a frozen value (`OpenAICompatible`, `Anthropic`, `Local`, `Scripted`)."""

    @property
    def model(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]:
        """Inference parameters; a number may also be a distribution to draw from, such as {"uniform": [0.2, 1.0]}."""
        ...

    @property
    def max_parallel_requests(self) -> int: ...
    @property
    def provider_id(self) -> str: ...  # specs with the same id share a client

    def key(self, domain: str) -> str:
        """The throttle key of this model for `chat`, `embedding` or `image`: provider + model + domain."""
        ...

    def limits(self) -> KeyLimits:
        """The concurrency and rate limits of its throttle keys."""
        ...

    def problems(self) -> list[str]:
        """Problems that can be found before a run, such as a missing API key."""
        ...

    def open(self) -> AbstractAsyncContextManager[ModelClient]: ...


@runtime_checkable
class SharedClient(ModelClient, Protocol):
    """A client whose connections can be shared by other models of the same provider."""

    def for_model(self, model: str) -> ModelClient: ...


@asynccontextmanager
async def open_models(specs: Mapping[str, ModelSpec]) -> AsyncIterator[Mapping[str, ModelClient]]:
    """Open a client for each alias and close them on exit. Specs with the same `provider_id` share one."""
    async with AsyncExitStack() as stack:
        opened: dict[str, ModelClient] = {}
        clients: dict[str, ModelClient] = {}
        for alias, spec in specs.items():
            client = opened.get(spec.provider_id)
            if client is None:
                client = opened[spec.provider_id] = await stack.enter_async_context(spec.open())
            clients[alias] = client.for_model(spec.model) if isinstance(client, SharedClient) else client
        yield clients


def cost_of(spec: Prices, tokens: Tokens) -> float:
    """The cost of one call of a model."""
    price = spec.input_price
    cost = tokens.input * price + tokens.output * spec.output_price
    if tokens.cached and spec.cached_price is not None:
        cost += tokens.cached * (spec.cached_price - price)
    if tokens.cache_written and spec.cache_write_price is not None:
        cost += tokens.cache_written * (spec.cache_write_price - price)
    return cost / 1_000_000


def usage_of(spec: Prices, tokens: Tokens) -> Usage:
    """The usage of one call of a model, with its cost."""
    return Usage(
        calls=1,
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cached_tokens=tokens.cached,
        cache_write_tokens=tokens.cache_written,
        cost=cost_of(spec, tokens),
    )


async def send_small_call(client: ModelClient, domain: str) -> ChatAnswer | EmbeddingAnswer | ImageAnswer:
    """Send the cheapest call that shows whether a model can be called; `domain` is chat, embedding or image."""
    if domain == "embedding":
        return await client.embed(["hello"], {})
    if domain == "image":
        return await client.image("a dot", {})
    # Enough tokens for most answers, few enough to cost nothing.
    return await client.chat(
        ChatRequest(messages=(Message(role="user", content="Say OK."),), parameters={"max_tokens": 16})
    )


def request_key(model: str, request: ChatRequest) -> bytes:
    """A digest that is equal for identical requests to the same model."""
    digest = hashlib.blake2b(digest_size=16)
    for message in request.messages:
        for part in (message.role.encode(), message.content.encode("utf-8", "surrogatepass")):
            digest.update(len(part).to_bytes(8, "big") + part)
        for image in message.images:
            digest.update(hashlib.blake2b(image.data).digest() + image.media_type.encode())
        if message.tool_calls or message.tool_call_id:
            calls = [message.tool_call_id, *map(attrs.astuple, message.tool_calls)]
            digest.update(json.dumps(calls).encode())
        digest.update(b"\0")
    rest: list[Any] = [model, dict(request.parameters), request.schema]
    if request.tools:
        rest += map(attrs.asdict, request.tools)
    digest.update(json.dumps(rest, sort_keys=True, default=repr).encode())
    return digest.digest()


def call_key(*parts: Any) -> bytes:
    """A digest of JSON-serialisable parts that identifies a call of a cell across attempts."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=repr).encode(), digest_size=16).digest()


class Dedupe:
    """A cache of the last `max_entries` answers that also joins concurrent requests. Used from one trio run.

    Failures are neither cached nor shared: if a call fails or is cancelled, one of the tasks that waited for it sends
    its own call.
    """

    def __init__(self, max_entries: int = 10_000) -> None:
        self._max_entries = max_entries
        self._answers: OrderedDict[bytes, Any] = OrderedDict()
        self._in_flight: dict[bytes, trio.Event] = {}

    def knows(self, key: bytes) -> bool:
        """True if the answer for a key is cached or its call is in flight."""
        return key in self._answers or key in self._in_flight

    async def once(self, key: bytes, call: Callable[[], Awaitable[T]]) -> T:
        """Return the cached answer, wait for a call in flight, or call."""
        while (other := self._in_flight.get(key)) is not None:
            await other.wait()
        if key in self._answers:
            self._answers.move_to_end(key)
            found: T = self._answers[key]
            # As in a call, so that a loop over cached answers does not block the event loop.
            await trio.lowlevel.checkpoint()
            return found
        done = self._in_flight[key] = trio.Event()
        try:
            answer = self._answers[key] = await call()
            if len(self._answers) > self._max_entries:
                self._answers.popitem(last=False)
            return answer
        finally:
            del self._in_flight[key]
            done.set()
