"""Draws a graph of columns as SVG: layers from top to bottom, each column below everything it needs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import attrs

from ..graph import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..graph import Graph

_LETTER = 7.3  # the width of a letter of the font, more or less
_HEIGHT = 44
_GAP = 28
_LAYER = 96
_MARGIN = 24
_FILLS = {Kind.FROM_SCRATCH: "#e3f1e5", Kind.CELL: "#e6ecf8", Kind.FULL_COLUMN: "#f8efdc"}
_LINES = {Kind.FROM_SCRATCH: "#4f8a5b", Kind.CELL: "#4a6bb0", Kind.FULL_COLUMN: "#b3832c"}
_WORDS = {Kind.FROM_SCRATCH: "from scratch", Kind.CELL: "cell by cell", Kind.FULL_COLUMN: "whole column"}
_SWEEPS = 12
_PASSAGE = 4


@attrs.frozen(kw_only=True)
class Box:
    """Where a column is drawn, or where an edge passes through a layer."""

    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@attrs.frozen(kw_only=True)
class Layers:
    """Nodes by layer. An edge that spans several layers passes through each by a place of its own.

    Places are nodes by index, or below 0 where an edge passes; `chains` are the edges, from place to place.
    """

    rows: tuple[tuple[int, ...], ...]
    chains: tuple[tuple[int, ...], ...]


def draw_graph(graph: Graph, types: Mapping[str, str]) -> str:
    """An SVG document; `types` says what stands below each column's name."""
    labels = [(node.name, types.get(node.name, _WORDS[node.kind])) for node in graph.nodes]
    layers = order_layers(graph)
    boxes = _place(layers, [max(len(name), len(below)) * _LETTER + 28 for name, below in labels])
    width = max(420, *(box.x + box.width + _MARGIN for box in boxes.values()))
    bottom = max(box.y for box in boxes.values()) + _HEIGHT + _MARGIN
    height = bottom + 34
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-sans-serif, sans-serif" font-size="13">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#777"/></marker></defs>'
        '<rect width="100%" height="100%" fill="#fff"/>'
    )
    parts = [_edge([boxes[place] for place in chain]) for chain in layers.chains]
    parts += [_box(boxes[node.index], node.kind, *labels[node.index]) for node in graph.nodes]
    return "\n".join([head, *parts, *_legend(bottom), "</svg>"]) + "\n"


def order_layers(graph: Graph) -> Layers:
    """The nodes by layer; within a layer so that edges cross little: near the middle of what they are tied to."""
    depth: dict[int, int] = {}
    for index in graph.order:
        depth[index] = 1 + max((depth[up] for up in graph.nodes[index].upstream), default=-1)
    rows: list[list[int]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in graph.nodes:
        rows[depth[node.index]].append(node.index)
    chains: list[tuple[int, ...]] = []
    passing = 0
    for node in graph.nodes:
        for up in node.upstream:
            between = []
            for row in range(depth[up] + 1, depth[node.index]):
                passing -= 1
                rows[row].append(passing)
                between.append(passing)
            chains.append((up, *between, node.index))
    return Layers(rows=_untangled(rows, chains), chains=tuple(chains))


def _untangled(rows: list[list[int]], chains: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The order of the fewest crossings that a few sweeps up and down find."""
    above: dict[int, list[int]] = {place: [] for row in rows for place in row}
    below: dict[int, list[int]] = {place: [] for row in rows for place in row}
    for chain in chains:
        for upper, lower in pairwise(chain):
            above[lower].append(upper)
            below[upper].append(lower)
    best = tuple(map(tuple, rows))
    fewest = crossings(best, chains)
    for sweep in range(_SWEEPS):
        tied = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            at = {place: number / max(1, len(each) - 1) for each in rows for number, place in enumerate(each)}
            pull = {place: sum(at[each] for each in tied[place] or [place]) / len(tied[place] or "1") for place in row}
            row.sort(key=pull.__getitem__)
        found = crossings(rows, chains)
        if found < fewest:
            best, fewest = tuple(map(tuple, rows)), found
    return best


def crossings(rows: Sequence[Sequence[int]], chains: Sequence[Sequence[int]]) -> int:
    """How many pairs of edges cross between one layer and the next."""
    place = {each: (depth, at) for depth, row in enumerate(rows) for at, each in enumerate(row)}
    links = [(place[upper], place[lower]) for chain in chains for upper, lower in pairwise(chain)]
    return sum(
        a[0][0] == b[0][0] and (a[0][1] - b[0][1]) * (a[1][1] - b[1][1]) < 0
        for number, a in enumerate(links)
        for b in links[number + 1 :]
    )


def _place(layers: Layers, widths: Sequence[float]) -> dict[int, Box]:
    """Set each layer in the middle of the drawing."""
    wide = {place: widths[place] if place >= 0 else _PASSAGE for row in layers.rows for place in row}
    totals = [sum(wide[place] for place in row) + _GAP * (len(row) - 1) for row in layers.rows]
    boxes: dict[int, Box] = {}
    for depth, row in enumerate(layers.rows):
        x = _MARGIN + (max(totals) - totals[depth]) / 2
        for place in row:
            boxes[place] = Box(x=x, y=_MARGIN + depth * _LAYER, width=wide[place])
            x += wide[place] + _GAP
    return boxes


def _edge(boxes: Sequence[Box]) -> str:
    """A line from the first box to the last, straight down through the layers between."""
    x, y = boxes[0].middle, boxes[0].y + _HEIGHT
    path = f"M{x:.1f} {y:.1f}"
    for number, box in enumerate(boxes[1:], start=2):
        last = number == len(boxes)
        end = box.y - 2 if last else box.y
        bend = (end - y) / 2
        path += f" C{x:.1f} {y + bend:.1f} {box.middle:.1f} {end - bend:.1f} {box.middle:.1f} {end:.1f}"
        x, y = box.middle, end
        if not last:
            y = box.y + _HEIGHT
            path += f" L{x:.1f} {y:.1f}"
    return f'<path d="{path}" fill="none" stroke="#999" stroke-width="1.3" marker-end="url(#tip)"/>'


def _box(box: Box, kind: Kind, name: str, below: str) -> str:
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{_HEIGHT}" '
        f'rx="{_HEIGHT / 2 if kind is Kind.FULL_COLUMN else 7}" fill="{_FILLS[kind]}" stroke="{_LINES[kind]}"/>'
        f'<text x="{box.middle:.1f}" y="{box.y + 19:.1f}" text-anchor="middle" font-weight="600">{escape(name)}</text>'
        f'<text x="{box.middle:.1f}" y="{box.y + 35:.1f}" text-anchor="middle" font-size="11" fill="#666">'
        f"{escape(below)}</text>"
    )


def _legend(top: float) -> list[str]:
    parts: list[str] = []
    x = float(_MARGIN)
    for kind, words in _WORDS.items():
        parts.append(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="14" height="14" rx="3" fill="{_FILLS[kind]}" '
            f'stroke="{_LINES[kind]}"/>'
            f'<text x="{x + 20:.1f}" y="{top + 11:.1f}" font-size="11" fill="#666">{words}</text>'
        )
        x += len(words) * 6.4 + 40
    return parts
