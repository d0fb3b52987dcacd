"""The picture of the panel in the README, drawn from events at fixed instants.

`python tests/observe/panel_picture.py` writes it; a test compares it with what the panel looks like now.
"""

from __future__ import annotations

import io
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from seedbed.observe import events
from seedbed.observe.panel import draw
from seedbed.observe.progress import ProgressState

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "panel.svg"
WIDTH, HEIGHT = 110, 18
ROWS, GROUP = 1000, 100
NOW = 42.0
KEYS = {"topic": None, "tone": None, "author": None, "question": "key 1", "answer": "key 1", "score": "key 2"}
LATEST = {
    "topic": "photosynthesis",
    "tone": "curious",
    "author": "Ines, 34, teacher",
    "question": "Why are leaves green, if plants get their energy from light of every colour?",
    "answer": "Chlorophyll absorbs red and blue light and reflects green, which it cannot use as well.",
    "score": 5,
}
# Of each column that calls a model: when it begins, seconds between two cells, calls in flight, latency, tokens.
PACE = {
    "question": (0.2, 0.062, 12, 0.6, 120),
    "answer": (1.5, 0.071, 16, 1.4, 310),
    "score": (4.0, 0.083, 8, 0.5, 160),
}


def running() -> ProgressState:
    """A run after 42 seconds: questions are ahead of answers, and answers of scores."""
    chance = random.Random(1)
    state = ProgressState()
    state(
        events.BuildStarted(
            time=0.0,
            rows=ROWS,
            row_groups=ROWS // GROUP,
            columns=tuple(KEYS),
            keys=KEYS,
            limits={"key 1": 32, "key 2": 8},
            models={"key 1": "writer", "key 2": "judge"},
            sampled=frozenset({"topic", "tone", "author"}),
        )
    )
    for group in range(ROWS // GROUP):
        state(events.RowGroupAdmitted(time=0.0, row_group=group, rows=GROUP))
        for name in ("topic", "tone", "author"):
            place = {"kind": "from_scratch", "column": name, "row_group": group, "row": None, "attempt": 1}
            state(events.TaskStarted(time=0.1, **place))
            state(_finished(0.1, place, 0.1, 0))
    due = sorted((begin + pace * row, name, row) for name, (begin, pace, *_) in PACE.items() for row in range(ROWS))
    in_flight: dict[str, list[int]] = {name: [] for name in PACE}
    scored: Counter[int] = Counter()
    refreshed = 0.0
    for time, name, row in due:
        if time > NOW:
            break
        while refreshed < time:
            state.update(refreshed)
            refreshed += 0.1
        state(events.TaskStarted(time=time, **_place(name, row)))
        in_flight[name].append(row)
        _, _, parallel, latency, tokens = PACE[name]
        if len(in_flight[name]) < min(parallel, 2 + time) - chance.randrange(3):
            continue
        done = in_flight[name].pop(0)
        state(_finished(time, _place(name, done), latency * chance.lognormvariate(0.0, 0.4), tokens))
        group = done // GROUP
        scored[group] += name == "score"
        if name == "score" and scored[group] == GROUP:
            if group == 1:
                error = "the answer is not one of 1, 2, 3, 4, 5"
                dropped = {"row_group": 1, "row": 117, "column": "score", "attempts": 3, "error": error}
                state(events.RowDropped(time=time, **dropped))
            state(
                events.RowGroupFinished(time=time, row_group=group, rows=GROUP - (group == 1), dropped=int(group == 1))
            )
    for row in range(5):
        state(events.TaskRateLimited(time=NOW, key="key 2", eligible_at=NOW + 1, **_place("score", row)))
    state(events.CellsCommitted(time=NOW, cells=10, total=4600))
    state(events.RowFinished(time=NOW, row_group=4, row=430, values=LATEST))
    state.update(NOW)
    return state


def _place(column: str, row: int) -> dict[str, Any]:
    return {"kind": "cell", "column": column, "row_group": row // GROUP, "row": row, "attempt": 1}


def _finished(time: float, place: dict[str, Any], seconds: float, tokens: int) -> events.TaskFinished:
    ended: dict[str, Any] = {"status": "success", "error": None, "seconds": seconds}
    return events.TaskFinished(time=time, tokens=tokens, cost=tokens * 6e-7, **ended, **place)


def picture() -> str:
    """The panel as an SVG drawing, without the fonts that rich loads from a server."""
    console = Console(record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor")
    console.print(draw(running(), title="questions", width=WIDTH, height=HEIGHT), highlight=False)
    svg = console.export_svg(title="seedbed run questions.yaml -n 1000 -o data/questions", unique_id="panel")
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
