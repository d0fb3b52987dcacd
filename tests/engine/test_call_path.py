"""How deep a model call is in the engine: what each resumption of it costs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
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


@pytest.mark.parametrize(
    ("prompt", "timeout", "failure", "seconds"),
    [
        ("[[hang]]", None, r"no answer from 127\.0\.0\.1:\d+ within 7 s", 7),
        ("[[hang]]", 6.0, "no result after 6 s", 6),
        ("Code.", None, "does not fit after 1 repair", 10),
        ("Code.", 9.0, "no result after 9 s", 9),
    ],
)
def test_each_call_of_a_cell_has_its_own_time(
    prompt: str, timeout: float | None, failure: str, seconds: float, tmp_path: Path
) -> None:
    """The cell's scope carries the deadline of its first call only; the timeout of the cell is for all of its calls."""

    async def main() -> None:
        async with serve_openai(latency=5.0, answer="No code.") as server:
            model = sb.OpenAICompatible(base_url=server.url, model="m", timeout=7)
            column = sb.LLMCode("code", model="m", prompt=prompt, language="python", max_repairs=1, timeout=timeout)
            recipe = sb.Recipe(models={"m": model}, columns=[column])
            began = trio.current_time()
            config = sb.RunConfig(salvage_max_rounds=0)
            with pytest.raises(sb.AllRowsDropped) as caught:
                await sb.build_async(recipe, rows=1, out=tmp_path / "out", config=config)
            assert caught.value.report is not None
            (drop,) = caught.value.report.dropped
            assert re.search(failure, drop.error)
            assert trio.current_time() - began == pytest.approx(seconds, abs=0.5)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05))
