"""Simulated calls, model clients and column functions: they take time and tokens, are rate-limited and fail.

Nothing is sent. Columns of models run their own generators with simulated clients; user code is replaced by functions
that take its time, make its calls and return placeholders.
"""

from __future__ import annotations

import datetime
import functools
import math
import random
import re
import sys
import types
import typing
from collections import Counter
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import pyarrow as pa
import trio

from ..errors import CellError, RateLimited, Retryable
from ..graph import Kind
from ..models.answers import count_tokens, fitting_json, hash_vector, plausible_text, small_png
from ..models.base import NOT_IN_FINGERPRINT, ChatAnswer, EmbeddingAnswer, Image, ImageAnswer, Tokens, cost_of
from ..models.distributions import drawer
from ..models.scripted import Behaviour
from ..store.schema import declared_type
from ..store.values import is_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    import polars as pl

    from ..columns.base import CellContext
    from ..engine.tasks import Step
    from ..models.base import ChatRequest, ModelSpec
    from .profiles import CallProfile


@attrs.define(eq=False, kw_only=True)
class Network:
    """The state that all simulated calls of a run share; the callers change it."""

    # The engine sends all calls from one thread: each occupies it for so many seconds, one after the other.
    overhead: float = 0.0
    # Instants are multiples of this (0: exact), so that calls that end at about the same time end in one step of the
    # loop. Without it a large simulation takes a third longer (benchmarks/simulation.py).
    rounding: float = 0.0
    chance: Callable[[], float] = attrs.field(factory=lambda: random.Random(0).random)
    in_flight: Counter[str] = attrs.field(factory=Counter)  # by throttle key
    _busy_until: float = 0.0

    def occupy(self) -> float:
        """The seconds until the engine has sent a call that begins now."""
        now = trio.current_time()
        self._busy_until = max(now, self._busy_until) + self.overhead
        return self._busy_until - now

    async def sleep(self, seconds: float) -> None:
        """Sleep until an instant that is rounded up or down at random, so that the mean duration is exact."""
        until = trio.current_time() + seconds
        if self.rounding:
            until = math.floor(until / self.rounding + self.chance()) * self.rounding
        await trio.sleep_until(until)


class Caller:
    """Simulates the calls of one column to one model, as their profile describes them."""

    def __init__(
        self,
        alias: str,
        spec: ModelSpec | None,
        profile: CallProfile,
        network: Network,
        *,
        key: str,
        rng: random.Random,
        uses_engine: bool,
        max_tokens: int | None,
    ) -> None:
        """A model that the recipe does not describe (`spec` is None) has no price and no timeout."""
        self.alias = alias
        self.profile = profile
        self._key = key
        self._network = network
        self._uses_engine = uses_engine
        # The timeout of a scripted model is for calls that hang, which have no latency.
        self._timeout: float = math.inf if isinstance(spec, Behaviour) else getattr(spec, "timeout", math.inf)
        self._spec = spec
        self.chance = rng.random
        self._latency = drawer(profile.latency, rng)
        self._error_latency = drawer(profile.error_latency, rng)
        self._input = None if profile.input_tokens is None else drawer(profile.input_tokens, rng)
        self._cached = drawer(profile.cached_tokens, rng)
        self._output = drawer(profile.output_tokens, rng)
        self._max_tokens = max_tokens or sys.maxsize
        self._rate_limited = profile.rate_limited or 0.0
        self._no_answer = self._rate_limited + (profile.failed or 0.0)
        self._more_calls, self._calls = math.modf(profile.calls or 1.0)
        self._rendered: list[int] = []  # tokens of rendered prompts, to draw from for calls without one

    def tokens(self, rendered: int | None = None) -> Tokens:
        """The usage of a call. `rendered` tokens of its prompt count unless the profile has others."""
        if self._input is not None:
            prompt = self._input()
        elif rendered is not None:
            self._rendered.append(rendered)
            prompt = rendered
        else:
            prompt = self._rendered[int(self.chance() * len(self._rendered))] if self._rendered else 0
        prompt = max(0, round(prompt))
        return Tokens(
            input=prompt,
            output=min(self._max_tokens, max(0, round(self._output()))),
            cached=min(prompt, max(0, round(self._cached()))),
        )

    async def call(self) -> None:
        """Take as long as a call; raises the error of one that gets no answer."""
        network, capacity = self._network, self.profile.capacity
        chance = self.chance() if self._no_answer else 1.0
        is_full = capacity is not None and network.in_flight[self._key] >= capacity
        if is_full or chance < self._no_answer:
            await network.sleep(max(0.0, self._error_latency()))
            if is_full or chance < self._rate_limited:
                raise RateLimited(f"model {self.alias!r}: status 429 (simulated)", retry_after=self.profile.retry_after)
            raise Retryable(f"model {self.alias!r}: status 503 (simulated)")
        seconds = max(0.0, self._latency())
        network.in_flight[self._key] += 1
        try:
            await network.sleep(min(seconds, self._timeout) + (network.occupy() if self._uses_engine else 0.0))
        finally:
            network.in_flight[self._key] -= 1
        if seconds > self._timeout:
            raise Retryable(f"model {self.alias!r}: no answer within {self._timeout:g} s (simulated)")

    def count(self) -> int:
        """How many calls the next cell makes."""
        return int(self._calls) + (self._more_calls > 0 and self.chance() < self._more_calls)

    async def make_calls(self, context: CellContext, *, key: str | None = None) -> None:
        """Make the calls of a cell whose function is not run, under permits of `key` (None: that of the column)."""
        count = self.count()
        if count == 1 and key is None:
            # Most cells: under the permit that the task was started with, as it ends it (benchmarks/simulation.py).
            await self._send(context)
            return
        for _ in range(count):
            await context.call(partial(self._send, context), key=key)

    async def make_turn(self, context: CellContext) -> None:
        """Make one of several calls of a cell."""
        await context.call(partial(self._send, context), key=self._key)

    async def _send(self, context: CellContext) -> None:
        await self.call()
        tokens, spec = self.tokens(), self._spec
        context.report_usage(
            model=self.alias,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            cached_tokens=tokens.cached,
            cost=0.0 if spec is None else cost_of(spec, tokens),
        )


# The callers of the column that runs, by alias: a client does not know which column calls it.
current_callers: ContextVar[Mapping[str, Caller] | None] = ContextVar("seedbed.simulated_callers", default=None)

_CODE = re.compile(r"one fenced code block of (\S+?)[.,]")
_SMALLEST = {"json": "{}", "python": "pass", "python3": "pass", "py": "pass"}


@attrs.frozen(kw_only=True)
class SimulatedModel:
    """A `ModelSpec` with the parameters, prices, keys and limits of another, which needs no API key and sends nothing.

    `caller` gives the caller of an alias and domain where the column is not known: a user's function in a thread.
    """

    type: ClassVar[str] = "simulated"

    alias: str
    spec: ModelSpec = attrs.field(metadata=NOT_IN_FINGERPRINT)
    caller: Callable[[str, str], Caller] = attrs.field(metadata=NOT_IN_FINGERPRINT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spec, name)

    def problems(self) -> list[str]:
        return []

    @property
    def provider_id(self) -> str:
        """Different for each alias, because its client must know it."""
        return f"simulated {self.alias}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SimulatedClient]:
        yield SimulatedClient(self)


class SimulatedClient:
    """A `ModelClient` with the answers of the scripted model and the latencies of a profile."""

    def __init__(self, model: SimulatedModel) -> None:
        self._model = model

    async def _call(self, domain: str, texts: Sequence[str]) -> Tokens:
        alias = self._model.alias
        caller = (current_callers.get() or {}).get(alias) or self._model.caller(alias, domain)
        await caller.call()
        return caller.tokens(sum(map(count_tokens, texts)))

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        tokens = await self._call("chat", [message.content for message in request.messages])
        prompt = request.messages[-1].content
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


# Remarks for the reader of the result: an ordered set, to which notes are added by `setdefault`.
Notes = dict[str, None]
_TEXT = "placeholder"
# The first that a type accepts is its placeholder.
_EXAMPLES = (_TEXT, datetime.datetime(2024, 1, 1), datetime.timedelta(seconds=1), 1, True)  # noqa: DTZ001  most types have no zone


def of_type(arrow: pa.DataType) -> Any:
    """A value of a declared type; null for a type that has no plain value."""
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return [of_type(arrow.value_type)]
    if pa.types.is_struct(arrow):
        return {field.name: of_type(field.type) for field in arrow}
    if is_json(arrow):
        return {}
    for example in _EXAMPLES:
        with suppress(pa.ArrowException, TypeError, ValueError):
            return pa.scalar(example, arrow).as_py()
    return None


def of_function(function: Callable[..., Any]) -> Any:
    """A value of the return type of a function; text if it has none that can be stored."""
    try:
        annotation: Any = typing.get_type_hints(function).get("return")
        if typing.get_origin(annotation) in (typing.Union, types.UnionType):
            annotation = next(each for each in typing.get_args(annotation) if each is not type(None))
        bare = typing.get_origin(annotation) or annotation
        return bare() if annotation is list or bare is dict else of_type(declared_type(annotation))
    except Exception:  # noqa: BLE001  annotations can raise anything
        return _TEXT


def of_outputs(outputs: tuple[str, ...], declared: Mapping[str, pa.DataType], function: Callable[..., Any]) -> Any:
    """What a cell function would return: one value or, for several outputs, a mapping of them."""
    if len(outputs) == 1:
        (name,) = outputs
        return of_type(declared[name]) if name in declared else of_function(function)
    return {name: of_type(declared[name]) if name in declared else _TEXT for name in outputs}


# The first cells of a column are filled as in a build, with answers that fit; later ones repeat their values.
LEARNED = 48


def with_callers(function: Callable[..., Any], callers: Mapping[str, Caller]) -> Callable[..., Any]:
    """An async generator function whose model calls follow the profiles of its own column."""

    @functools.wraps(function)
    async def run(*args: Any, **keywords: Any) -> Any:
        current_callers.set(callers)  # for this task only, which is a single attempt of the column
        return await function(*args, **keywords)

    return run


def model_filler(
    column: str,
    function: Callable[..., Any],
    callers: Sequence[Caller],
    fallback: Any,
    notes: Notes,
    *,
    always: bool,
    never_more: bool,
) -> Callable[..., Any]:
    """A column of model calls: its own generator fills the first cells, the others make a call and repeat their values.

    Rendering every prompt and parsing every answer takes twice as long (benchmarks/simulation.py). With `always` every
    cell is filled by the generator, because its values decide how many calls it makes, and of which models; with
    `never_more` no more than the first are, even if none of them has an answer yet.
    """
    generate = with_callers(function, {caller.alias: caller for caller in callers})
    caller = callers[0]
    started, pool = 0, list[Any]()

    async def fill(context_: CellContext, /, **values: Any) -> Any:
        nonlocal started
        if always or started < LEARNED or not (pool or never_more):
            started += 1
            try:
                value = await generate(context_, **values)
            except (RateLimited, Retryable):
                raise
            except Exception as error:  # noqa: BLE001  a made-up answer may not fit what a real one would
                notes.setdefault(f"column {column!r}: no simulated answer fits it ({_short(error)})")
                value = fallback
            if len(pool) < LEARNED:
                pool.append(value)
            return value
        if len(callers) == 1:
            await caller.make_calls(context_)
        else:
            for turn in range(caller.count()):
                await callers[turn % len(callers)].make_turn(context_)
        return pool[int(caller.chance() * len(pool))] if pool else fallback

    return fill


def code_filler(step: Step, value: Any, work: Callable[[CellContext], Awaitable[None]]) -> Callable[..., Any]:
    """A column of a user's function, which is not run: `work` takes its time and makes its calls."""

    async def fill(context_: CellContext, /, **_values: Any) -> Any:
        await work(context_)
        return value

    async def fill_group(given: Any, context: CellContext) -> Any:
        await work(context)
        count = len(given) if step.kind is Kind.FROM_SCRATCH else len(context.rows)
        if len(step.outputs) == 1:
            return [value] * count
        return {name: [value[name]] * count for name in step.outputs}

    return fill if step.kind is Kind.CELL else fill_group


def guarded(column: str, function: Callable[..., Any], notes: Notes) -> Callable[..., Any]:
    """An expression over placeholders: where it fails, the cell is null and no row is dropped."""

    @functools.wraps(function)
    def fill(frame: pl.DataFrame, **keywords: Any) -> list[Any]:
        try:
            values = list(function(frame, **keywords))
        except Exception as error:  # noqa: BLE001  placeholders may be wrong in any way
            values = [CellError(_short(error))] * frame.height
        failed = next((value for value in values if isinstance(value, CellError)), None)
        if failed is None:
            return values
        notes.setdefault(f"column {column!r} is null where placeholders do not fit it ({_short(failed)})")
        return [None if isinstance(value, CellError) else value for value in values]

    return fill


def sampled_checks(function: Callable[..., Any], value: Any) -> Callable[..., Any]:
    """A local check (a parser, a linter): run on the first rows, whose verdicts the others repeat."""
    pool: list[Any] = []

    def fill(frame: pl.DataFrame) -> list[Any]:
        if not pool:
            try:
                pool.extend(function(frame.head(LEARNED)))
            except Exception:  # noqa: BLE001  placeholders may be wrong in any way
                pool.append(value)
        return [pool[row % len(pool)] for row in range(frame.height)]

    return fill


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else f"{text[:160]}…"
