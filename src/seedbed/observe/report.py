"""What a build did: the frozen report, and the ledger that the engine keeps while it runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..store.records import Drop
    from .trace import TaskTrace


@attrs.frozen(kw_only=True)
class Wasted:
    """Work of one column whose result is not in the dataset."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0


@attrs.frozen(kw_only=True)
class Spent:
    """What one column reported as used."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0


@attrs.frozen(kw_only=True)
class BuildReport:
    """What a build did. `rows` is what was asked for; every one of them is written, dropped or unfinished."""

    rows: int
    written: int
    dropped: tuple[Drop, ...]
    unfinished: tuple[range, ...]
    skipped_row_groups: tuple[int, ...]
    attempts: Mapping[str, int]
    errors: Mapping[str, int]
    usage: Mapping[str, Spent]
    wasted: Mapping[str, Wasted]
    late_threads: Mapping[str, int]
    running_threads: Mapping[str, int]
    throttles: Mapping[str, Any]
    conflicts: tuple[str, ...]
    seconds: float
    traces: tuple[TaskTrace, ...] = ()

    @property
    def drops_by_reason(self) -> dict[str, int]:
        """How many rows were dropped for each reason, most frequent first."""
        return dict(Counter(drop.reason for drop in self.dropped).most_common())

    def __str__(self) -> str:
        parts = [f"{self.written} of {self.rows} rows", f"{len(self.dropped)} dropped"]
        unfinished = sum(len(each) for each in self.unfinished)
        if unfinished:
            parts.append(f"{unfinished} unfinished")
        if self.running_threads:
            names = ", ".join(f"{name} ({count})" for name, count in self.running_threads.items())
            parts.append(f"threads still running: {names}")
        return ", ".join(parts) + f", {self.seconds:.1f} s"


class Ledger:
    """Counts what happens in one run. Written by the engine on its own thread only."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.late_threads: Counter[str] = Counter()
        # Threads whose task was given up and which have not ended yet.
        self.running_threads: Counter[str] = Counter()
        self.dropped: list[Drop] = []
        self.written = 0
        self.skipped: list[int] = []
        self.conflicts: list[str] = []
        self.traces: list[TaskTrace] = []
        self._spent: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])
        self._wasted: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])

    def spend(self, column: str, calls: int, tokens: int, cost: float) -> None:
        """A column reported usage."""
        entry = self._spent[column]
        entry[0] += calls
        entry[1] += tokens
        entry[2] += cost

    def waste(self, column: str, calls: int, tokens: int, seconds: float) -> None:
        """Work of a column came to nothing."""
        entry = self._wasted[column]
        entry[0] += calls
        entry[1] += tokens
        entry[2] += seconds

    def report(
        self, *, rows: int, unfinished: Sequence[range], throttles: Mapping[str, Any], seconds: float
    ) -> BuildReport:
        """The counts so far, frozen."""
        return BuildReport(
            rows=rows,
            written=self.written,
            dropped=tuple(sorted(self.dropped, key=lambda drop: (drop.row, drop.copy))),
            unfinished=tuple(unfinished),
            skipped_row_groups=tuple(sorted(self.skipped)),
            attempts=dict(self.attempts),
            errors=dict(self.errors),
            usage={
                name: Spent(calls=int(calls), tokens=int(tokens), cost=cost)
                for name, (calls, tokens, cost) in self._spent.items()
            },
            wasted={
                name: Wasted(calls=int(calls), tokens=int(tokens), seconds=seconds_)
                for name, (calls, tokens, seconds_) in self._wasted.items()
            },
            late_threads=dict(self.late_threads),
            running_threads={name: count for name, count in self.running_threads.items() if count},
            throttles=dict(throttles),
            conflicts=tuple(self.conflicts),
            seconds=seconds,
            traces=tuple(self.traces),
        )
