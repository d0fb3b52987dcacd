"""Draws a graph of columns as SVG: layers from top to bottom, each column below everything it needs."""

from __future__ import annotations

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


@attrs.frozen(kw_only=True)
class Box:
    """Where a column is drawn."""

    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def draw_graph(graph: Graph, types: Mapping[str, str]) -> str:
    """An SVG document; `types` says what stands below each column's name."""
    labels = [(node.name, types.get(node.name, _WORDS[node.kind])) for node in graph.nodes]
    layers = order_layers(graph)
    boxes = _place(layers, [max(len(name), len(below)) * _LETTER + 28 for name, below in labels])
    width = max(420, *(box.x + box.width + _MARGIN for box in boxes.values()))
    bottom = max(box.y for box in boxes.values()) + _HEIGHT + _MARGIN
    height = bottom + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-sans-serif, sans-serif" font-size="13">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#777"/></marker></defs>'
        '<rect width="100%" height="100%" fill="#fff"/>'
    ]
    parts += [_edge(boxes[up], boxes[node.index]) for node in graph.nodes for up in node.upstream]
    parts += [_box(boxes[node.index], node.kind, *labels[node.index]) for node in graph.nodes]
    return "\n".join([*parts, *_legend(bottom), "</svg>"]) + "\n"


def order_layers(graph: Graph) -> list[list[int]]:
    """The nodes by layer; within a layer so that edges cross little: near the middle of what they are tied to."""
    depth: dict[int, int] = {}
    for index in graph.order:
        depth[index] = 1 + max((depth[up] for up in graph.nodes[index].upstream), default=-1)
    layers: list[list[int]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in graph.nodes:
        layers[depth[node.index]].append(node.index)
    best = [list(layer) for layer in layers]
    fewest = crossings(graph, best)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            place = {node: at / max(1, len(each) - 1) for each in layers for at, node in enumerate(each)}

            def pull(node: int, place: Mapping[int, float] = place, *, down: bool = downwards) -> float:
                tied = graph.nodes[node].upstream if down else graph.nodes[node].downstream
                return sum(place[each] for each in tied) / len(tied) if tied else place[node]

            layer.sort(key=pull)
        found = crossings(graph, layers)
        if found < fewest:
            best, fewest = [list(layer) for layer in layers], found
    return best


def crossings(graph: Graph, layers: Sequence[Sequence[int]]) -> int:
    """How many pairs of edges between the same two layers cross."""
    place = {node: (depth, at) for depth, layer in enumerate(layers) for at, node in enumerate(layer)}
    edges = [(place[up], place[node.index]) for node in graph.nodes for up in node.upstream]
    return sum(
        a[0][0] == b[0][0] and a[1][0] == b[1][0] and (a[0][1] - b[0][1]) * (a[1][1] - b[1][1]) < 0
        for at, a in enumerate(edges)
        for b in edges[at + 1 :]
    )


def _place(layers: Sequence[Sequence[int]], widths: Sequence[float]) -> dict[int, Box]:
    """Set each layer in the middle of the drawing."""
    rows = [sum(widths[node] for node in layer) + _GAP * (len(layer) - 1) for layer in layers]
    boxes: dict[int, Box] = {}
    for depth, layer in enumerate(layers):
        x = _MARGIN + (max(rows) - rows[depth]) / 2
        for node in layer:
            boxes[node] = Box(x=x, y=_MARGIN + depth * _LAYER, width=widths[node])
            x += widths[node] + _GAP
    return boxes


def _edge(above: Box, below: Box) -> str:
    start, end = above.y + _HEIGHT, below.y - 2
    bend = (end - start) / 2
    return (
        f'<path d="M{above.middle:.1f} {start:.1f} C{above.middle:.1f} {start + bend:.1f} '
        f'{below.middle:.1f} {end - bend:.1f} {below.middle:.1f} {end:.1f}" fill="none" stroke="#999" '
        'stroke-width="1.3" marker-end="url(#tip)"/>'
    )


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
