"""What fills cells in a simulation in the place of what would have called somebody or run somebody's code."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from ..errors import CellError, RateLimited, Retryable
from ..graph import Kind
from .models import current_callers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl

    from ..generators import Call, CellContext, SkipRule
    from .calls import Caller

# So many cells of a column are really rendered and read, with answers that fit; the others repeat what these gave.
LEARNED = 48
_LONGEST = 160  # of what is quoted of an error


class Notes:
    """What whoever reads the result should know; each is kept once, in order."""

    def __init__(self) -> None:
        self._said: dict[str, None] = {}

    def say(self, note: str) -> None:
        self._said[note] = None

    def __iter__(self) -> Any:
        return iter(self._said)


class CallFiller:
    """A column of model calls. The first cells go the whole way of a real one, but for the call itself."""

    def __init__(
        self,
        column: str,
        call: Call,
        inputs: Sequence[str],
        caller: Caller,
        *,
        prices: tuple[float, float],
        otherwise: Any,
        always: bool,
        never_more: bool,
        notes: Notes,
    ) -> None:
        self._column = column
        self._call = call
        self._inputs = inputs
        self._caller = caller
        self._prices = prices
        self._otherwise = otherwise
        # Every cell goes the whole way: its prompts decide how many calls there are.
        self._always = always
        # No more than the first few do, even if none of them has an answer yet: theirs count as one if they are equal.
        self._never_more = never_more
        self._notes = notes
        self._started = 0
        self._pool: list[Any] = []

    async def fill(self, context: CellContext, *values: Any) -> Any:
        """Fill one cell."""
        if self._always or self._started < LEARNED or not (self._pool or self._never_more):
            self._started += 1
            return await self._go(context, dict(zip(self._inputs, values, strict=True)))
        await make_calls(context, self._caller, self._prices)
        return self._pool[int(self._caller.chance() * len(self._pool))] if self._pool else self._otherwise

    async def _go(self, context: CellContext, values: Mapping[str, Any]) -> Any:
        token = current_callers.set({self._caller.alias: self._caller})
        try:
            value = await invoke(self._call, context, values)
        except (RateLimited, Retryable):
            raise
        except Exception as error:  # noqa: BLE001  a made-up answer may not fit what a real one would
            self._notes.say(f"column {self._column!r}: no answer that fits could be made up ({_short(error)})")
            value = self._otherwise
        finally:
            current_callers.reset(token)
        if len(self._pool) < LEARNED:
            self._pool.append(value)
        return value


async def make_calls(
    context: CellContext, caller: Caller, prices: tuple[float, float], *, key: str | None = None
) -> None:
    """The calls of one cell to one model: the first under the permit that it was started with, unless `key` is said.

    Prices are those of one token.
    """
    count = caller.count()
    if count == 1 and key is None:
        # The way of nearly all cells, without a detour: a simulation is made of it.
        await caller.call()
        report(context, caller, prices)
        return

    async def send() -> None:
        await caller.call()
        report(context, caller, prices)

    for _ in range(count):
        await context.call(send, key=key)


def report(context: CellContext, caller: Caller, prices: tuple[float, float]) -> None:
    """Say what a call used."""
    asked, answered = caller.tokens()
    cost = asked * prices[0] + answered * prices[1]
    context.report_usage(model=caller.alias, input_tokens=asked, output_tokens=answered, cost=cost)


async def invoke(call: Call, context: CellContext, values: Mapping[str, Any]) -> Any:
    """Call an async cell function as the engine would."""
    arguments = [context if name is None else values[name] for name in call.positional]
    keywords: dict[str, Any] = {name: values[name] for name in call.keywords}
    if call.context_keyword is not None:
        keywords[call.context_keyword] = context
    return await call.function(*arguments, **keywords)


class CodeFiller:
    """A column of somebody's function, which is not run: it takes its time, makes its calls, gives a placeholder."""

    def __init__(
        self,
        kind: Kind,
        outputs: tuple[str, ...],
        value: Any,
        *,
        own: Caller,
        callers: Sequence[tuple[Caller, tuple[float, float], str | None]],
    ) -> None:
        self._kind = kind
        self._outputs = outputs
        self._value = value
        self._own = own
        self._callers = callers

    async def fill(self, context: CellContext, *_values: Any) -> Any:
        """Fill one cell."""
        await self._work(context)
        return self._value

    async def fill_group(self, given: Any, context: CellContext) -> Any:
        """Fill a whole column of a row group."""
        await self._work(context)
        count = len(given) if self._kind is Kind.FROM_SCRATCH else len(context.rows)
        if len(self._outputs) == 1:
            return [self._value] * count
        return {name: [self._value[name]] * count for name in self._outputs}

    async def _work(self, context: CellContext) -> None:
        if not self._callers:
            await self._own.call()
        for caller, prices, key in self._callers:
            await make_calls(context, caller, prices, key=key)


def with_callers(function: Callable[..., Any], callers: Mapping[str, Caller]) -> Callable[..., Any]:
    """An async function of the user's that is really run; its model calls are simulated by its own column's profile."""

    async def run(*args: Any, **keywords: Any) -> Any:
        token = current_callers.set(callers)
        try:
            return await function(*args, **keywords)
        finally:
            current_callers.reset(token)

    return run


def guarded(column: str, call: Call, notes: Notes) -> Callable[..., Any]:
    """An expression over values that are placeholders in part: where it fails, the cell is null and no row is lost."""

    def fill(frame: pl.DataFrame, context: CellContext) -> list[Any]:
        try:
            values = list(call.function(frame, **({call.context_keyword: context} if call.context_keyword else {})))
        except Exception as error:  # noqa: BLE001  made-up values may be wrong in any way
            notes.say(f"column {column!r} is null where placeholders do not fit it ({_short(error)})")
            return [None] * len(context.rows)
        failed = next((value for value in values if isinstance(value, CellError)), None)
        if failed is None:
            return values
        notes.say(f"column {column!r} is null where placeholders do not fit it ({_short(failed)})")
        return [None if isinstance(value, CellError) else value for value in values]

    return fill


def sampled_checks(call: Call, value: Any) -> Callable[..., Any]:
    """A local check (a parser, a linter): run on a few rows, whose verdicts the others repeat."""
    pool: list[Any] = []

    def fill(frame: pl.DataFrame) -> list[Any]:
        if not pool:
            try:
                pool.extend(call.function(frame.head(LEARNED)))
            except Exception:  # noqa: BLE001  made-up values may be wrong in any way
                pool.append(value)
        return [pool[row % len(pool)] for row in range(frame.height)]

    return fill


class GuardedSkip:
    """A skip rule that reads placeholders: by its share if one is said, and never by failing."""

    def __init__(self, column: str, rule: SkipRule, share: float | None, *, seed: int, notes: Notes) -> None:
        self.requires = rule.requires
        self._rule = rule
        self._column = column
        self._share = share
        self._chance = random.Random(seed).random
        self._notes = notes

    def decide(self, values: Mapping[str, Any]) -> bool:
        """Whether to skip a cell."""
        if self._share is not None:
            return self._chance() < self._share
        try:
            return self._rule.decide(values)
        except Exception as error:  # noqa: BLE001  made-up values may be wrong in any way
            self._notes.say(f"skip_when of column {self._column!r} fails on placeholders and skips nothing ({error})")
            return False


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
