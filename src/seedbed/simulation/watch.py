"""Looks at the limits of a run now and then, in its own time, and says which of them it waited for."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..engine.run import Run

# Looks that are kept; when there are more, every other one is forgotten and the next ones come half as often.
_MOST = 800
_FIRST = 0.05
# What the timeline is drawn from.
BUCKETS = 120

SLOTS, BUDGET, ADMISSION = "execution slots", "submission budget", "row-group admission"


@attrs.frozen(slots=True)
class _Key:
    in_flight: int
    limit: int
    waiting: int


@attrs.frozen(slots=True)
class _Look:
    time: float
    keys: dict[str, _Key]
    submitted: int
    active: int
    queued: int
    groups: int
    more: bool  # there are row groups that are not admitted
    free: bool  # neither the budget nor the slots are used up


@attrs.frozen(kw_only=True)
class KeyLoad:
    """How a throttle key was used, in shares of the run's time.

    `busy`: calls in flight, of those allowed by the ceiling. `at_limit`: as many in flight as the key allowed at the
    time. `held_up`: that, and something waited for it. `paced`: something waited although fewer were in flight: rates
    per minute, or a pause after refusals. `limit` is what the throttle allowed on average.
    """

    key: str
    ceiling: int
    limit: float
    busy: float
    at_limit: float
    held_up: float
    paced: float


@attrs.frozen(kw_only=True)
class LimitLoad:
    """How another limit was used: on average, and the share of time at which it was all used and held work up."""

    name: str
    allowed: int
    used: float
    held_up: float


@attrs.frozen(kw_only=True)
class Track:
    """Calls in flight of one key over time, in equal parts of the run, beside what was allowed."""

    key: str
    ceiling: int
    in_flight: tuple[float, ...]
    limit: tuple[float, ...]


class Watch:
    """Takes looks while a run goes on, at a random instant of each interval: constant latencies would fool it else."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed).random
        self._looks: list[_Look] = []
        self._run: Run | None = None
        self._ceilings: dict[str, int] = {}

    def started(self, run: Run) -> None:
        """The run is there."""
        self._run = run

    async def keep_looking(self) -> None:
        """Look until cancelled."""
        interval, begins = _FIRST, trio.current_time()
        while True:
            await trio.sleep_until(begins + interval * self._chance())
            if self._run is not None:
                self._look(self._run)
            begins += interval
            if len(self._looks) >= _MOST:
                del self._looks[::2]
                interval *= 2

    def _look(self, run: Run) -> None:
        scheduler, config = run.scheduler, run.plan.config
        counts, groups = scheduler.statistics(), scheduler.groups
        keys: dict[str, _Key] = {}
        for key in run.throttles.keys():  # noqa: SIM118  it is no mapping
            throttle = run.throttles.get(key)
            self._ceilings[key] = throttle.limits.max_parallel_requests
            keys[key] = _Key(throttle.in_flight, throttle.limit, scheduler.waiting(key))
        self._looks.append(
            _Look(
                trio.current_time() - run.started,
                keys,
                counts.submitted,
                counts.active,
                counts.queued,
                len(groups),
                # They are admitted in order.
                max(groups, default=run.plan.group_count) + 1 < run.plan.group_count,
                counts.submitted < config.max_submitted_tasks and counts.active < config.max_active_tasks,
            )
        )

    def key_loads(self) -> tuple[KeyLoad, ...]:
        """How each key was used."""
        return tuple(self._key_load(key, ceiling) for key, ceiling in self._ceilings.items())

    def _key_load(self, key: str, ceiling: int) -> KeyLoad:
        # Before its first call a key is not known to the run, and nobody waits for it.
        unused = _Key(0, ceiling, 0)
        looks = [look.keys.get(key, unused) for look in self._looks]
        free = [look.keys.get(key, unused) for look in self._looks if look.free]
        full = [look for look in looks if look.in_flight >= look.limit > 0]
        count = len(looks) or 1
        return KeyLoad(
            key=key,
            ceiling=ceiling,
            limit=_mean([look.limit for look in looks]),
            busy=_mean([look.in_flight for look in looks]) / ceiling,
            at_limit=len(full) / count,
            held_up=sum(look.waiting > 0 for look in full) / count,
            paced=sum(look.waiting > 0 and (look.in_flight < look.limit or not look.limit) for look in free) / count,
        )

    def limit_loads(self, run: Run) -> tuple[LimitLoad, ...]:
        """How the limits of the run as a whole were used."""
        config, looks = run.plan.config, self._looks
        slots, budget, groups = config.max_active_tasks, config.max_submitted_tasks, config.max_concurrent_row_groups

        def load(name: str, allowed: int, used: Sequence[int], held_up: Sequence[bool]) -> LimitLoad:
            return LimitLoad(name=name, allowed=allowed, used=_mean(used), held_up=_mean(held_up))

        return (
            load(
                SLOTS,
                slots,
                [look.active for look in looks],
                [look.active >= slots and look.queued > 0 for look in looks],
            ),
            load(
                BUDGET,
                budget,
                [look.submitted for look in looks],
                [look.submitted >= budget and look.queued > 0 for look in looks],
            ),
            # Another row group would have had work for a key that had nothing to do.
            load(
                ADMISSION,
                groups,
                [look.groups for look in looks],
                [
                    look.more
                    and look.groups >= groups
                    and not look.queued
                    and any(each.in_flight < each.limit for each in look.keys.values())
                    for look in looks
                ],
            ),
        )

    def tracks(self, seconds: float) -> tuple[Track, ...]:
        """What was in flight of each key in each part of the run."""
        parts: list[list[_Look]] = [[] for _ in range(BUCKETS)]
        for look in self._looks:
            parts[min(BUCKETS - 1, int(look.time / seconds * BUCKETS)) if seconds else 0].append(look)
        return tuple(self._track(key, ceiling, parts) for key, ceiling in self._ceilings.items())

    @staticmethod
    def _track(key: str, ceiling: int, parts: Sequence[Sequence[_Look]]) -> Track:
        in_flight, limit = [0.0], [float(ceiling)]
        for part in parts:
            found = [each for look in part if (each := look.keys.get(key)) is not None]
            # Of a part without a look, what was before it holds.
            in_flight.append(_mean([each.in_flight for each in found]) if found else in_flight[-1] if not part else 0.0)
            limit.append(_mean([each.limit for each in found]) if found else limit[-1])
        return Track(key=key, ceiling=ceiling, in_flight=tuple(in_flight[1:]), limit=tuple(limit[1:]))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
