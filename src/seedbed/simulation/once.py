"""One simulated run: the true engine on a clock that jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from ..engine.run import run_build
from ..engine.signals import run_in_thread
from ..errors import BuildError
from ..observe.events import Events
from ..runtime.portal import in_event_loop
from .stage import stage
from .watch import KeyLoad, LimitLoad, Track, Watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..engine.run import Run
    from ..observe.report import BuildReport
    from .profiles import Resolved
    from .stage import Setting, Staged


@attrs.frozen(kw_only=True)
class Outcome:
    """What one seed gave."""

    seconds: float
    written: int
    dropped: int
    # By column and model: calls, input tokens, output tokens, cost.
    spent: Mapping[tuple[str, str], tuple[int, int, int, float]]
    refused: Mapping[str, int]  # by key
    keys: tuple[KeyLoad, ...]
    limits: tuple[LimitLoad, ...]
    tracks: tuple[Track, ...]
    # Why it ended early, if it did.
    stopped: str | None
    notes: tuple[str, ...]
    profiles: Mapping[tuple[str, str], Resolved]
    aliases: Mapping[str, tuple[str, ...]]


def simulate_once(setting: Setting, seed: int) -> Outcome:
    """Run one simulation to its end, wherever this is called."""
    staged = stage(setting, seed)
    if not in_event_loop():
        return _run(staged, seed)
    # A loop runs in this thread and cannot run another one.
    results: list[Outcome | BaseException] = []
    cancel: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = []

    def work() -> None:
        try:
            results.append(_run(staged, seed, cancel))
        except BaseException as error:  # noqa: BLE001  it is raised where the simulation was asked for
            results.append(error)

    try:
        run_in_thread(work)
    finally:
        if not results and cancel:  # whoever waits was interrupted
            token, scope = cancel[0]
            token.run_sync_soon(scope.cancel)
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result


def _run(
    staged: Staged, seed: int, cancel: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] | None = None
) -> Outcome:
    # Imported here: it takes longer than all the rest of trio, and nobody else needs it.
    from trio.testing import MockClock  # noqa: PLC0415

    return trio.run(_main, staged, seed, cancel, clock=MockClock(autojump_threshold=0))


async def _main(
    staged: Staged, seed: int, cancel: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] | None
) -> Outcome:
    watch = Watch(seed)
    runs: list[Run] = []
    stopped: str | None = None

    def started(run: Run) -> None:
        runs.append(run)
        watch.started(run)

    async with staged.source.resources(), trio.open_nursery() as nursery:
        if cancel is not None:
            cancel.append((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
        nursery.start_soon(watch.keep_looking)
        try:
            report = await run_build(
                staged.plan, store=None, emitter=Events(), deliver=lambda _: None, on_start=started
            )
        except BuildError as error:
            if error.report is None:
                raise
            report, stopped = error.report, str(error)
        nursery.cancel_scope.cancel(reason="the simulated run is over")
    return _outcome(staged, report, runs[0], watch, stopped)


def _outcome(staged: Staged, report: BuildReport, run: Run, watch: Watch, stopped: str | None) -> Outcome:
    return Outcome(
        seconds=report.seconds,
        written=report.written,
        dropped=len(report.dropped),
        spent=dict(run.ledger.spent),
        refused={key: throttle.refused for key, throttle in report.throttles.items()},
        keys=watch.key_loads(),
        limits=watch.limit_loads(run),
        tracks=watch.tracks(report.seconds),
        stopped=stopped,
        notes=tuple(staged.notes),
        profiles=staged.profiles,
        aliases=staged.aliases,
    )
