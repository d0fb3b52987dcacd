"""After an early stop a resume retries what failed because of it, and loses no row to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from engine_helpers import config, seed

from seedbed import Column, EarlyShutdown, Interrupted, Permanent, build_async, open_build

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


@pytest.mark.parametrize("buffer_size", [100, 15])
async def test_too_many_errors_drop_no_row_of_an_open_row_group(
    buffer_size: int, autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A server that begins to reject everything: once it is repaired, the resume has every row, and repeats no call."""
    is_broken, answered = True, list[int]()

    async def answer(n: int) -> int:
        await trio.sleep(1)
        if is_broken and n >= 20:
            raise Permanent("rejected")
        answered.append(n)
        return n

    columns = [seed(), Column("v", answer, key="server"), Column("w", lambda v: v, requires=["v"])]
    options = config(
        buffer_size=buffer_size, shutdown_error_window=10, max_parallel_requests=4, max_concurrent_row_groups=2
    )
    with pytest.raises(EarlyShutdown, match="column 'v': rejected") as stopped:
        await build_async(columns, rows=60, out=tmp_path / "out", config=options)
    assert isinstance(stopped.value.__cause__, Permanent)
    assert stopped.value.report is not None
    assert stopped.value.report.dropped == ()
    is_broken = False
    dataset = await build_async(columns, rows=60, out=tmp_path / "out", config=options, resume=True)
    assert dataset.to_polars()["w"].to_list() == list(range(60))
    assert dataset.drops == ()
    assert sorted(answered) == list(range(60))


async def test_an_earlier_failure_counts_if_the_run_goes_on(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Rows that failed before a stop for another reason stay dropped."""

    async def answer(n: int) -> int:
        await trio.sleep(n)
        if n == 1:
            raise Permanent("not this one")
        if n == 5:
            running.stop()
        return n

    columns = [seed(), Column("v", answer)]
    with pytest.raises(Interrupted):
        async with open_build(columns, rows=20, out=tmp_path / "out", config=config(grace=0)) as running:
            await running.wait()
    dataset = await build_async(
        [seed(), Column("v", answer)], rows=20, out=tmp_path / "out", config=config(), resume=True, accept_changes=True
    )
    assert [drop.row for drop in dataset.drops] == [1]


async def test_what_fails_while_the_run_stops_is_unfinished(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Ctrl-C ends other processes too, on which calls in flight may depend."""
    is_stopping = True

    async def answer(n: int) -> int:
        await trio.sleep(1 + n / 10)
        if n == 0 and is_stopping:
            running.stop()
        elif is_stopping:
            raise Permanent("the helper process has died")
        return n

    columns = [seed(), Column("v", answer)]
    with pytest.raises(Interrupted) as stopped:
        async with open_build(columns, rows=5, out=tmp_path / "out", config=config()) as running:
            await running.wait()
    assert stopped.value.report is not None
    assert (stopped.value.report.dropped, stopped.value.report.errors) == ((), {"v": 4})
    is_stopping = False
    dataset = await build_async(columns, rows=5, out=tmp_path / "out", config=config(), resume=True)
    assert dataset.to_polars()["v"].to_list() == list(range(5))
