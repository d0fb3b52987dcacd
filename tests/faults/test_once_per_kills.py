"""A build with shared answers and several models, killed at its fault points in virtual time, and resumed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from harness import check_frame, without_repeats
from snapshots import hooked
from trio.testing import MockClock

import seedbed as sb
from seedbed.columns.base import CellContext  # noqa: TC001 - the engine reads the annotation

if TYPE_CHECKING:
    from pathlib import Path

ROWS, ACCOUNTS, BAD = 14, 4, 3
INTERVAL = 0.05  # the default of `commit_interval`


@attrs.define(eq=False)
class World:
    """The models: what they were asked, and when they answered, by key."""

    asked: list[object] = attrs.Factory(list)
    delivered: dict[object, float] = attrs.Factory(dict)

    async def _call(self, context: CellContext, what: object, seconds: float, model: str) -> str:
        async def send() -> str:
            self.asked.append(what)
            await trio.sleep(seconds)
            self.delivered[what] = trio.current_time()
            context.report_usage(model=model, input_tokens=3, output_tokens=2, cost=0.5)
            return f"{what}"

        return await context.call(send, key=model, idempotency_key=lambda: repr(what).encode())

    async def profile(self, account: int, context: CellContext) -> str:
        """Two calls for an account: the first answer is not good enough. One account has no profile."""
        await self._call(context, ("draft", account), 0.1, "small")
        text = await self._call(context, ("profile", account), 0.15, "large")
        if account == BAD:
            raise sb.Permanent("closed", code="closed_account")
        return text

    async def note(self, n: int, profile: str, context: CellContext) -> str:
        """One call for a row."""
        return await self._call(context, ("note", n, profile), 0.02 * (n % 5), "small")

    def columns(self) -> list[sb.Column]:
        return [
            sb.Column("n", lambda rows: [*rows], kind="from_scratch"),
            sb.Column("account", lambda rows: [row % ACCOUNTS for row in rows], kind="from_scratch"),
            sb.Column("profile", self.profile, key="small", other_keys=["large"], once_per="account"),
            sb.Column("note", self.note, key="small"),
        ]


def build(world: World, out: Path, **options: Any) -> sb.Dataset:
    """Begin or continue with the build, in virtual time."""

    async def main() -> sb.Dataset:
        config = sb.RunConfig(buffer_size=3, jitter_seed=1, max_concurrent_row_groups=2)
        return await sb.build_async(world.columns(), rows=ROWS, out=out, config=config, resume=True, **options)

    return trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("offset", [0, 1])
def test_answers_that_rows_share_are_paid_once(offset: int, tmp_path: Path) -> None:
    """Killed at any point: the same rows, drops and provenance, and no answer that was durable is paid for again."""
    with hooked(None):
        expected = build(World(), tmp_path / "whole")
    assert expected.rows == ROWS - len(range(BAD, ROWS, ACCOUNTS))
    world, out = World(), tmp_path / "run"
    snapshots: list[tuple[str, Path, float, dict[object, float]]] = []
    points = 0

    def copy(point: str) -> None:
        nonlocal points
        points += 1
        if points % 4 == offset and out.exists():
            target = tmp_path / f"{points}"
            shutil.copytree(out, target)
            # In a thread of the store, which has no clock: the latest answer is no later than this instant.
            snapshots.append((point, target, max(world.delivered.values(), default=0.0), dict(world.delivered)))

    with hooked(copy):
        build(world, out)
    assert len(snapshots) > 8
    for point, directory, now, delivered in snapshots:
        after = World()
        with hooked(None):
            dataset = build(after, directory)
        check_frame(dataset.to_polars(), expected.to_polars())
        check_frame(without_repeats(dataset.provenance()), without_repeats(expected.provenance()))
        assert {(drop.row, drop.code) for drop in dataset.drops} == {(drop.row, drop.code) for drop in expected.drops}
        durable = {what for what, when in delivered.items() if when < now - INTERVAL - 1e-6}
        assert not durable & set(after.asked), f"paid for again after a kill at {point!r}"
        assert len(after.asked) == len(set(after.asked)), f"paid for twice after a kill at {point!r}"
