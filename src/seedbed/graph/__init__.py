"""The static, column-level graph, built from columns with every problem found at once: pure, no input or output.

O(columns) nodes, whatever the number of rows; `frontier` decides which of their tasks are ready. `find_cycles` and
`topological_order` serve the graphs of plans as well.
"""

from __future__ import annotations

import difflib
import enum
import graphlib
import re
from collections import Counter
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs

from ..errors import ConfigError, DatasetGenerationError, SeedbedError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

K = TypeVar("K", bound="Hashable")

# The row of a task that is for the whole row group.
GROUP = -1


class Kind(enum.Enum):
    """The unit of work that fills a column."""

    FROM_SCRATCH = "from_scratch"  # column × row group, at admission
    CELL = "cell"  # column × row, when that row's inputs are done
    FULL_COLUMN = "full_column"  # column × row group, when the inputs of all rows are done


class Stage(enum.Enum):
    """When a processor runs."""

    PRE_BATCH = "pre_batch"  # after the columns from scratch of a row group
    POST_BATCH = "post_batch"  # after all columns of a row group, before it is written
    AFTER_GENERATION = "after_generation"  # once, over the whole dataset

    @classmethod
    def named(cls, value: object) -> Stage:
        """The stage of a name. Raises `ConfigError`."""
        found = next((stage for stage in cls if value in (stage, stage.value)), None)
        if found is None:
            *others, last = (repr(stage.value) for stage in cls)
            meant = {"before_batch": cls.PRE_BATCH, "after_batch": cls.POST_BATCH}.get(str(value))
            hint = "" if meant is None else f"; did you mean {meant.value!r}?"
            raise ConfigError(f"stage must be {', '.join(others)} or {last}, not {value!r}{hint}")
        return found


class ColumnLike(Protocol):
    """The attributes of a column that the graph reads."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def requires(self) -> Sequence[str]: ...
    @property
    def outputs(self) -> Sequence[str]: ...
    @property
    def side_effects(self) -> Sequence[str]: ...
    @property
    def allow_resize(self) -> bool: ...
    @property
    def repaired_by(self) -> str | None: ...


@attrs.frozen(kw_only=True)
class Node:
    """One generator: it is run once for all of its outputs.

    `upstream` and `downstream` are indices into `Graph.nodes`, each node once however many of its outputs are used.
    """

    index: int
    name: str
    kind: Kind
    requires: tuple[str, ...]  # output names, as the column gives them
    outputs: tuple[str, ...]  # the columns that it fills, then its side effects
    upstream: tuple[int, ...]
    downstream: tuple[int, ...]
    is_gated: bool = False  # it runs for accepted rows only: what decides that is upstream of it
    repaired_by: str | None = None  # the column whose verdict on each value makes this one repair it


class Graph:
    """Nodes in declared order and their edges. Built by `build_graph`; never changed."""

    def __init__(self, nodes: Sequence[Node], order: Sequence[int]) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        # Node indices with every node after all it needs; ties in declared order.
        self.order: tuple[int, ...] = tuple(order)
        self._producers: dict[str, Node] = {output: node for node in self.nodes for output in node.outputs}
        self._by_name: dict[str, Node] = {node.name: node for node in self.nodes}

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"<Graph of {len(self.nodes)} columns: {', '.join(self.topological_order())}>"

    def node(self, name: str) -> Node:
        """The node of that name, or the one that produces the output or side effect of that name."""
        found = self._by_name.get(name) or self._producers.get(name)
        if found is None:
            raise SeedbedError(f"no column named {name!r}{nearest(name, {**self._by_name, **self._producers})}")
        return found

    @property
    def outputs(self) -> tuple[str, ...]:
        """Every column of the dataset in declared order, side effects right after their producer's columns."""
        return tuple(self._producers)

    def upstream(self, name: str) -> tuple[str, ...]:
        """The columns that this one needs directly."""
        return tuple(self.nodes[index].name for index in self.node(name).upstream)

    def downstream(self, name: str) -> tuple[str, ...]:
        """The columns that need this one directly."""
        return tuple(self.nodes[index].name for index in self.node(name).downstream)

    def topological_order(self) -> tuple[str, ...]:
        """All columns, each after everything it needs."""
        return tuple(self.nodes[index].name for index in self.order)

    def critical_path(self, weights: Mapping[str, float] | None = None) -> tuple[str, ...]:
        """The heaviest chain of columns, each weighing 1 unless `weights` says otherwise."""
        weights = weights or {}
        chains: dict[int, tuple[float, tuple[str, ...]]] = {}
        for index in self.order:
            node = self.nodes[index]
            weight, chain = max((chains[up] for up in node.upstream), key=itemgetter(0), default=(0.0, ()))
            chains[index] = weight + weights.get(node.name, 1.0), (*chain, node.name)
        return max(chains.values(), key=itemgetter(0), default=(0.0, ()))[1]

    def task_count(self, rows: int, buffer_size: int, *, columns: Iterable[str] | None = None) -> int:
        """The number of tasks that fill `rows` rows: one per cell, or one per row group for whole columns."""
        groups = -(-rows // buffer_size)
        nodes = self.nodes if columns is None else [self.node(name) for name in columns]
        return sum(rows if node.kind is Kind.CELL else groups for node in nodes)

    def mermaid(self) -> str:
        """The graph as mermaid text: boxes are cell columns, stadiums whole columns, cylinders come from scratch.

        A dotted arrow leads from a validation to the column that it repairs.
        """
        shapes = {Kind.CELL: ('["', '"]'), Kind.FULL_COLUMN: ('(["', '"])'), Kind.FROM_SCRATCH: ('[("', '")]')}
        lines = ["flowchart TD"]
        for node in self.nodes:
            left, right = shapes[node.kind]
            others = [output for output in node.outputs if output != node.name]
            label = "<br/>".join([node.name, *others]).replace('"', "#quot;")
            lines.append(f"    n{node.index}{left}{label}{right}")
        lines.extend(f"    n{up} --> n{node.index}" for node in self.nodes for up in node.upstream)
        lines.extend(
            f"    n{self._by_name[node.repaired_by].index} -. repairs .-> n{node.index}"
            for node in self.nodes
            if node.repaired_by in self._by_name and node.repaired_by != node.name
        )
        return "\n".join(lines) + "\n"


def build_graph(columns: Iterable[ColumnLike], *, accept: Sequence[str] = ()) -> Graph:
    """Build the graph, or raise one `DatasetGenerationError` that names every problem.

    `accept` are the columns that decide whether a row is accepted: all others that are not generated from scratch, and
    that these do not need, come after them.
    """
    columns = list(columns)
    problems = check_columns(columns)
    if problems:
        raise DatasetGenerationError(problems)
    producers = _producers(columns)
    upstream = [tuple(dict.fromkeys(producers[name] for name in column.requires)) for column in columns]
    deciding = dict.fromkeys(producers[name] for name in accept)
    first = set(deciding)
    for index in reversed(topological_order(upstream)):
        if index in first:
            first.update(upstream[index])
    gated = [
        bool(deciding) and index not in first and column.kind is not Kind.FROM_SCRATCH
        for index, column in enumerate(columns)
    ]
    upstream = [
        tuple(dict.fromkeys((*ups, *deciding))) if is_gated else ups
        for ups, is_gated in zip(upstream, gated, strict=True)
    ]
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
            is_gated=gated[index],
            repaired_by=column.repaired_by,
        )
        for index, column in enumerate(columns)
    ]
    return Graph(nodes, topological_order(upstream))


def check_columns(columns: Sequence[ColumnLike]) -> list[str]:
    """Every problem of these columns, one sentence each; empty if a graph can be built from them."""
    # Names that are not strings are reported where columns are checked.
    written = [name for column in columns for name in _all_outputs(column) if isinstance(name, str)]
    problems = [problem for name in written if (problem := name_problem(name))]
    problems += _duplicates(columns)
    producers = _producers(columns)
    for column in columns:
        if column.kind is Kind.FROM_SCRATCH and column.requires:
            needs = ", ".join(repr(name) for name in column.requires)
            problems.append(f"column {column.name!r} is generated from scratch and cannot require {needs}")
        for name in column.requires:
            if name in column.outputs or name in column.side_effects:
                problems.append(f"column {column.name!r} requires its own output {name!r}")
            elif name not in producers:
                hint = nearest(name, producers)
                problems.append(f"column {column.name!r} requires {name!r}, which no column generates{hint}")
    upstream = {
        index: [producers[name] for name in dict.fromkeys(column.requires) if producers.get(name, index) != index]
        for index, column in enumerate(columns)
    }
    problems.extend(_cycle_problem([columns[index] for index in cycle]) for cycle in find_cycles(upstream))
    problems.extend(
        f"column {column.name!r} has allow_resize=True, which is not supported: a column fills the rows that exist; "
        "use a stage to get several rows from one, or a processor to add and remove rows"
        for column in columns
        if column.allow_resize
    )
    return problems


def _cycle_problem(cycle: Sequence[ColumnLike]) -> str:
    repaired = [
        f"; {column.name!r} is repaired with {column.repaired_by!r} and requires what that reads"
        for column in cycle[1:]
        if column.repaired_by is not None
    ]
    return f"circular dependency between columns: {' → '.join(column.name for column in cycle)}{''.join(repaired)}"


# NUL ends a name in Arrow's C interface, lone surrogates are invalid UTF-8, and templates cannot name the others.
_UNNAMEABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


# Names are in every message, line of progress and table.
_LONGEST_NAME = 1_000


def name_problem(name: str) -> str | None:
    """The problem with this column name; None if it is valid."""
    if len(name) > _LONGEST_NAME:
        return f"column '{name[:40]}…': a name has at most {_LONGEST_NAME:,} characters, this one has {len(name):,}"
    found = _UNNAMEABLE.search(name)
    return None if found is None else f"column {name!r}: {found[0]!r} is not allowed in the name of a column"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name of which an unknown one is probably a typo."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for messages about an unknown name: the closest known one, or the list of known ones."""
    known = list(known)
    if (close := closest(name, known)) is not None:
        return f"; did you mean {close!r}?"
    if not known:
        return ""
    shown = ", ".join(repr(other) for other in known[:8]) + (", …" if len(known) > 8 else "")
    return f" (known: {shown})"


def _all_outputs(column: ColumnLike) -> tuple[str, ...]:
    return (*column.outputs, *column.side_effects)


def _duplicates(columns: Sequence[ColumnLike]) -> Iterator[str]:
    by_name = {column.name: column for column in reversed(columns)}
    counts = Counter(column.name for column in columns)
    yield from (f"duplicate column {name!r}" for name, count in counts.items() if count > 1)
    outputs: dict[str, list[str]] = {}
    for name in counts:  # a duplicate column duplicates all its outputs; one problem is enough
        for output in _all_outputs(by_name[name]):
            outputs.setdefault(output, []).append(name)
    for output, names in outputs.items():
        if len(names) > 1:
            yield f"duplicate output {output!r}, of {' and '.join(map(repr, dict.fromkeys(names)))}"


def _producers(columns: Sequence[ColumnLike]) -> dict[str, int]:
    return {output: index for index, column in enumerate(columns) for output in _all_outputs(column)}


# Each cycle costs another walk; a plan from elsewhere may have thousands of them.
_MAX_CYCLES = 50


def find_cycles(upstream: Mapping[K, Iterable[K]]) -> list[list[K]]:
    """Cycles without common nodes, each from a node back to itself in the direction of the data; at most 50.

    `upstream` maps each node to those it needs; nodes that are no key are ignored.
    """
    left = {node: [need for need in needs if need in upstream] for node, needs in upstream.items()}
    cycles: list[list[K]] = []
    while len(cycles) < _MAX_CYCLES:
        try:
            graphlib.TopologicalSorter(left).prepare()
        except graphlib.CycleError as error:
            cycles.append(error.args[1])
            found = set(error.args[1])
            left = {n: [need for need in needs if need not in found] for n, needs in left.items() if n not in found}
        else:
            break
    return cycles


def topological_order(upstream: Sequence[Iterable[int]]) -> list[int]:
    """Indices with each node after all it needs, in passes, ascending within each.

    Nodes of a cycle, and those behind one, are left out.
    """
    sorter = graphlib.TopologicalSorter(dict(enumerate(upstream)))
    with suppress(graphlib.CycleError):  # it still sorts the nodes that are not behind a cycle
        sorter.prepare()
    order: list[int] = []
    while level := sorted(sorter.get_ready()):
        order.extend(level)
        sorter.done(*level)
    return order
