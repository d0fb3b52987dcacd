"""Hypothesis makes up recipes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from shapes import OTHERS, SAMPLED, STATEFUL, ColumnShape, Shape

TROUBLES = [(500, 1), (500, 2), (503, 1), (400, None), (500, None)]


@st.composite
def shapes(draw: Any, *, stateful: bool = True) -> Shape:
    """A recipe of any columns: its dataset does not depend on the order in which cells happen to finish."""
    rows = draw(st.integers(1, 14))
    columns: list[ColumnShape] = [ColumnShape(name="s0", type=draw(st.sampled_from(SAMPLED)))]
    failing = list(range(rows))  # rows that still may fail: one cell of each
    kinds = (*OTHERS, "model", "model", *(STATEFUL if stateful else ()))
    for index in range(draw(st.integers(1, 6))):
        name, kind = f"c{index}", draw(st.sampled_from(kinds))
        made = [column.name for column in columns if column.type != "rich"]
        requires = tuple(draw(st.lists(st.sampled_from(made), unique=True, max_size=2)))
        if kind in SAMPLED or kind in ("rich", "seeded"):
            requires = ()
        bad = {}
        if kind == "model":
            for row in draw(st.lists(st.sampled_from(failing), unique=True, max_size=2)) if failing else ():
                bad[row] = draw(st.sampled_from(TROUBLES))
                failing.remove(row)
        columns.append(
            ColumnShape(name=name, type=kind, requires=requires, bad=bad, skips=kind == "model" and draw(st.booleans()))
        )
    if not any(column.type == "model" for column in columns):
        columns.append(ColumnShape(name="last", type="model"))
    return Shape(
        columns=tuple(columns),
        rows=rows,
        buffer_size=draw(st.integers(1, 6)),
        pre=draw(st.sampled_from([None, None, "less", "more", "both"])),
        post=draw(st.booleans()),
        after=draw(st.booleans()),
    )
