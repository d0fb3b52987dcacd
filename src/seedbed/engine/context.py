"""What a generator may ask of the engine while it fills a cell: calls under permits, and reports of their usage."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ..errors import CellTimeout, QuotaExhausted, RateLimited, Retryable, SeedbedError
from ..generators import Usage
from ..graph import GROUP
from ..runtime.portal import current_portal
from .scheduler import PermitRequest
from .tasks import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from .services import OpenGroup, Services
    from .tasks import Outcome, Permit, Task

T = TypeVar("T")


class Context:
    """The engine's side of `CellContext`, for one attempt of one task."""

    def __init__(self, services: Services, group: OpenGroup, task: Task) -> None:
        self._services = services
        self._group = group
        self._task = task
        self.usage = Usage()
        # Of the attempt; its deadline is the cell's timeout, or that of a call that lets the scope carry it.
        self.scope: trio.CancelScope | None = None
        # How long the cell must wait because its first call was rate-limited.
        self.retry_delay: float | None = None
        self._answered = False
        # Answers of calls that have an idempotency key; the first `_recorded` of them are in the journal.
        self._answers: list[tuple[Callable[[], bytes], Any]] = []
        self._recorded = 0
        # The error of the last call that failed in a retryable way.
        self._failure: Retryable | None = None
        # Seconds in calls, and of waiting for permits.
        self.called = 0.0
        self.waited = 0.0
        self._rows: Sequence[tuple[int, int]] = ()

    def bind_scope(self, scope: trio.CancelScope) -> None:
        """The attempt runs under this scope."""
        self.scope = scope

    def about(self, rows: list[tuple[int, int]]) -> None:
        """The task is for these rows of the dataset."""
        self._rows = rows

    @property
    def column(self) -> str:
        return self._task.step.name

    @property
    def row_group(self) -> int:
        return self._task.group

    @property
    def row(self) -> int | None:
        return None if self._task.row == GROUP else self._group.rows.identity(self._task.row)[0]

    @property
    def attempt(self) -> int:
        return self._task.attempt

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
            self._services.ledger.spend(self.column, self.usage.take())

    def end(self, outcome: Outcome) -> bool:
        """The attempt is over; whether the next one has its answers and need not ask again."""
        if self._services.recorder is not None:
            self._services.recorder.over(self)
        return outcome.status is Status.RETRYABLE and self._keep_answers(outcome.error)

    def _keep_answers(self, error: BaseException | None) -> bool:
        """Keep them unless the failure judges what was answered.

        A call that failed, or a timeout, does not; an exception of the generator's own code does.
        """
        if not isinstance(error, CellTimeout) and (error is None or error is not self._failure):
            self._task.answers = None
            return False
        self.record_answers()
        answers = {key(): answer for key, answer in self._answers}
        self._task.answers = {**(self._task.answers or {}), **answers}
        return bool(self._task.answers)

    def record_answers(self) -> None:
        """The cell is not over with the answers that it has: they must outlive this run."""
        # An attempt that reuses the answers will not report their usage.
        self.count_usage()
        journal = self._group.journal
        if journal is not None:
            for key, answer in self._answers[self._recorded :]:
                journal.answered(self._task, key(), answer)
        self._recorded = len(self._answers)

    async def call(
        self,
        send: Callable[[], Awaitable[T]],
        *,
        key: str | None = None,
        tokens: int = 0,
        idempotency_key: Callable[[], bytes] | None = None,
    ) -> T:
        task, services = self._task, self._services
        if idempotency_key is not None and task.answers and (asked := idempotency_key()) in task.answers:
            # A checkpoint, as a call would have been.
            await trio.lowlevel.checkpoint()
            self._answered = True
            known: T = task.answers[asked]
            return known
        key = key or task.step.key
        if key is None:
            raise SeedbedError(f"column {self.column!r} has no throttle key; give one to call() or to the column")
        rate_limits = task.rate_limits
        while True:
            permit = await self._permit(key, tokens or task.step.tokens)
            before = self.usage.tokens
            sent = services.now()
            try:
                try:
                    answer = await send()
                finally:
                    self.called += services.now() - sent
            except RateLimited as error:
                rate_limits += 1
                try:
                    delay = permit.refused(error, rate_limits)
                except QuotaExhausted as exhausted:
                    services.scheduler.stop(exhausted)
                    services.wake()
                    raise error from exhausted
                if not self._answered:
                    self.retry_delay = delay
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
                if idempotency_key is not None:
                    self._answers.append((idempotency_key, answer))
                    if services.recorder is not None:
                        services.recorder.answered(self)
                return answer

    async def _permit(self, key: str, tokens: int) -> Permit:
        """The permit that the task was started with, or another one; and the expected usage of the call is reserved."""
        task = self._task
        if task.permit is not None and key == task.step.key:
            permit, task.permit = task.permit, None
        else:
            # Two tasks that each hold a permit of one key and wait for one of the other would wait for ever.
            self.give_back()
            permit = await self._another_permit(key, tokens)
        if self._services.scheduler.has_budget:
            self._reserve(permit, key, tokens)
        return permit

    async def _another_permit(self, key: str, tokens: int) -> Permit:
        """A permit for a further call of this task: it is queued in the scheduler, before new tasks."""
        granted = trio.Event()
        scheduler, wake = self._services.scheduler, self._services.wake
        request = PermitRequest(self._task, key, tokens, granted.set)
        permit = scheduler.request_permit(request)
        if permit is not None:
            return permit
        wake()
        try:
            with self._timeout_suspended():
                await granted.wait()
        except BaseException:
            scheduler.withdraw_request(request)
            wake()
            raise
        assert request.permit is not None  # granted
        return request.permit

    def _reserve(self, permit: Permit, key: str, tokens: int) -> None:
        """Reserve the expected usage of one call, or stop the run before it."""
        exceeded = self._services.scheduler.reserve(self._task, self.usage, tokens, key)
        if exceeded is not None:
            permit.finished()
            self._services.wake()
            # Flow control and not a failure: the row is unfinished and not dropped.
            raise RateLimited(str(exceeded)) from exceeded

    def give_back(self) -> None:
        permit, self._task.permit = self._task.permit, None
        if permit is not None:
            permit.unused()

    @contextmanager
    def _timeout_suspended(self) -> Iterator[None]:
        """Waiting for flow control does not count as the cell's time: its timeout is suspended."""
        scope, began = self.scope, self._services.now()
        left = math.inf
        if scope is not None:
            left, scope.deadline = scope.deadline - began, math.inf
        try:
            yield
        finally:
            ended = self._services.now()
            self.waited += ended - began
            if scope is not None:
                scope.deadline = ended + left
