"""Fills cells of chat columns without an engine, and builds rows of them with the real engine."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl

import seedbed
from seedbed.columns.spec import Environment, make_column
from seedbed.engine.context import CellModel
from seedbed.models import ChatAnswer, ChatRequest, OpenAICompatible, Scripted, open_models
from seedbed.observe.events import Events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from seedbed.columns.spec import ColumnSpec
    from seedbed.models import ModelSpec
    from seedbed.runtime.throttle import KeyLimits
    from seedbed.testing import OpenAIServer


@attrs.define(eq=False)
class FakeContext:
    """A cell's context without an engine: calls are made as they are and counted."""

    column: str = "x"
    row: int | None = 0
    row_group: int = 0
    attempt: int = 1
    rows: tuple[tuple[int, int], ...] = ()
    calls: int = 0
    model: str = ""

    def answered_by(self, model: str) -> None:
        self.model = model

    def give_back(self) -> None:
        """A fake has no permit."""

    readers = Events()

    @property
    def drawn_for(self) -> object:
        return self.row

    def report_usage(self, **used: Any) -> None:
        """Usage is not counted."""

    def add_usage(self, model: str, usage: Any) -> None:
        """Usage is not counted."""

    async def run_tool(self, name: str, run: Callable[[], Awaitable[str]], **options: Any) -> str:
        """Run it."""
        return await run()

    async def call(
        self,
        send: Callable[[], Awaitable[Any]],
        *,
        key: str | None = None,
        tokens: int = 0,
        idempotency_key: Callable[[], bytes] | None = None,
        report: Callable[[Any], None] | None = None,
        confirm: object = None,
    ) -> Any:
        """Send it."""
        self.calls += 1
        answer = await send()
        if report is not None:
            report(answer)
        return answer

    def bind_model(self, alias: str, spec: Any, client: Any, **options: Any) -> CellModel:
        return CellModel(alias, spec, client, self, **options)  # type: ignore[arg-type]


class Script:
    """Answers of a scripted model in order, the last one repeated; records the requests."""

    def __init__(self, *answers: str | ChatAnswer | Exception) -> None:
        self.requests: list[ChatRequest] = []
        self._answers = list(answers)

    def __call__(self, request: ChatRequest) -> str | ChatAnswer:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def said(self, turn: int = -1) -> list[tuple[str, str]]:
        """The conversation of a call."""
        return [(message.role, message.content) for message in self.requests[turn].messages]


@asynccontextmanager
async def environment(models: dict[str, ModelSpec], **options: Any) -> AsyncIterator[Environment]:
    """An environment with open clients."""
    async with open_models(models) as clients:
        yield Environment(models=models, clients=clients, **options)


async def fill(spec: ColumnSpec, script: Script, /, context: FakeContext | None = None, **values: Any) -> Any:
    """The value of one cell, as the engine would get it."""
    async with environment({"writer": Scripted(answers=script)}) as here:
        return await fill_in(spec, here, context, **values)


async def fill_in(spec: ColumnSpec, here: Environment, context: FakeContext | None = None, /, **values: Any) -> Any:
    """As `fill`, in an open environment."""
    column = make_column(spec, here)
    assert column.problem is None
    assert set(column.inputs) == set(values)
    assert column.call is not None
    return await column.call.function(context or FakeContext(column=spec.name), **values)


def served_by(server: OpenAIServer, **options: Any) -> OpenAICompatible:
    """The model behind a test server."""
    return OpenAICompatible(base_url=server.url, model="test", **options)


@attrs.frozen
class Grown:
    """The rows and the report of a build."""

    frame: pl.DataFrame
    report: seedbed.BuildReport


async def grow_specs(
    specs: Iterable[ColumnSpec | seedbed.Column],
    models: dict[str, ModelSpec],
    *,
    rows: int,
    config: seedbed.RunConfig | None = None,
    **options: Any,
) -> Grown:
    """Build the rows in memory, by the real engine."""
    async with environment(models, **options) as here:
        columns = [each if isinstance(each, seedbed.Column) else make_column(each, here) for each in specs]
        used = {column.key for column in columns}
        limits: dict[str, KeyLimits] = {}
        for model in sorted(models.values(), key=lambda each: each.max_parallel_requests):
            # The largest limit of the aliases that share a key is that of its throttle.
            limits |= {key: model.limits() for key in map(model.key, ("chat", "embedding", "image")) if key in used}
        config = config or seedbed.RunConfig(jitter_seed=1, backoff_base=0.001, backoff_max=0.01)
        async with seedbed.open_build(columns, rows=rows, config=config, limits=limits) as build:
            frames = [group.to_polars() async for group in build]
            return Grown(pl.concat(frames), build.report)


def numbers(name: str = "n") -> seedbed.Column:
    """A column of row numbers."""

    async def count(rows: range) -> list[int]:
        return list(rows)

    return seedbed.Column(name, count, kind="from_scratch", dtype=int)
