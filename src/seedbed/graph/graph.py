"""The static, column-level graph: O(columns) nodes, whatever the number of rows."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from ..errors import SeedbedError
from .node import Kind, Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Graph:
    """Nodes in declared order, and who needs whom. Made by `build_graph`; never changed."""

    def __init__(self, nodes: Sequence[Node], order: Sequence[int]) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        # Node indices such that every node stands behind all it needs; ties in declared order.
        self.order: tuple[int, ...] = tuple(order)
        self._producers: dict[str, Node] = {output: node for node in self.nodes for output in node.outputs}
        self._by_name: dict[str, Node] = {node.name: node for node in self.nodes}

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"<Graph of {len(self.nodes)} columns: {', '.join(self.topological_order())}>"

    def node(self, name: str) -> Node:
        """The node of that name, or the one that makes the output or side effect of that name."""
        found = self._by_name.get(name) or self._producers.get(name)
        if found is None:
            close = difflib.get_close_matches(name, [*self._by_name, *self._producers], n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise SeedbedError(f"no column named {name!r}{hint}")
        return found

    @property
    def outputs(self) -> tuple[str, ...]:
        """Every column of the dataset in declared order, side effects right behind their producer's columns."""
        return tuple(self._producers)

    def upstream(self, name: str) -> tuple[str, ...]:
        """The columns that this one needs directly."""
        return tuple(self.nodes[index].name for index in self.node(name).upstream)

    def downstream(self, name: str) -> tuple[str, ...]:
        """The columns that need this one directly."""
        return tuple(self.nodes[index].name for index in self.node(name).downstream)

    def topological_order(self) -> tuple[str, ...]:
        """All columns, each behind everything it needs."""
        return tuple(self.nodes[index].name for index in self.order)

    def critical_path(self, weights: Mapping[str, float] | None = None) -> tuple[str, ...]:
        """The heaviest chain of columns, each weighing 1 unless `weights` says otherwise."""
        weights = weights or {}
        best: dict[int, tuple[float, int | None]] = {}
        for index in self.order:
            node = self.nodes[index]
            before = max(node.upstream, key=lambda up: best[up][0], default=None)
            so_far = best[before][0] if before is not None else 0.0
            best[index] = (so_far + weights.get(node.name, 1.0), before)
        path: list[str] = []
        at = max(self.order, key=lambda index: best[index][0], default=None)
        while at is not None:
            path.append(self.nodes[at].name)
            at = best[at][1]
        return tuple(reversed(path))

    def task_count(self, rows: int, buffer_size: int, *, columns: Iterable[str] | None = None) -> int:
        """How many tasks fill `rows` rows: one a cell, or one a row group where a column is made as a whole."""
        groups = -(-rows // buffer_size)
        nodes = self.nodes if columns is None else [self.node(name) for name in columns]
        return sum(rows if node.kind is Kind.CELL else groups for node in nodes)

    def mermaid(self) -> str:
        """The graph as mermaid text: boxes are cell columns, stadiums whole columns, cylinders come from scratch."""
        shapes = {Kind.CELL: ('["', '"]'), Kind.FULL_COLUMN: ('(["', '"])'), Kind.FROM_SCRATCH: ('[("', '")]')}
        lines = ["flowchart TD"]
        for node in self.nodes:
            left, right = shapes[node.kind]
            others = [output for output in node.outputs if output != node.name]
            label = "<br/>".join([node.name, *others]).replace('"', "#quot;")
            lines.append(f"    n{node.index}{left}{label}{right}")
        lines.extend(f"    n{up} --> n{node.index}" for node in self.nodes for up in node.upstream)
        return "\n".join(lines) + "\n"
