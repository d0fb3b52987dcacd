"""The column that the engine runs, how its generator is called, and the interface of the engine for that generator."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import attrs

from .. import checks
from ..errors import ConfigError
from ..graph import Kind
from ..runtime.asyncio import for_runtime

if TYPE_CHECKING:
    from ..models.base import ChatAnswer, Dedupe, Image, Message, ModelClient, ModelSpec, Tool
    from ..runtime.asyncio.crossing import Crossing
    from .templates import SkipRule

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


@runtime_checkable
class CellContext(Protocol):
    """The context of a call, passed to a generator that has a parameter of this type."""

    @property
    def column(self) -> str:
        """The name of the column."""
        ...

    @property
    def row_group(self) -> int:
        """The number of the row group."""
        ...

    @property
    def row(self) -> int | None:
        """The number of the row in the whole dataset; None if the task is for a whole row group."""
        ...

    @property
    def attempt(self) -> int:
        """Counts from 1."""
        ...

    @property
    def rows(self) -> Sequence[tuple[int, int]]:
        """The rows of a task for a whole row group, in order: source row and copy (0: the row itself).

        In a stage whose rows come from another: the row that each was made from, and which of its rows it is (a number
        that stands for it if there are stages between).
        """
        ...

    def report_usage(
        self,
        *,
        calls: int = 1,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        cost: float = 0.0,
        model: str = "",
    ) -> None:
        """Add to the usage of this task, by model; safe from a worker thread.

        `input_tokens` include those of prompts that the provider read from its cache, `cached_tokens`.
        """

    def answered_by(self, model: str) -> None:
        """Name the model whose answer the cell's value is, for its provenance; by default the one called last."""

    async def first_available(self, tries: Sequence[tuple[str, Callable[[], Awaitable[T]]]]) -> T:
        """Return the first result of these functions, each with the throttle key that it calls.

        The next one is awaited where a call fails twice in a retryable way, its server cannot be reached, it is
        rate-limited for longer than `fallback_after`, or the function raises `BadOutput`. Raises the error of the last.
        The keys are in `other_keys` of the column, and those after the first in `fallback_keys`.
        """

    async def call(
        self,
        send: Callable[[], Awaitable[T]],
        *,
        key: str | None = None,
        tokens: int = 0,
        idempotency_key: Callable[[], bytes] | None = None,
        confirm: Callable[[], Awaitable[object]] | None = None,
    ) -> T:
        """Make one model call under a permit of `key` (by default the column's).

        The first call uses the permit that the task was started with. A `RateLimited` before any answer sends the cell
        back to its lane; after an answer the call waits here, so that no answered call is repeated.

        `idempotency_key` identifies the call across attempts. Then its answer is stored when a
        later call of the cell fails, or the whole run dies, and is returned again without being sent.

        `confirm` sends a small call to the same server. If the call raises `ModelMisconfigured` and `confirm` does too,
        the run stops and drops no row; if `confirm` succeeds, the row alone has failed.
        """

    async def run_tool(
        self, name: str, run: Callable[[], Awaitable[str]], *, key: bytes, is_idempotent: bool = True
    ) -> str:
        """Run a tool that a model called; its result is stored like the answer of a call with this idempotency `key`.

        Before a tool that is not idempotent runs, the intent is made durable. Where an earlier attempt or run began it
        and has no result, it may have run: it is not run again, and `Permanent` is raised. Other attempts get its
        result, even if the generator rejected the answers of the model.
        """

    def give_back(self) -> None:
        """Return the permit that the task was started with, because it sends no call for now."""

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await an async function from a synchronous generator, in its worker thread."""

    def bind_model(
        self,
        alias: str,
        spec: ModelSpec,
        client: ModelClient,
        *,
        seed: int = 0,
        dedupe: Dedupe | None = None,
    ) -> Model:
        """The model for this cell, as a parameter of type `Model` gets it.

        `seed` is the recipe's. With `dedupe`, equal chats of all cells are sent once.
        """


class ChatMethod(Protocol[R_co]):
    """The parameters of the chat methods of models; `parameters` are inference parameters of this call."""

    def __call__(
        self,
        prompt: str | Sequence[Message],
        *,
        system: str | None = None,
        images: Iterable[Image] = (),
        schema: Mapping[str, Any] | None = None,
        tools: Sequence[Tool] = (),
        **parameters: Any,
    ) -> R_co: ...


class Model(Protocol):
    """A model of the recipe, for one cell: each call takes a permit, and its usage is reported.

    The seed of the recipe, the column, the row and the number of the call determine the values of sampled
    parameters, which are the same in every attempt.
    """

    @property
    def alias(self) -> str:
        """Its name in the recipe."""
        ...

    @property
    def sync(self) -> SyncModel:
        """The same model for synchronous functions, which run in worker threads."""
        ...

    @property
    def chat(self) -> ChatMethod[Awaitable[str]]:
        """Send a prompt or a conversation, and return the text of the answer."""
        ...

    @property
    def complete(self) -> ChatMethod[Awaitable[ChatAnswer]]:
        """Send a prompt or a conversation, and return the whole answer."""
        ...

    async def embed(self, texts: Sequence[str], **parameters: Any) -> list[list[float]]:
        """A vector for each text."""
        ...

    async def image(self, prompt: str, **parameters: Any) -> Image:
        """An image."""
        ...


class SyncModel:
    """A `Model` whose methods block: for synchronous functions, in their worker thread."""

    def __init__(self, model: Model, context: CellContext) -> None:
        self.alias = model.alias
        self._model = model
        self._run = context.run

    def chat(self, prompt: str | Sequence[Message], **options: Any) -> str:
        return self._run(partial(self._model.chat, prompt, **options))

    def complete(self, prompt: str | Sequence[Message], **options: Any) -> ChatAnswer:
        return self._run(partial(self._model.complete, prompt, **options))

    def embed(self, texts: Sequence[str], **parameters: Any) -> list[list[float]]:
        return self._run(partial(self._model.embed, texts, **parameters))

    def image(self, prompt: str, **parameters: Any) -> Image:
        return self._run(partial(self._model.image, prompt, **parameters))


class UncallableError(TypeError):
    """The generator cannot be called for its column; the message is the rest of the sentence "column 'x' …"."""


@attrs.frozen(kw_only=True)
class Call:
    """A generator's function and its arguments.

    `positional` and `keywords` are requirement names; None among the positional ones stands for the context. A function
    for whole columns or row groups takes its frame or its rows first and has neither.
    """

    function: Callable[..., Any]
    is_async: bool
    positional: tuple[str | None, ...]
    keywords: tuple[str, ...]
    context_keyword: str | None

    @property
    def wants_context(self) -> bool:
        return self.context_keyword is not None or None in self.positional


def generator_function(generator: object) -> tuple[Callable[..., Any], bool]:
    """The function that fills a column, and whether it is async; `agenerate` is preferred to `generate`."""
    if isinstance(generator, type):
        # Its methods need a `self`, and the engine creates no instance.
        raise UncallableError(f"has the class {generator.__name__} as its generator; give it an instance")
    for name, is_async in (("agenerate", True), ("generate", False)):
        if callable(method := getattr(generator, name, None)):
            return method, is_async
    if not callable(generator):
        raise UncallableError(
            f"has {generator!r} as its generator, which is not a function and has neither generate nor agenerate"
        )
    is_async = inspect.iscoroutinefunction(generator) or inspect.iscoroutinefunction(generator.__call__)
    return generator, is_async


def bind_call(generator: object, kind: Kind, requires: Sequence[str] | None) -> tuple[Call, tuple[str, ...]]:
    """Read from a signature how to call a generator; returns that and the columns it requires.

    With `requires=None` a cell function's parameters without a default are its requirements.
    """
    function, is_async = generator_function(generator)
    parameters = read_parameters(function)
    named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    contexts = [each.name for each in parameters if has_type(each, CellContext)]
    if len(contexts) > 1:
        raise UncallableError(f"has {len(contexts)} parameters for the context; one is enough")
    wanted = [each.name for each in named if each.default is each.empty and each.name not in contexts]
    positional: list[str | None] = []
    keywords: list[str] = []
    context_keyword: str | None = None
    if kind is not Kind.CELL:
        if len(wanted) != 1:
            what = "its rows (a range)" if kind is Kind.FROM_SCRATCH else "its frame"
            names = ", ".join(wanted) or "nothing"
            raise UncallableError(f"is called with one argument, {what}, but its function wants {names}")
        requires = requires or ()
        context_keyword = next(iter(contexts), None)
    else:
        requires = wanted if requires is None else requires
        if unmet := [name for name in wanted if name not in requires]:
            raise UncallableError(f"wants {_names(unmet)}, which it does not require")
        surplus = [name for name in requires if all(each.name != name for each in named)]
        if surplus and all(each.kind is not each.VAR_KEYWORD for each in parameters):
            raise UncallableError(f"requires {_names(surplus)}, which its function does not take")
        in_front = True  # as long as every parameter so far is given, it can be given by position
        for each in named:
            given = each.name in contexts or each.name in requires
            in_front = in_front and given and each.kind is not each.KEYWORD_ONLY
            if in_front:
                positional.append(None if each.name in contexts else each.name)
            elif each.name in contexts:
                context_keyword = each.name
            elif given:
                keywords.append(each.name)
        keywords += surplus
    call = Call(
        function=function,
        is_async=is_async,
        positional=tuple(positional),
        keywords=tuple(keywords),
        context_keyword=context_keyword,
    )
    return call, tuple(dict.fromkeys(requires))


def read_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function, with annotations as classes, or as text if they cannot be evaluated."""
    for evaluate in (True, False):
        try:
            return list(inspect.signature(function, eval_str=evaluate).parameters.values())
        except Exception:  # noqa: BLE001  annotations can raise anything
            continue
    raise UncallableError(f"has a function whose parameters cannot be read: {function!r}")


def has_type(parameter: inspect.Parameter, kind: type) -> bool:
    """True if a parameter is annotated with a class; annotations that could not be evaluated are compared as text."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2].strip("'\" ") == kind.__name__
    return annotation is kind


def _names(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


class AsyncioContext:
    """The context of a cell whose function runs on asyncio: it calls the engine on trio's side."""

    def __init__(self, context: CellContext, crossing: Crossing) -> None:
        self._context = context
        self._crossing = crossing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def call(self, send: Callable[[], Awaitable[T]], **options: Any) -> T:
        """Run `send` here, on asyncio; the permit is taken and the outcome reported on trio's side."""
        sent = partial(self._crossing.run, send)
        return await self._crossing.call(partial(self._context.call, sent, **options)).wait()

    def give_back(self) -> None:
        self._crossing.into_trio(self._context.give_back)


def for_asyncio(value: Any, crossing: Crossing) -> Any:
    """Adapt an argument of a function that runs on asyncio: a context is wrapped, other values are unchanged."""
    return AsyncioContext(value, crossing) if isinstance(value, CellContext) else value


def _as_kind(value: Kind | str) -> Kind:
    try:
        return Kind(value)
    except ValueError:
        allowed = ", ".join(repr(kind.value) for kind in Kind)
        raise ConfigError(f"kind must be one of {allowed}, not {value!r}") from None


def _exceptions(value: type[Exception] | Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    return (value,) if isinstance(value, type) else tuple(value)


@attrs.frozen(kw_only=True, eq=False)
class Column:
    """A generator and its outputs.

    `generator` is a function, sync or async, or an object with `generate` or `agenerate`. Its arguments:

    - kind `cell`: the values of its required columns of one row, by parameter name; it returns the cell's value;
    - kind `full_column`: a polars frame of its required columns; it returns as many values as the frame has rows;
    - kind `from_scratch`: a `range` of row numbers; it returns a value for each.

    A generator with several outputs or side effects returns a mapping (or, for whole columns, a frame) by name; a side
    effect may be missing, an output may not. Sync generators run in a worker thread, or in a process with
    `process=True`. A parameter annotated `CellContext` gets the context. A value of a whole column that is a
    `CellError` fails only its own row.
    """

    name: str = attrs.field(kw_only=False)
    """Its name."""
    generator: Any = attrs.field(kw_only=False)
    """The function or object that fills it."""
    kind: Kind = attrs.field(default=Kind.CELL, converter=_as_kind)
    """`cell`, `full_column` or `from_scratch`."""
    requires: tuple[str, ...] = attrs.field(default=None, converter=checks.as_names)
    """The columns that it needs; by default the parameters of a cell function."""
    key: str | None = None
    """The throttle key of its calls, if it makes any."""
    other_keys: tuple[str, ...] = attrs.field(default=(), converter=checks.as_names)
    """Other keys of its calls through `CellContext.call`; they may have limits too."""
    fallback_keys: tuple[str, ...] = attrs.field(default=(), converter=checks.as_names)
    """Keys that a task may be started with while its own is rate-limited for long: `CellContext.first_available`."""
    tokens: int = 0
    """How many tokens one call is expected to use, for `tokens_per_minute` and `max_tokens`."""
    outputs: tuple[str, ...] = attrs.field(default=None, converter=checks.as_names)
    """The names of its outputs if it has several."""
    side_effects: tuple[str, ...] = attrs.field(default=(), converter=checks.as_names)
    """Names of further outputs, which may be missing."""
    dtype: Any = None
    """A polars, pyarrow or Python type, or a mapping of them by output; by default inferred."""
    schemas: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict, repr=False)
    """JSON Schemas by output: the start-up check looks for misspelled fields of them."""
    timeout: float | None = None
    """How long one attempt may take, in seconds."""
    # That of its first chat, if its function awaits nothing before it and nothing after a chat that failed. Then the
    # cell's cancel scope carries the deadline of that chat, which is cheaper than a scope for it (overhead benchmark).
    first_call_timeout: float | None = None
    """The timeout of its first chat, if nothing else of its function takes time."""
    is_stateful: bool = attrs.field(default=None)
    """One call at a time, in row order, over all row groups; also for rows that another column drops."""
    process: bool = False
    """Run a sync function in a worker process; a script that uses it builds under `if __name__ == "__main__":`."""
    runtime: str | None = None
    """The event loop that its async function targets, `trio` (the default) or `asyncio`."""
    allow_resize: bool = False
    """Not supported: it is an error to set it."""
    retry_on: tuple[type[Exception], ...] = attrs.field(default=(), converter=_exceptions)
    """Exceptions of its own code that are retried."""
    once_per: tuple[str, ...] = attrs.field(default=(), converter=checks.as_names)
    """Columns that make up a key: a cell runs once for each key, and all rows with that key have its value."""
    skip: SkipRule | None = None
    """The compiled `skip_when` of a recipe's column."""
    skip_policy: str = "run"
    """A cell with a skipped input is `run` with a null, or `skip`ped too."""
    lane: str | None = None
    """Columns of one `lane` share its limit."""
    lane_limit: int | None = None
    """The limit of its concurrent calls, if it is lower than that of its key."""
    repaired_by: str | None = None
    """The validation whose verdict on each value decides whether the generator repairs it."""
    takes_pairs: bool = attrs.field(default=False, repr=False)
    """From scratch: its generator takes pairs too, as those of `CellContext.rows`, in place of a range."""
    # The columns whose values its generator gets: `requires` without those that only its skip rule reads.
    inputs: tuple[str, ...] = attrs.field(init=False, default=(), repr=False)
    # How the generator is called, or why it cannot be.
    call: Call | None = attrs.field(init=False, default=None, repr=False)
    problem: str | None = attrs.field(init=False, default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        """Read the generator's signature; a problem is stored for the start-up check, which reports all at once."""
        put = object.__setattr__
        given: dict[str, Any] = {name: getattr(self, name) for name in ("outputs", "is_stateful", "requires")}
        if given["outputs"] is None:
            put(self, "outputs", (self.name,))
        if given["is_stateful"] is None:
            put(self, "is_stateful", bool(getattr(self.generator, "is_stateful", False)))
        try:
            call, requires = bind_call(self.generator, self.kind, given["requires"])
            function = for_runtime(call.function, is_async=call.is_async, runtime=self.runtime, adapt=for_asyncio)
        except (UncallableError, ConfigError) as error:
            put(self, "problem", f"column {self.name!r} {error}")
            put(self, "inputs", given["requires"] or ())
        else:
            put(self, "call", attrs.evolve(call, function=function))
            put(self, "inputs", requires)
        rule = self.skip.requires if self.skip is not None else ()
        put(self, "requires", tuple(dict.fromkeys((*self.inputs, *rule, *self.once_per))))

    def dtypes(self) -> dict[str, Any]:
        """The declared type of each output that has one."""
        if isinstance(self.dtype, Mapping):
            return dict(self.dtype)
        return {} if self.dtype is None else {self.outputs[0]: self.dtype}
