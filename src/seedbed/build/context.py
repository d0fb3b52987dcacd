"""What a generator asks of the engine while it fills a cell: calls under permits, and what became of them."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ..errors import BudgetExceeded, CellTimeout, QuotaExhausted, RateLimited, Retryable, SeedbedError
from ..generators import Usage
from ..graph import GROUP
from ..runtime.portal import current_portal
from ..store.entries import Answer
from .tasks import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from ..runtime.throttle import Permit, Throttle
    from .run import Run
    from .tasks import Cell, Group, Outcome

T = TypeVar("T")


class Context:
    """The engine's side of `CellContext`, for one attempt of one task."""

    def __init__(self, run: Run, cell: Cell[Group]) -> None:
        self._run = run
        self._cell = cell
        self.usage = Usage()
        # How long the cell must wait because its first call was refused.
        self.refused_for: float | None = None
        self._answered = False
        # Answered calls that said what they asked; the first so many of them are in the journal.
        self._made: list[tuple[Callable[[], bytes], Any]] = []
        self._recorded = 0
        # What the last call that failed in a way that may pass raised.
        self._failure: Retryable | None = None
        # Seconds in calls, and of waiting for leave to make them.
        self.called = 0.0
        self.waited = 0.0
        self._rows: list[tuple[int, int]] = []

    def about(self, rows: list[tuple[int, int]]) -> None:
        """The task is for these rows of the dataset."""
        self._rows = rows

    @property
    def column(self) -> str:
        return self._cell.step.name

    @property
    def row_group(self) -> int:
        return self._cell.group.index

    @property
    def row(self) -> int | None:
        return None if self._cell.row == GROUP else self._cell.group.rows.identity(self._cell.row)[0]

    @property
    def attempt(self) -> int:
        return self._cell.attempt

    @property
    def rows(self) -> Sequence[tuple[int, int]]:
        return self._rows

    def report_usage(
        self, *, calls: int = 1, input_tokens: int = 0, output_tokens: int = 0, cost: float = 0.0, model: str = ""
    ) -> None:
        self.usage.add(model, calls, input_tokens, output_tokens, cost)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        portal = current_portal.get()
        if portal is None or trio.lowlevel.in_trio_run():
            raise SeedbedError("CellContext.run is for synchronous generators, in their own thread; await instead")
        return portal.run(function, *args)

    def count_usage(self) -> None:
        """Count what was used so far, although the attempt is not over: it is paid for."""
        if self.usage.calls:
            self._run.ledger.spend(self.column, self.usage.take())

    def end(self, outcome: Outcome[Any]) -> bool:
        """The attempt is over; whether the next one has its answers and need not ask again."""
        if self._run.recorder is not None:
            self._run.recorder.over(self)
        return outcome.status is Status.RETRYABLE and self._keep_answers(outcome.error)

    def _keep_answers(self, error: BaseException | None) -> bool:
        """Keep them unless the failure judges what was answered.

        A call that failed, or a timeout, does not; an exception of the generator's own code does.
        """
        if not isinstance(error, CellTimeout) and (error is None or error is not self._failure):
            self._cell.answers = None
            return False
        self.record_answers()
        answers = {asks(): answer for asks, answer in self._made}
        self._cell.answers = {**(self._cell.answers or {}), **answers}
        return bool(self._cell.answers)

    def record_answers(self) -> None:
        """The cell is not over with the answers that it has: they must outlive this run."""
        cell = self._cell
        # Whoever finds the answers will not report what they cost.
        self.count_usage()
        for asks, answer in self._made[self._recorded :]:
            cell.group.record(
                Answer(column=cell.step.name, row=cell.row, attempt=cell.attempt, asked=asks(), answer=answer)
            )
        self._recorded = len(self._made)

    async def call(
        self,
        send: Callable[[], Awaitable[T]],
        *,
        key: str | None = None,
        tokens: int = 0,
        asks: Callable[[], bytes] | None = None,
    ) -> T:
        cell, run = self._cell, self._run
        if asks is not None and cell.answers and (asked := asks()) in cell.answers:
            # A checkpoint, as a call would have been.
            await trio.lowlevel.checkpoint()
            self._answered = True
            known: T = cell.answers[asked]
            return known
        key = key or cell.step.key
        if key is None:
            raise SeedbedError(f"column {self.column!r} has no throttle key; give one to call() or to the column")
        throttle = run.throttles.get(key)
        refusals = cell.refusals
        while True:
            permit = await self._permit(throttle, key, tokens or cell.step.tokens)
            before = self.usage.tokens
            sent = run.now()
            try:
                try:
                    answer = await send()
                finally:
                    self.called += run.now() - sent
            except RateLimited as refusal:
                refusals += 1
                try:
                    delay = permit.refused(refusal, refusals)
                except QuotaExhausted as exhausted:
                    run.stop(exhausted)
                    raise refusal from exhausted
                if not self._answered:
                    self.refused_for = delay
                    raise
                with self._timeout_suspended():
                    await trio.sleep(delay)
            except BaseException as error:
                permit.finished(self.usage.tokens - before or None)
                if isinstance(error, Retryable):
                    self._failure = error
                raise
            else:
                permit.accepted(self.usage.tokens - before or None)
                self._answered = True
                if asks is not None:
                    self._made.append((asks, answer))
                    if run.recorder is not None:
                        run.recorder.answered(self)
                return answer

    async def _permit(self, throttle: Throttle, key: str, tokens: int) -> Permit:
        """The permit that the task was started with, or another; and what the call is expected to use is reserved."""
        cell = self._cell
        if cell.permit is not None and key == cell.step.key:
            permit, cell.permit = cell.permit, None
        else:
            # Holding one key while waiting for another: two cells that do so crosswise would wait for ever.
            self.give_back()
            with self._timeout_suspended():
                permit = await throttle.acquire(tokens)
        if self._run.spending.limited:
            self._reserve(permit, key, tokens)
        return permit

    def _reserve(self, permit: Permit, key: str, tokens: int) -> None:
        """Reserve for one call what it is expected to use, or stop the run before it."""
        cell = self._cell
        reserved = self._run.spending.extend(cell.step, cell.reserved, self.usage, tokens, key)
        if isinstance(reserved, BudgetExceeded):
            permit.finished()
            self._run.stop(reserved)
            # Flow control and not a failure: the row is unfinished and not dropped.
            raise RateLimited(str(reserved)) from reserved
        cell.reserved = reserved

    def give_back(self) -> None:
        permit, self._cell.permit = self._cell.permit, None
        if permit is not None:
            permit.unused()

    @contextmanager
    def _timeout_suspended(self) -> Iterator[None]:
        """Flow control is not the cell's time: its timeout stands still meanwhile."""
        scope, began = self._cell.scope, self._run.now()
        left = math.inf
        if scope is not None:
            left, scope.deadline = scope.deadline - began, math.inf
        try:
            yield
        finally:
            ended = self._run.now()
            self.waited += ended - began
            if scope is not None:
                scope.deadline = ended + left
