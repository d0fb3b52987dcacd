"""Columns whose functions are written for asyncio and its libraries."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from typing import TYPE_CHECKING, Any

import aiohttp
import openai
import polars as pl
import pytest
import sniffio
import trio
from hosts import GUEST_HOSTS, HOSTS, NUMBERS, under_trio, until

import seedbed as sb
from seedbed.models.answers import plausible_text
from seedbed.testing import OpenAIServer, serve_openai_sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")
NO_SALVAGE = sb.RunConfig(salvage_max_rounds=0, shutdown_error_rate=1)


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    """A model server in a thread."""
    with serve_openai_sync() as found:
        yield found


def grow(
    host: Callable[..., Any], columns: list[Any], rows: int, **options: Any
) -> tuple[pl.DataFrame, sb.BuildReport]:
    """Build in memory under a host; the rows and the report."""
    if not isinstance(columns[0], sb.Column):
        columns = sb.Recipe(models=options.pop("models", {}), columns=columns)  # type: ignore[assignment]

    async def main() -> tuple[list[pl.DataFrame], sb.BuildReport]:
        async with sb.open_build(columns, rows=rows, **options) as build:
            return [group.to_polars() async for group in build], build.report

    frames, report = host(main)
    return (pl.concat(frames) if frames else pl.DataFrame()), report


async def ask(url: str, prompt: str) -> str:
    """One call with aiohttp."""
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/chat/completions", json=body) as response:
        answer: str = (await response.json())["choices"][0]["message"]["content"]
        return answer


@HOSTS
def test_aiohttp_and_the_openai_sdk_work_in_columns(host: Callable[..., Any], server: OpenAIServer) -> None:
    """Both ask the server in cells, on the host's loop if it is asyncio's and on one loop of ours if it is not."""
    loops: set[object] = set()
    threads: set[str] = set()

    @sb.column(runtime="asyncio")
    async def by_hand(topic: str) -> str:
        loops.add(asyncio.get_running_loop())
        threads.add(threading.current_thread().name)
        assert sniffio.current_async_library() == "asyncio"
        return await ask(server.url, topic)

    @sb.column(runtime="asyncio")
    async def by_sdk(topic: str) -> str:
        loops.add(asyncio.get_running_loop())
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none") as client:
            answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": topic}])
        return answer.choices[0].message.content or ""

    frame, _ = grow(host, [sb.Category("topic", values=["tea", "rain"]), by_hand, by_sdk], 6)
    for row in frame.iter_rows(named=True):
        assert row["by_hand"] == row["by_sdk"] == plausible_text(row["topic"])
    assert len(loops) == 1
    assert (threads == {"MainThread"}) == ("asyncio" in host.__name__ or "uvloop" in host.__name__)


def test_the_loop_of_ours_ends_with_the_run() -> None:
    """After a build under trio the asyncio loop is closed and its thread is free."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def look(n: int) -> int:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return n

    for _ in range(2):
        grow(under_trio, [NUMBERS, sb.Column("x", look, runtime="asyncio")], 3)
    assert len(set(loops)) == 2
    assert all(loop.is_closed() for loop in loops)


@HOSTS
def test_models_work_in_asyncio_functions(host: Callable[..., Any], server: OpenAIServer) -> None:
    """Calls of a model from asyncio, several at once, take their permits, report their use and answer."""

    @sb.column(runtime="asyncio")
    async def pair(topic: str, writer: sb.Model, context: sb.CellContext) -> str:
        answers = await asyncio.gather(writer.chat(topic), writer.chat(f"{topic} again"))
        vectors = await writer.embed([topic])
        assert len(vectors) == 1
        assert context.column == "pair"
        return " | ".join(answers)

    models = {"writer": sb.OpenAICompatible(base_url=server.url, model="m", max_parallel_requests=1)}
    frame, report = grow(host, [sb.Category("topic", values=["tea"]), pair], 3, models=models)
    expected = f"{plausible_text('tea')} | {plausible_text('tea again')}"
    assert frame["pair"].to_list() == [expected] * 3
    assert report.usage["pair"].calls == 9


@HOSTS
def test_a_call_of_the_context_is_made_on_asyncio_under_a_permit(host: Callable[..., Any]) -> None:
    """`CellContext.call` takes permits on trio's side and sends on asyncio's; rate limits requeue the cell."""
    flying = [0, 0]
    refusals = [2]

    async def send() -> str:
        flying[0] += 1
        flying[1] = max(flying)
        await asyncio.sleep(0.001)
        flying[0] -= 1
        if refusals[0]:
            refusals[0] -= 1
            raise sb.RateLimited("later", retry_after=0.001)
        return sniffio.current_async_library()

    async def call(n: int, context: sb.CellContext) -> str:
        context.give_back()
        return await context.call(send, key="inner") + str(context.row)

    columns = [NUMBERS, sb.Column("x", call, key="outer", other_keys=["inner"], runtime="asyncio")]
    frame, report = grow(host, columns, 5, limits={"inner": sb.KeyLimits(max_parallel_requests=2)})
    assert frame["x"].to_list() == [f"asyncio{n}" for n in range(5)]
    assert not report.dropped
    assert flying == [0, 2]


@HOSTS
@pytest.mark.parametrize("where", ["cell_timeout", "timeout"])
def test_a_timeout_reaches_aiohttp(host: Callable[..., Any], where: str, server: OpenAIServer) -> None:
    """A call that hangs is cancelled when the cell's time has ended; the function unwinds before the row is dropped."""
    said: list[str] = []

    async def hangs(n: int) -> str:
        try:
            return await ask(server.url, "[[hang]]")
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            said.append("unwound")
            raise

    column = sb.Column("x", hangs, runtime="asyncio", timeout=0.05 if where == "timeout" else None)
    config = sb.RunConfig(cell_timeout=0.05, salvage_max_rounds=0, shutdown_error_rate=1)
    _, report = grow(host, [NUMBERS, column], 2, config=NO_SALVAGE if where == "timeout" else config)
    assert [drop.error for drop in report.dropped] == ["CellTimeout: no result after 0.05 s"] * 2
    assert said == ["unwound"] * 2


@HOSTS
def test_dropping_a_row_cancels_its_asyncio_cells(host: Callable[..., Any]) -> None:
    """When one cell of a row fails for good, the task of the other is cancelled before the build ends."""
    said: list[str] = []

    async def waits(n: int) -> int:
        said.append("waits")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            said.append("unwound")
        return n

    async def fails(n: int) -> int:
        await until(lambda: said)
        raise sb.Permanent("no")

    columns = [NUMBERS, sb.Column("w", waits, runtime="asyncio"), sb.Column("f", fails, runtime="asyncio")]
    _, report = grow(host, columns, 1, config=NO_SALVAGE)
    assert [drop.error for drop in report.dropped] == ["no"]
    assert said == ["waits", "unwound"]


@HOSTS
def test_errors_of_asyncio_functions_are_classified_as_usual(host: Callable[..., Any]) -> None:
    """Retryable errors are retried, others drop their row, and an exit ends the program, not the loop."""
    tries: list[int] = []

    async def fickle(n: int) -> int:
        tries.append(n)
        await asyncio.sleep(0)
        if n == 0 and tries.count(0) == 1:
            raise ConnectionError("once")
        if n == 1:
            raise ValueError("never")
        return n

    column = sb.Column("x", fickle, runtime="asyncio", retry_on=ConnectionError)
    frame, report = grow(host, [NUMBERS, column], 3, config=sb.RunConfig(shutdown_error_rate=1))
    assert frame["x"].to_list() == [0, 2]
    assert [drop.error.partition(" (")[0] for drop in report.dropped] == ["ValueError: never"]

    async def leaves(n: int) -> int:
        await asyncio.sleep(0)
        sys.exit(4)

    with pytest.raises(SystemExit, match="4"):
        grow(host, [NUMBERS, sb.Column("x", leaves, runtime="asyncio")], 1)


@HOSTS
def test_a_task_that_other_code_cancels_is_retried(host: Callable[..., Any]) -> None:
    """A cancellation that is not ours is a failure of that attempt and not of the build."""
    cancelled: list[int] = []

    async def cancels_itself(n: int) -> int:
        if not cancelled:
            cancelled.append(n)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)
        return n

    frame, _ = grow(host, [NUMBERS, sb.Column("x", cancels_itself, runtime="asyncio")], 2)
    assert frame["x"].to_list() == [0, 1]


@GUEST_HOSTS
def test_a_loop_that_ends_does_not_drop_rows(host: Callable[..., Any], tmp_path: Path) -> None:
    """When the host cancels all its tasks, the build is cancelled and no row counts as failed."""
    waiting = [0]

    async def waits(n: int) -> int:
        waiting[0] += 1
        await asyncio.Event().wait()
        return n

    async def main() -> asyncio.Task[object]:
        columns = [NUMBERS, sb.Column("x", waits, runtime="asyncio")]
        task = asyncio.create_task(sb.build_async(columns, rows=3, out=tmp_path / "out", config=NO_SALVAGE))
        await until(lambda: waiting[0] == 3)
        return task

    assert host(main).cancelled()
    dataset = sb.Dataset.open(tmp_path / "out")
    assert (dataset.rows, list(dataset.drops)) == (0, [])


@HOSTS
def test_full_columns_and_objects_may_be_asyncio(host: Callable[..., Any]) -> None:
    """Functions for whole columns, from scratch, and objects with a state run on asyncio as those for cells do."""

    async def scratch(rows: range) -> list[int]:
        await asyncio.sleep(0)
        return list(rows)

    async def whole(frame: pl.DataFrame) -> list[int]:
        await asyncio.sleep(0)
        return [2 * n for n in frame["n"]]

    class Counts:
        is_stateful = True

        def __init__(self) -> None:
            self._count = 0

        async def agenerate(self, n: int) -> int:
            await asyncio.sleep(0)
            self._count += 1
            return self._count

    columns = [
        sb.Column("n", scratch, kind="from_scratch", runtime="asyncio"),
        sb.Column("whole", whole, kind="full_column", requires=["n"], runtime="asyncio"),
        sb.Column("count", Counts(), runtime="asyncio"),
    ]
    frame, _ = grow(host, columns, 3)
    assert frame.rows() == [(0, 0, 1), (1, 2, 2), (2, 4, 3)]


@HOSTS
def test_context_variables_and_builds_inside_a_cell(host: Callable[..., Any]) -> None:
    """A cell on asyncio sees its caller's context, and may await another build, which runs in the same trio run."""
    tokens: set[object] = set()

    async def token(n: int) -> int:
        tokens.add(trio.lowlevel.current_trio_token())
        return n

    async def nested(n: int) -> str:
        async with sb.open_build([NUMBERS, sb.Column("t", token)], rows=n + 1) as build:
            report = await build.wait()
        return f"{COLOUR.get()} {report.written}"

    def run() -> list[str]:
        COLOUR.set("blue")
        columns = [NUMBERS, sb.Column("t", token), sb.Column("x", nested, runtime="asyncio")]
        found: list[str] = grow(host, columns, 2)[0]["x"].to_list()
        return found

    assert contextvars.Context().run(run) == ["blue 1", "blue 2"]
    assert len(tokens) == 1


@HOSTS
def test_tasks_that_a_function_leaves_behind_end_with_it(host: Callable[..., Any], server: OpenAIServer) -> None:
    """A task that outlives its cell's function and still calls a model gets an error: the cell has ended."""
    ended: list[BaseException] = []

    @sb.column(runtime="asyncio")
    async def hasty(topic: str, writer: sb.Model) -> str:
        async def late() -> None:
            try:
                await asyncio.sleep(0)
                await writer.chat("[[hang]]")
            except BaseException as error:
                ended.append(error)
                raise

        hasty_tasks.append(asyncio.create_task(late()))
        await asyncio.sleep(0.01)
        return topic

    hasty_tasks: list[asyncio.Task[None]] = []
    models = {"writer": sb.OpenAICompatible(base_url=server.url, model="m")}
    frame, _ = grow(host, [sb.Category("topic", values=["tea"]), hasty], 1, models=models)
    assert frame["hasty"].to_list() == ["tea"]
    assert len(ended) == 1


async def test_virtual_time_stands_still_while_asyncio_works(autojump_clock: trio.testing.MockClock) -> None:
    """A clock that jumps waits for the thread of an asyncio function, and jumps while that waits for a model."""

    @sb.column(runtime="asyncio", timeout=7200)
    async def answer(topic: str, writer: sb.Model) -> str:
        await asyncio.sleep(0.02)  # real time: nothing else runs meanwhile
        return await writer.chat(topic)

    recipe = sb.Recipe(
        models={"writer": sb.Scripted(latency=3600.0)}, columns=[sb.Category("topic", values=["a"]), answer]
    )
    async with sb.open_build(recipe, rows=2) as build:
        report = await build.wait()
    assert report.written == 2
    assert 3600 <= trio.current_time() < 7200


def not_async(n: int) -> int:
    """Fill a cell in a thread."""
    return n


async def is_async(n: int) -> int:
    """Fill a cell."""
    return n


@pytest.mark.parametrize(
    ("function", "runtime", "message"),
    [
        (not_async, "asyncio", "column 'x' has runtime='asyncio', which is for async functions"),
        (not_async, "trio", "column 'x' has runtime='trio', which is for async functions"),
        (is_async, "twisted", "column 'x' has runtime='twisted'; allowed are 'asyncio', 'trio'"),
    ],
)
def test_an_impossible_runtime_is_rejected(function: Any, runtime: str, message: str) -> None:
    """The start-up check names the column, what it has and what is allowed."""
    with pytest.raises(sb.DatasetGenerationError, match=message):
        sb.preview([NUMBERS, sb.Column("x", function, runtime=runtime)])


def test_a_recipe_rejects_an_impossible_runtime() -> None:
    """The decorator and the recipe say it as well, with models or without."""
    with pytest.raises(sb.ConfigError, match="runtime must be 'asyncio' or 'trio', not 'twisted'"):
        sb.column(runtime="twisted")(is_async)  # type: ignore[call-overload]

    @sb.column(runtime="asyncio")
    def threaded(topic: str, writer: sb.Model) -> str:
        return topic

    recipe = sb.Recipe(models={"writer": sb.Scripted()}, columns=[sb.Category("topic", values=["a"]), threaded])
    with pytest.raises(sb.SeedbedError, match="column 'threaded' has runtime='asyncio', which is for async functions"):
        sb.preview(recipe)


@HOSTS
def test_the_error_of_asyncio_code_on_trio_names_the_option(host: Callable[..., Any]) -> None:
    """A function is never guessed to be asyncio's, and the reason of its drop says what to write."""

    async def plain(n: int) -> int:
        await asyncio.sleep(0.001)
        return n

    _, report = grow(host, [NUMBERS, sb.Column("x", plain)], 1, config=NO_SALVAGE)
    assert "written for asyncio: pass runtime='asyncio' to the column" in report.dropped[0].error
