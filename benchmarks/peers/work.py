"""What every peer has to do, and how a peer measures itself: wall time, CPU and memory, without what imports take."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLER = "a"
"""The column that is drawn; it tells rows apart, so that the server can tell which calls were made."""
PROMPTS = {
    "b": "Ask one curious question about item {a}.",
    "c": "Name one surprising fact about item {a}.",
    "d": "Item {a}. Answer the question with the help of the fact.\nQuestion: {b}\nFact: {c}",
    "e": "Item {a}. Say the same in one short sentence: {d}",
}
"""The columns that a model fills, in topological order, with what it is asked."""
MODEL = "test"
# So that no connection of the first calls, no template and no lazy import is counted.
WARM_UP_ROWS = 20


@dataclass(frozen=True)
class Work:
    """A dataset to make: so many rows, from the model at `url`, with at most so many calls at once."""

    url: str
    rows: int
    at_once: int

    @property
    def calls(self) -> int:
        """How many calls the dataset takes."""
        return self.rows * len(PROMPTS)

    def ideal(self, latency: float) -> float:
        """Seconds that the calls would take if nothing cost anything and all places were always taken."""
        return self.calls * latency / self.at_once


@dataclass(frozen=True)
class Taken:
    """What a dataset took: seconds on the clock and of the processor, and the peak of memory in MB."""

    wall: float
    cpu: float
    memory: float


def jinja(prompt: str) -> str:
    """A prompt as Jinja2 wants it."""
    return prompt.replace("{", "{{ ").replace("}", " }}")


def body(prompt: str) -> dict[str, object]:
    """What is sent for a prompt by those who send it themselves."""
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}]}


def measure(make: Callable[[Work, Path], int]) -> None:
    """Make the dataset that the command line asks for, after a small one, and print what it took as JSON.

    `make` writes the dataset to a path that does not exist yet and returns how many rows it has.
    """
    work = Work(**json.loads(sys.argv[1]))
    with tempfile.TemporaryDirectory() as directory:
        make(replace(work, rows=WARM_UP_ROWS), Path(directory, "small"))
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        rows = make(work, Path(directory, "out"))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if rows != work.rows:
        sys.exit(f"{rows} rows instead of {work.rows}")
    print(json.dumps(asdict(Taken(wall=wall, cpu=cpu, memory=_peak_memory()))))


def _peak_memory() -> float:
    # Not `getrusage`, whose peak a process inherits from the one that started it.
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
