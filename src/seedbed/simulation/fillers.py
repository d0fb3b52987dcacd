"""What fills columns in a simulation: their own generators with simulated models, or a stand-in for user code."""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING, Any

from ..errors import CellError, RateLimited, Retryable
from ..graph import Kind
from .models import current_callers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import polars as pl

    from ..generators import CellContext, SkipRule
    from .calls import Caller

# So many cells of a column are filled as in a build, with answers that fit; the others repeat what these gave.
LEARNED = 48
_LONGEST = 160  # of what is quoted of an error


class Notes:
    """What a reader of the result should know; each is kept once, in order."""

    def __init__(self) -> None:
        self._said: dict[str, None] = {}

    def say(self, note: str) -> None:
        self._said[note] = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._said)


def with_callers(function: Callable[..., Any], callers: Mapping[str, Caller]) -> Callable[..., Any]:
    """An async generator function whose model calls go by the profiles of its own column."""

    @functools.wraps(function)
    async def run(*args: Any, **keywords: Any) -> Any:
        token = current_callers.set(callers)
        try:
            return await function(*args, **keywords)
        finally:
            current_callers.reset(token)

    return run


def model_filler(
    column: str,
    function: Callable[..., Any],
    caller: Caller,
    otherwise: Any,
    notes: Notes,
    *,
    always: bool,
    never_more: bool,
) -> Callable[..., Any]:
    """A column of model calls: its own generator fills the first cells, the others make a call and repeat their values.

    Rendering every prompt and reading every answer takes twice as long (benchmarks/simulation.py). With `always`
    every cell goes that way, because its prompt decides whether there is a call; with `never_more` no more than the
    first few do, even if none of them has an answer yet.
    """
    generate = with_callers(function, {caller.alias: caller})
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
                notes.say(f"column {column!r}: no answer that fits could be made up ({_short(error)})")
                value = otherwise
            if len(pool) < LEARNED:
                pool.append(value)
            return value
        await caller.make_calls(context_)
        return pool[int(caller.chance() * len(pool))] if pool else otherwise

    return fill


def code_filler(
    kind: Kind, outputs: Sequence[str], value: Any, own: Caller, callers: Sequence[tuple[Caller, str | None]]
) -> Callable[..., Any]:
    """A column of a user's function, which is not run: it takes its time, makes its calls, gives a placeholder.

    Callers have their throttle keys, None for the column's own; without any caller the function takes as long as a call
    of `own`.
    """

    async def work(context: CellContext) -> None:
        if not callers:
            await own.call()
        for caller, key in callers:
            await caller.make_calls(context, key=key)

    async def fill(context_: CellContext, /, **_values: Any) -> Any:
        await work(context_)
        return value

    async def fill_group(given: Any, context: CellContext) -> Any:
        await work(context)
        count = len(given) if kind is Kind.FROM_SCRATCH else len(context.rows)
        if len(outputs) == 1:
            return [value] * count
        return {name: [value[name]] * count for name in outputs}

    return fill if kind is Kind.CELL else fill_group


def guarded(column: str, function: Callable[..., Any], notes: Notes) -> Callable[..., Any]:
    """An expression over values that are placeholders in part: where it fails, the cell is null and no row is lost."""

    @functools.wraps(function)
    def fill(frame: pl.DataFrame, **keywords: Any) -> list[Any]:
        try:
            values = list(function(frame, **keywords))
        except Exception as error:  # noqa: BLE001  made-up values may be wrong in any way
            notes.say(f"column {column!r} is null where placeholders do not fit it ({_short(error)})")
            return [None] * frame.height
        failed = next((value for value in values if isinstance(value, CellError)), None)
        if failed is None:
            return values
        notes.say(f"column {column!r} is null where placeholders do not fit it ({_short(failed)})")
        return [None if isinstance(value, CellError) else value for value in values]

    return fill


def sampled_checks(function: Callable[..., Any], value: Any) -> Callable[..., Any]:
    """A local check (a parser, a linter): run on a few rows, whose verdicts the others repeat."""
    pool: list[Any] = []

    def fill(frame: pl.DataFrame) -> list[Any]:
        if not pool:
            try:
                pool.extend(function(frame.head(LEARNED)))
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
