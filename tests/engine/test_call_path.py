"""How deep a model call is in the engine: what each resumption of it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

import seedbed as sb
from seedbed.testing import serve_openai

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_FRAMES = 8


def all_tasks() -> Iterator[trio.lowlevel.Task]:
    """Every task of this run."""
    root = trio.lowlevel.current_root_task()
    found = [root] if root is not None else []
    while found:
        task = found.pop()
        yield task
        found += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def frames_of(task: trio.lowlevel.Task) -> list[str]:
    """The coroutines of seedbed and of the column that a waiting task is in, outermost first."""
    names = []
    awaited: Any = task.coro
    while hasattr(awaited, "cr_code"):
        module = awaited.cr_frame.f_globals["__name__"]
        if module.partition(".")[0] != "trio":
            names.append(f"{module}.{awaited.cr_code.co_qualname}")
        awaited = awaited.cr_await
    return names


async def frames_while_waiting(column: Any, model: str, out: Path) -> list[str]:
    """The coroutines of a cell's task while its call waits for the server."""
    async with serve_openai(latency=30.0) as server, trio.open_nursery() as nursery:
        recipe = sb.Recipe(models={model: sb.OpenAICompatible(base_url=server.url, model="m")}, columns=[column])

        async def build() -> None:
            await sb.build_async(recipe, rows=1, out=out)

        nursery.start_soon(build)
        while True:
            await trio.sleep(0.01)
            waiting = [task for task in all_tasks() if task.name == "question"]
            if waiting and any("send" in name for name in frames_of(waiting[0])):
                break
        await trio.testing.wait_all_tasks_blocked()
        frames = frames_of(waiting[0])
        nursery.cancel_scope.cancel(reason="the test has seen enough")
    return frames


async def test_the_await_of_an_llm_column_is_shallow(tmp_path: Path) -> None:
    """From the task's coroutine to the wait for the socket there are at most eight coroutines."""
    column = sb.LLMText("question", model="writer", prompt="Ask.")
    frames = await frames_while_waiting(column, "writer", tmp_path / "out")
    assert frames[-1].endswith("SocketWire.receive")
    assert len(frames) <= MOST_FRAMES, frames
