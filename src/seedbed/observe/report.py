"""What a build did: the frozen report, and the ledger that the engine keeps while it runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    """What was reported as used."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@attrs.frozen(kw_only=True)
class BuildReport:
    """What a build did.

    `rows` is what was asked for; these and the rows that processors `added` are written, dropped, unfinished or
    `removed` by a processor.
    """

    rows: int
    written: int
    dropped: tuple[Drop, ...]
    unfinished: tuple[range, ...]
    skipped_row_groups: tuple[int, ...]
    attempts: Mapping[str, int]
    errors: Mapping[str, int]
    usage: Mapping[str, Spent]  # by column
    model_usage: Mapping[str, Spent]  # by model, where a call said which
    wasted: Mapping[str, Wasted]
    late_threads: Mapping[str, int]
    running_threads: Mapping[str, int]
    throttles: Mapping[str, Any]
    conflicts: tuple[str, ...]
    seconds: float
    # Finished cells that no crash can take: committed to the journal, or in a part where there is none; and how many of
    # them were taken over from the journal of earlier runs.
    durable: int = 0
    restored: int = 0
    # What was found damaged in the directory that the build went on with, and made again.
    damage: tuple[str, ...] = ()
    # Rows that processors took out and added, of all runs.
    removed: int = 0
    added: int = 0
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
        self.removed = 0
        self.added = 0
        self.skipped: list[int] = []
        self.conflicts: list[str] = []
        self.durable = 0
        self.restored = 0
        self.damage: tuple[str, ...] = ()
        self.traces: list[TaskTrace] = []
        # By column and model: calls, input tokens, output tokens, cost; of earlier runs of this dataset too.
        self.spent: defaultdict[tuple[str, str], tuple[int, int, int, float]] = defaultdict(lambda: (0, 0, 0, 0.0))
        self._wasted: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])

    def spend(self, column: str, usage: Mapping[str, tuple[int, int, int, float]]) -> None:
        """A column reported what it used of each model."""
        for model, (calls, input_tokens, output_tokens, cost) in usage.items():
            before = self.spent[column, model]
            self.spent[column, model] = (
                before[0] + calls,
                before[1] + input_tokens,
                before[2] + output_tokens,
                before[3] + cost,
            )

    def _spent_by(self, part: int) -> dict[str, Spent]:
        """What was spent, by column (part 0 of the key) or by model (part 1)."""
        names = dict.fromkeys(key[part] for key in self.spent if key[part])
        entries = {name: [entry for key, entry in self.spent.items() if key[part] == name] for name in names}
        return {
            name: Spent(
                calls=sum(entry[0] for entry in of),
                input_tokens=sum(entry[1] for entry in of),
                output_tokens=sum(entry[2] for entry in of),
                cost=sum(entry[3] for entry in of),
            )
            for name, of in entries.items()
        }

    def waste(self, column: str, calls: int, tokens: int, seconds: float) -> None:
        """Work of a column came to nothing."""
        entry = self._wasted[column]
        entry[0] += calls
        entry[1] += tokens
        entry[2] += seconds

    def report(
        self,
        *,
        rows: int,
        unfinished: Sequence[range],
        untried: Iterable[Drop] = (),
        throttles: Mapping[str, Any],
        seconds: float,
    ) -> BuildReport:
        """The counts so far, frozen. `untried` are dropped rows that were to be tried again and were not yet."""
        return BuildReport(
            rows=rows,
            written=self.written,
            dropped=tuple(sorted((*self.dropped, *untried), key=lambda drop: (drop.row, drop.copy))),
            unfinished=tuple(unfinished),
            skipped_row_groups=tuple(sorted(self.skipped)),
            attempts=dict(self.attempts),
            errors=dict(self.errors),
            usage=self._spent_by(0),
            model_usage=self._spent_by(1),
            wasted={
                name: Wasted(calls=int(calls), tokens=int(tokens), seconds=seconds_)
                for name, (calls, tokens, seconds_) in self._wasted.items()
            },
            late_threads=dict(self.late_threads),
            running_threads={name: count for name, count in self.running_threads.items() if count},
            throttles=dict(throttles),
            conflicts=tuple(self.conflicts),
            seconds=seconds,
            durable=self.durable,
            restored=self.restored,
            damage=self.damage,
            removed=self.removed,
            added=self.added,
            traces=tuple(self.traces),
        )
