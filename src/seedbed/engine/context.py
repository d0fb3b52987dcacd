"""The engine's side of `CellContext` and `Model`: calls under permits, reports of usage, answers that are stored."""

from __future__ import annotations

import math
import random
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from ..columns.base import SyncModel
from ..errors import (
    BadOutput,
    BuildStopped,
    CellTimeout,
    ModelMisconfigured,
    Permanent,
    QuotaExhausted,
    RateLimited,
    Retryable,
    SeedbedError,
    StoreError,
)
from ..models.base import ChatRequest, Message, call_key, request_key, send_small_call, usage_of
from ..models.distributions import draw, is_distribution, stable_seed
from ..models.urls import server_of
from ..observe import events
from ..observe.report import Usage
from ..runtime.asyncio import anywhere
from ..runtime.policy import backoff_base, backoff_delay
from ..runtime.threads import current_portal
from .tasks import RUN_ONCE, PermitRequest, TaskUsage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence

    from ..models.base import ChatAnswer, Dedupe, EmbeddingAnswer, Image, ImageAnswer, ModelClient, ModelSpec, Tool
    from ..runtime.throttle import Permit
    from .services import OpenGroup, Services
    from .tasks import Task

T = TypeVar("T")
A = TypeVar("A", "ChatAnswer", "EmbeddingAnswer", "ImageAnswer")


class Context:
    """The engine's side of `CellContext`, for one attempt of one task."""

    def __init__(self, services: Services, group: OpenGroup, task: Task) -> None:
        self._services = services
        self._group = group
        self._task = task
        self.usage = TaskUsage()
        # The attempt runs under this scope. As long as that carries the deadline of the first call, `deadline` is the
        # cell's own. Both are set by the attempt.
        self.scope: trio.CancelScope | None = None
        self.deadline: float | None = None
        # How long the cell must wait because its first call was rate-limited.
        self.retry_delay: float | None = None
        self._answered = False
        # Answers of calls that have an idempotency key; the first `_recorded` of them are in the journal.
        self._answers: list[tuple[Callable[[], bytes], Any]] = []
        self._recorded = 0
        # Another model is called where this one is not available, and a rate limit showed that it is not for long.
        self._falls_back = False
        self._limited_for_long = False
        # The error of the last call that failed in a retryable way.
        self._failure: Retryable | None = None
        # Seconds in calls, and of waiting for permits.
        self.called = 0.0
        self.waited = 0.0
        # The alias of the model that was called last, or that the generator named.
        self.model = ""
        self.rows: Sequence[tuple[int, int]] = ()  # of the dataset, of a task for a whole row group

    @property
    def column(self) -> str:
        return self._task.step.name

    @property
    def row_group(self) -> int:
        return self._task.group

    @property
    def row(self) -> int | None:
        return self._group.number(self._task)

    @property
    def drawn_for(self) -> object:
        """What values that a cell draws depend on besides its column: its row, or that which it was made from.

        With `once_per` it is the key, which is the same for all cells that share the answer.
        """
        if self._task.shared_key is not None:
            return self._task.shared_key.hex()
        row, plan = self.row, self._services.plan
        return row if row is None or plan.parent_plan is None else plan.origin(row)

    @property
    def attempt(self) -> int:
        return self._task.attempt

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
        usage = Usage(
            calls=calls,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            cost=cost,
        )
        self.model = model or self.model
        self.add_usage(model, usage)

    def answered_by(self, model: str) -> None:
        self.model = model

    def add_usage(self, model: str, usage: Usage) -> None:
        """Count a call, or several."""
        self.usage.add(model, usage)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        portal = current_portal.get()
        if portal is None or trio.lowlevel.in_trio_run():
            raise SeedbedError("CellContext.run is for synchronous generators, in their own thread; await instead")
        return portal.run(function, *args)

    def bind_model(
        self,
        alias: str,
        spec: ModelSpec,
        client: ModelClient,
        *,
        seed: int = 0,
        dedupe: Dedupe | None = None,
    ) -> CellModel:
        scope = None if self.deadline is None else self.scope
        return CellModel(alias, spec, client, self, seed=seed, dedupe=dedupe, scope=scope)

    @property
    def readers(self) -> events.Events:
        """The readers of events."""
        return self._services.notify.events

    def emit(self, kind: type[events.Event], **fields: Any) -> None:
        """Emit an event about this cell."""
        self._services.notify.emit(kind, column=self.column, row=self.row, **fields)

    def count_usage(self) -> None:
        """Count the usage so far, although the attempt has not ended: it is paid for."""
        self._services.ledger.spend(self.column, self.usage.take())

    def keep_answers(self, error: BaseException | None) -> bool:
        """Keep the answers for the next attempt, unless the generator's own code raised: then it rejected them.

        True if there are any: the next attempt need not send these calls again. What a tool that is not idempotent
        returned is kept in any case.
        """
        task = self._task
        self.record_answers()
        task.answers = {**(task.answers or {}), **{key(): answer for key, answer in self._answers}}
        if not isinstance(error, CellTimeout | RateLimited) and (error is None or error is not self._failure):
            task.reject_answers()
            return False
        return bool(task.answers)

    def record_answers(self) -> None:
        """Store the answers of a cell that has not ended: they must outlive this run."""
        # An attempt that reuses the answers will not report their usage.
        self.count_usage()
        journal = self._group.journal
        if journal is not None:
            spent = self._task.spent + self.usage.total
            for key, answer in self._answers[self._recorded :]:
                journal.answered(self._task, key(), answer, spent)
        self._recorded = len(self._answers)

    async def first_available(self, tries: Sequence[tuple[str, Callable[[], Awaitable[T]]]]) -> T:
        services = self._services
        config, availability, throttle = services.plan.config, services.availability, services.throttle
        *others, (last_key, last) = tries
        for key, function in others:
            if availability.passes_over(key, services.now()) or throttle(key).pause_left > config.fallback_after:
                continue
            for is_retry in (False, True):
                self._falls_back = True
                try:
                    result = await function()
                except RateLimited:
                    # After a short one, and at the end of the run, the cell returns to its lane.
                    if not self._limited_for_long:
                        raise
                    break
                except BadOutput:
                    availability.answered(key)  # it is there, and may fit for other rows
                    break
                except Retryable as error:
                    if is_retry or error.code == "unreachable":
                        availability.failed(key, services.now())
                        break
                    base = backoff_base(throttle(key).mean_latency, config.backoff_base)
                    with self._timeout_suspended():
                        await trio.sleep(backoff_delay(1, base, config.backoff_max, services.shared.rng))
                else:
                    availability.answered(key)
                    return result
                finally:
                    self._falls_back = False
        result = await last()
        availability.answered(last_key)
        return result

    async def call(
        self,
        send: Callable[[], Awaitable[T]],
        *,
        key: str | None = None,
        tokens: int = 0,
        idempotency_key: Callable[[], bytes] | None = None,
        report: Callable[[Any], None] | None = None,
        confirm: Callable[[], Awaitable[object]] | None = None,
    ) -> T:
        """As in `CellContext`; `report` reports the usage of an answer, before the permit is settled by it.

        `confirm` sends a small call of the same model, after a failure that may be one of its configuration.
        """
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
            before = self.usage.total.tokens
            sent = services.now()
            try:
                try:
                    answer = await send()
                    if report is not None:
                        report(answer)
                finally:
                    self.called += services.now() - sent
            except RateLimited as error:
                rate_limits += 1
                delay = self._note_rate_limit(permit, error, rate_limits)
                if not self._answered or self._limited_for_long:
                    self.retry_delay = delay
                    raise
                with self._timeout_suspended():
                    await trio.sleep(delay)
            except BaseException as error:
                try:
                    await self._note_failure(error, confirm, report)
                finally:
                    permit.finished(self.usage.total.tokens - before or None)
                raise
            else:
                permit.accepted(self.usage.total.tokens - before or None)
                self._answered = True
                if idempotency_key is not None:
                    self._answers.append((idempotency_key, answer))
                    if services.recorder is not None:
                        services.recorder.answered(self)
                return answer

    async def run_tool(
        self, name: str, run: Callable[[], Awaitable[str]], *, key: bytes, is_idempotent: bool = True
    ) -> str:
        task = self._task
        key = key if is_idempotent else RUN_ONCE + key
        if task.answers and key in task.answers:
            await trio.lowlevel.checkpoint()
            known: str | None = task.answers[key]
            if known is None:
                raise Permanent(
                    f"tool {name!r} was started, but its result is not known, and it is not idempotent: it is not run "
                    "again; see what it has done, then retry the row with --retry-dropped, or leave it out"
                )
            return known
        # After answers of an earlier attempt the permit of this one is unused; other cells call while the tool runs.
        self.give_back()
        if not is_idempotent:
            await self._intend(name, key)
            task.answers = {**(task.answers or {}), key: None}
        try:
            result = await run()
        except Retryable as error:
            self._failure = error
            raise
        # Also for this attempt: the generator may ask another model from the start.
        task.answers = {**(task.answers or {}), key: result}
        self._answers.append((lambda: key, result))
        if self._services.recorder is not None:
            self._services.recorder.answered(self)
        return result

    async def _intend(self, name: str, key: bytes) -> None:
        """Make durable that a tool is about to run; the run stops if that is impossible."""
        services, journal, problem = self._services, self._group.journal, ""
        if journal is not None:
            self.record_answers()  # of the model that calls the tool
            try:
                await journal.intend(self._task, key)
            except StoreError as error:
                problem = str(error)
        elif services.store is not None:
            problem = (
                f"tool {name!r} is not idempotent, and with durability 'row_group' a resumed run would not know that "
                "it has run; set durability to 'cell'"
            )
        if problem:
            services.scheduler.stop(BuildStopped(f"column {self.column!r}: {problem}"))
            services.wake()
            # Flow control and not a failure: the row is unfinished and not dropped.
            raise RateLimited(problem)

    def _note_rate_limit(self, permit: Permit, error: RateLimited, count: int) -> float:
        """End the permit of a rate-limited call; returns how long to wait. Stops the run when patience ends."""
        services = self._services
        try:
            delay = permit.rate_limited(error, count)
        except QuotaExhausted as exhausted:
            if self._falls_back:
                self._limited_for_long = True
                return 0.0
            services.scheduler.stop(exhausted)
            services.wake()
            raise error from exhausted
        limited_for = services.throttle(permit.key).limited_for if self._falls_back else 0.0
        self._limited_for_long = self._falls_back and max(delay, limited_for) > services.plan.config.fallback_after
        return delay

    async def _note_failure(
        self,
        error: BaseException,
        confirm: Callable[[], Awaitable[object]] | None,
        report: Callable[[Any], None] | None,
    ) -> None:
        """Note a failed call. Stops the run if the model is misconfigured and a small call of it fails in the same way.

        If the small call succeeds, the row alone has failed.
        """
        if isinstance(error, Retryable):
            self._failure = error
        if not isinstance(error, ModelMisconfigured):
            return
        if not error.blames_no_row:
            if confirm is None:
                return
            # One at a time: the first that fails stops the run, and the others need not ask.
            async with self._services.confirming:
                if self._services.scheduler.stopping is None and await self._confirmed(confirm, report):
                    return
        stopped = BuildStopped(f"column {self.column!r}: {error}")
        stopped.__cause__ = error
        self._services.scheduler.stop(stopped)
        self._services.wake()
        # Flow control and not a failure: the row is unfinished and not dropped.
        raise RateLimited(str(error)) from error

    async def _confirmed(self, confirm: Callable[[], Awaitable[object]], report: Callable[[Any], None] | None) -> bool:
        """True if a small call of the same model succeeds."""
        try:
            answer = await confirm()
        except ModelMisconfigured:
            return False
        if report is not None:
            report(answer)
        return True

    async def _permit(self, key: str, tokens: int) -> Permit:
        """The permit that the task was started with, or another one; and the expected usage of the call is reserved."""
        task = self._task
        if self._answered and self.scope is not None and self.deadline is not None:
            self.scope.deadline, self.deadline = self.deadline, None
        if task.permit is not None and key == task.permit.key:
            permit, task.permit = task.permit, None
        else:
            # Two tasks that each hold a permit of one key and wait for one of the other would wait for ever.
            self.give_back()
            permit = await self._another_permit(key, tokens)
        if self._services.shared.budget.limited:
            # Reserve the expected usage of the call, or stop the run before it.
            exceeded = self._services.scheduler.reserve(task, self.usage.total, tokens, key)
            if exceeded is not None:
                permit.finished()
                self._services.wake()
                # Flow control and not a failure: the row is unfinished and not dropped.
                raise RateLimited(str(exceeded)) from exceeded
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

    def give_back(self) -> None:
        permit, self._task.permit = self._task.permit, None
        if permit is not None:
            permit.unused()
            self._services.wake()

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


@attrs.define(eq=False)
class CellModel:
    """The engine's side of `columns.Model`, created for each cell.

    `scope` is the cell's where it carries the deadline of the first chat. With `dedupe` a chat that was sent before is
    answered from there, without a permit and without tokens.
    """

    alias: str
    _spec: ModelSpec
    _client: ModelClient
    _context: Context
    _seed: int = 0
    _dedupe: Dedupe | None = None
    _scope: trio.CancelScope | None = None
    _calls: int = attrs.field(init=False, default=0)  # so far; each call draws anew

    @property
    def sync(self) -> SyncModel:
        return SyncModel(self, self._context)

    async def chat(self, prompt: str | Sequence[Message], **options: Any) -> str:
        answer: ChatAnswer = await self.complete(prompt, **options)
        return answer.text

    # Not a coroutine around that of the context: each one costs whenever the call resumes (overhead benchmark).
    @anywhere
    def complete(
        self,
        prompt: str | Sequence[Message],
        *,
        system: str | None = None,
        images: Iterable[Image] = (),
        schema: Mapping[str, Any] | None = None,
        tools: Sequence[Tool] = (),
        **parameters: Any,
    ) -> Coroutine[Any, Any, ChatAnswer]:
        if isinstance(prompt, str):
            messages = [Message(role="user", content=prompt, images=tuple(images))]
        else:
            messages = list(prompt)
        if system is not None:
            messages.insert(0, Message(role="system", content=system))
        parts, drawn = self._draw(parameters)
        scope, self._scope = self._scope, None
        request = ChatRequest(
            messages=tuple(messages), parameters=drawn, schema=schema, tools=tuple(tools), seed_parts=parts, scope=scope
        )
        key, context = self._spec.key("chat"), self._context
        # No closures on this way: what they capture is allocated by every call (overhead benchmark).
        send: Callable[[], Awaitable[ChatAnswer]] = partial(self._client.chat, request)
        if context.readers.wants_prompts or context.readers.wants_calls:
            send = self._reported(send, "chat", messages)
        same, confirm = request.idempotency_key, self._confirm_chat
        if self._dedupe is None:
            return context.call(send, key=key, idempotency_key=same, report=self._report, confirm=confirm)
        # While another cell waits for the same answer, or if it is stored already, this one needs no permit.
        shared = request_key(key, request)
        if self._dedupe.knows(shared):
            context.give_back()
        return self._dedupe.once(
            shared, partial(context.call, send, key=key, idempotency_key=same, report=self._report, confirm=confirm)
        )

    @anywhere
    async def embed(self, texts: Sequence[str], **parameters: Any) -> list[list[float]]:
        parts, drawn = self._draw(parameters)
        messages = [Message(role="text", content=text) for text in texts]
        answer: EmbeddingAnswer = await self._context.call(
            self._reported(partial(self._client.embed, texts, drawn), "embedding", messages),
            key=self._spec.key("embedding"),
            idempotency_key=lambda: call_key(stable_seed(*parts), list(texts), drawn),
            report=self._report,
            confirm=partial(send_small_call, self._client, "embedding"),
        )
        return [list(vector) for vector in answer.vectors]

    @anywhere
    async def image(self, prompt: str, **parameters: Any) -> Image:
        parts, drawn = self._draw(parameters)
        answer: ImageAnswer = await self._context.call(
            self._reported(partial(self._client.image, prompt, drawn), "image", [Message(role="user", content=prompt)]),
            key=self._spec.key("image"),
            idempotency_key=lambda: call_key(stable_seed(*parts), prompt, drawn),
            report=self._report,
            confirm=partial(send_small_call, self._client, "image"),
        )
        return answer.images[0]

    def _draw(self, given: Mapping[str, Any]) -> tuple[tuple[object, ...], dict[str, Any]]:
        """What the seed of the next call is computed from, and its parameters with the sampled ones drawn.

        The attempt does not count: a retried cell sends the same request.
        """
        self._calls += 1
        context = self._context
        context.model = self.alias
        parts = (self._seed, context.column, context.drawn_for, self.alias, self._calls)
        parameters = {**self._spec.parameters, **given}
        for name, value in parameters.items():
            if is_distribution(value):
                parameters[name] = draw(value, random.Random(stable_seed(stable_seed(*parts), name)))
        return parts, parameters

    def _reported(
        self, send: Callable[[], Awaitable[A]], operation: str, messages: Sequence[Message]
    ) -> Callable[[], Awaitable[A]]:
        """The same call, with events for readers that want calls or their texts."""
        context, readers = self._context, self._context.readers
        texts = tuple((each.role, each.content) for each in messages) if readers.wants_prompts else ()
        if texts:
            context.emit(events.ModelCalled, model=self.alias, messages=texts)
        return partial(self._send_and_report, send, operation, texts) if readers.wants_calls else send

    async def _send_and_report(
        self, send: Callable[[], Awaitable[A]], operation: str, texts: tuple[tuple[str, str], ...]
    ) -> A:
        spec, began = self._spec, trio.current_time()
        answer: A | None = None
        failure = "cancelled"
        try:
            answer = await send()
        except Exception as error:
            failure = type(error).__name__
            raise
        else:
            return answer
        finally:
            usage = Usage() if answer is None else usage_of(spec, answer.tokens)
            self._context.emit(
                events.CallFinished,
                alias=self.alias,
                model=spec.model,
                provider=getattr(spec, "type", type(spec).__name__),
                address=server_of(getattr(spec, "base_url", None)),
                operation=operation,
                seconds=trio.current_time() - began,
                error=failure if answer is None else None,
                input_tokens=usage.input_tokens,
                cached_tokens=usage.cached_tokens,
                output_tokens=usage.output_tokens,
                cost=usage.cost,
                messages=texts,
                answer=getattr(answer, "text", "") if texts else "",
            )

    async def _confirm_chat(self) -> object:
        return await send_small_call(self._client, "chat")

    def _report(self, answer: ChatAnswer | EmbeddingAnswer | ImageAnswer) -> None:
        self._context.add_usage(self.alias, usage_of(self._spec, answer.tokens))
