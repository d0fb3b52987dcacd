"""What a request's nodes did, collected for whoever asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .response import NodeTrace, Trace

if TYPE_CHECKING:
    from .compile import CompiledPlan, Step


class Traces:
    """The runs of a request's nodes."""

    __slots__ = ("_arrival", "_runs")

    def __init__(self, arrival: float) -> None:
        self._arrival = arrival
        self._runs: list[tuple[Step, str, int, tuple[float, float, int, int]]] = []

    def add(self, step: Step, where: str, segment: int, times: tuple[float, float, int, int]) -> None:
        """A node has run: when it started and ended, how many rows it was given and gave."""
        self._runs.append((step, where, segment, times))

    def trace(self, compiled: CompiledPlan, began: float, ended: float) -> Trace:
        """All of it, for a request that left the queue at `began`."""
        return Trace(
            total_ms=(ended - self._arrival) * 1000,
            queued_ms=(began - self._arrival) * 1000,
            nodes=tuple(
                NodeTrace(
                    node=step.node_id,
                    op=step.op.name,
                    label=step.params.get("trace"),
                    where=where,
                    segment=segment,
                    start_ms=(start - self._arrival) * 1000,
                    end_ms=(end - self._arrival) * 1000,
                    rows_in=rows_in,
                    rows_out=rows_out,
                )
                for step, where, segment, (start, end, rows_in, rows_out) in self._runs
            ),
            critical_path=self._critical_path(compiled),
        )

    def _critical_path(self, compiled: CompiledPlan) -> tuple[str, ...]:
        ends = {step.position: times[1] for step, _, _, times in self._runs}
        path: list[str] = []
        candidates = [position for position in compiled.outputs if position in ends]
        while candidates:
            # Of what a node waited for, the last to end is what it really waited for.
            last = max(candidates, key=ends.__getitem__)
            path.append(compiled.steps[last].node_id)
            candidates = [position for position in compiled.steps[last].upstream if position in ends]
        return tuple(reversed(path))
