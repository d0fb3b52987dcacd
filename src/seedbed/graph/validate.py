"""From columns to a graph, with every problem found at once."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from ..errors import DatasetGenerationError
from .graph import Graph
from .node import ColumnLike, Kind, Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def build_graph(columns: Iterable[ColumnLike]) -> Graph:
    """Build the graph, or raise one `DatasetGenerationError` with everything that is wrong."""
    columns = list(columns)
    problems = check_columns(columns)
    if problems:
        raise DatasetGenerationError(problems)
    return _link(columns)


def check_columns(columns: Sequence[ColumnLike]) -> list[str]:
    """Every problem of these columns, a sentence each; empty if a graph can be built from them."""
    # What is no text at all has a problem of its own, which the columns are checked for elsewhere.
    written = [name for column in columns for name in _all_outputs(column) if isinstance(name, str)]
    problems = [problem for name in written if (problem := name_problem(name))]
    problems += _duplicates(columns)
    producers = _producers(columns)
    known = list(producers)
    for column in columns:
        if column.kind is Kind.FROM_SCRATCH and column.requires:
            needs = ", ".join(repr(name) for name in column.requires)
            problems.append(f"column {column.name!r} is made from scratch and cannot require {needs}")
        for name in column.requires:
            if name in column.outputs or name in column.side_effects:
                problems.append(f"column {column.name!r} requires its own output {name!r}")
            elif name not in producers:
                hint = nearest(name, known)
                problems.append(f"column {column.name!r} requires {name!r}, which no column makes{hint}")
    problems.extend(
        f"the columns need each other in a circle: {' → '.join(repr(name) for name in cycle)}"
        for cycle in _cycles(columns, producers)
    )
    problems.extend(
        f"column {column.name!r} has allow_resize=True, which is not supported: a column fills the rows that exist; "
        "use a stage to get several rows from one, or a processor to add and remove rows"
        for column in columns
        if column.allow_resize
    )
    return problems


# NUL ends a name in Arrow's C interface, half a surrogate pair is no UTF-8, and no template can name the others.
_UNNAMEABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def name_problem(name: str) -> str | None:
    """Why a column cannot have this name; None if it can."""
    found = _UNNAMEABLE.search(name)
    return None if found is None else f"column {name!r}: {found[0]!r} is not allowed in the name of a column"


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, or which names there are."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    if not known:
        return ""
    shown = ", ".join(repr(other) for other in known[:8]) + (", …" if len(known) > 8 else "")
    return f" (known: {shown})"


def _all_outputs(column: ColumnLike) -> tuple[str, ...]:
    return (*column.outputs, *column.side_effects)


def _producers(columns: Sequence[ColumnLike]) -> dict[str, int]:
    return {output: index for index, column in enumerate(columns) for output in _all_outputs(column)}


def _duplicates(columns: Sequence[ColumnLike]) -> list[str]:
    problems: list[str] = []
    seen_names: set[str] = set()
    makers: dict[str, list[str]] = {}
    for column in columns:
        if column.name in seen_names:
            problems.append(f"column {column.name!r} is there twice")
        else:
            # A column given twice makes all its outputs twice; saying so once is enough.
            for output in _all_outputs(column):
                makers.setdefault(output, []).append(column.name)
        seen_names.add(column.name)
    for output, names in makers.items():
        if len(names) > 1:
            who = " and ".join(repr(name) for name in dict.fromkeys(names))
            problems.append(f"output {output!r} is made more than once, by {who}")
    return problems


def _cycles(columns: Sequence[ColumnLike], producers: dict[str, int]) -> list[list[str]]:
    """One spelled-out cycle for each knot of columns that need each other."""
    upstream = [
        [producers[name] for name in dict.fromkeys(column.requires) if producers.get(name, index) != index]
        for index, column in enumerate(columns)
    ]
    state = [0] * len(columns)  # 0 new, 1 on the path, 2 finished
    cycles: list[list[str]] = []
    for root in range(len(columns)):
        if state[root]:
            continue
        # Iterative, so that a chain of thousands of columns does not meet the recursion limit.
        path: list[int] = [root]
        steps = [iter(upstream[root])]
        state[root] = 1
        while path:
            following = next(steps[-1], None)
            if following is None:
                state[path.pop()] = 2
                steps.pop()
            elif state[following] == 0:
                state[following] = 1
                path.append(following)
                steps.append(iter(upstream[following]))
            elif state[following] == 1:
                knot = [*path[path.index(following) :], following]
                # The path walks from a column to what it needs; data flows the other way.
                cycles.append([columns[index].name for index in reversed(knot)])
    return cycles


def _link(columns: Sequence[ColumnLike]) -> Graph:
    producers = _producers(columns)
    upstream = [tuple(dict.fromkeys(producers[name] for name in column.requires)) for column in columns]
    downstream: list[list[int]] = [[] for _ in columns]
    for index, ups in enumerate(upstream):
        for up in ups:
            downstream[up].append(index)
    nodes = [
        Node(
            index=index,
            name=column.name,
            kind=column.kind,
            requires=tuple(column.requires),
            outputs=_all_outputs(column),
            upstream=upstream[index],
            downstream=tuple(downstream[index]),
        )
        for index, column in enumerate(columns)
    ]
    return Graph(nodes, _order(nodes))


def _order(nodes: Sequence[Node]) -> list[int]:
    """Kahn's algorithm in passes, declared order within each."""
    waits = [len(node.upstream) for node in nodes]
    order: list[int] = []
    level = [node.index for node in nodes if not node.upstream]
    while level:
        order.extend(level)
        following: list[int] = []
        for index in level:
            for down in nodes[index].downstream:
                waits[down] -= 1
                if waits[down] == 0:
                    following.append(down)
        level = sorted(following)
    return order
