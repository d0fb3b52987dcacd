"""Draws graphs as SVG: layers from top to bottom, each node below everything it needs."""

from __future__ import annotations

import itertools
from statistics import fmean
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import attrs

from ..graph import Kind, topological_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..graph import Graph

_LETTER = 7.3  # the width of a letter of the font, more or less
HEIGHT = 44  # of a box
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
    """The place of a column, or of an edge that passes through a layer."""

    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def draw_graph(graph: Graph, types: Mapping[str, str]) -> str:
    """An SVG document; `types` has the text below each column's name."""
    labels = [(node.name, types.get(node.name, _WORDS[node.kind])) for node in graph.nodes]
    boxes, chains, width, bottom = lay_out([node.upstream for node in graph.nodes], labels)
    width, height = max(420, width), bottom + 34
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-sans-serif, sans-serif" font-size="13">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#777"/></marker></defs>'
        '<rect width="100%" height="100%" fill="#fff"/>'
    )
    style = 'fill="none" stroke="#999" stroke-width="1.3" marker-end="url(#tip)"'
    parts = [f'<path d="{edge_path([boxes[place] for place in chain])}" {style}/>' for chain in chains]
    parts += [_box(boxes[node.index], node.kind, *labels[node.index]) for node in graph.nodes]
    return "\n".join([head, *parts, *_legend(bottom), "</svg>"]) + "\n"


def layout_graph(graph: Graph, types: Mapping[str, str]) -> dict[str, Any]:
    """The same drawing as JSON values, for a page that draws it itself: its size, boxes, and edges as paths."""
    labels = [(node.name, types.get(node.name, _WORDS[node.kind])) for node in graph.nodes]
    boxes, chains, width, height = lay_out([node.upstream for node in graph.nodes], labels)
    return {
        "width": width,
        "height": height,
        "boxes": [
            {
                "name": name,
                "below": below,
                "kind": node.kind.value,
                "height": HEIGHT,
                **attrs.asdict(boxes[node.index]),
            }
            for node, (name, below) in zip(graph.nodes, labels, strict=True)
        ],
        "edges": [
            {
                "path": edge_path([boxes[place] for place in chain]),
                "ends": [graph.nodes[at].name for at in (chain[0], chain[-1])],
            }
            for chain in chains
        ],
    }


def lay_out(
    upstream: Sequence[Sequence[int]], labels: Sequence[Sequence[str]]
) -> tuple[dict[int, Box], list[list[int]], float, float]:
    """The boxes by place, wide enough for their lines of text, the edges as chains of places, and width and height."""
    layers, chains = order_layers(upstream)
    boxes = _place(layers, [max(map(len, lines)) * _LETTER + 28 for lines in labels])
    width = max(box.x + box.width + _MARGIN for box in boxes.values())
    return boxes, chains, width, max(box.y for box in boxes.values()) + HEIGHT + _MARGIN


def order_layers(upstream: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """The layers from top to bottom, and the edges: each a chain of places from layer to layer.

    A place is the index of a node, or below 0 where an edge passes through a layer. Within a layer, places are near the
    middle of what they are tied to, so that edges cross little.
    """
    depth: dict[int, int] = {}
    for index in topological_order(upstream):
        depth[index] = 1 + max((depth[up] for up in upstream[index]), default=-1)
    layers: list[list[int]] = [[] for _ in range(max(depth.values()) + 1)]
    for index in range(len(upstream)):
        layers[depth[index]].append(index)
    chains: list[list[int]] = []
    passing = itertools.count(-1, -1)
    for index, needs in enumerate(upstream):
        for up in needs:
            chains.append([up])
            for layer in layers[depth[up] + 1 : depth[index]]:
                layer.append(next(passing))
                chains[-1].append(layer[-1])
            chains[-1].append(index)
    return _untangled(layers, chains), chains


def _untangled(layers: list[list[int]], chains: Sequence[Sequence[int]]) -> list[list[int]]:
    """The order of the fewest crossings that a few sweeps up and down find."""
    above: dict[int, list[int]] = {place: [] for layer in layers for place in layer}
    below: dict[int, list[int]] = {place: [] for layer in layers for place in layer}
    for upper, lower in (pair for chain in chains for pair in itertools.pairwise(chain)):
        above[lower].append(upper)
        below[upper].append(lower)
    orders = [layers]
    for sweep in range(_SWEEPS):
        order, tied = [list(layer) for layer in orders[-1]], below if sweep % 2 else above
        for layer in reversed(order) if sweep % 2 else order:
            at = {place: number / max(1, len(each) - 1) for each in order for number, place in enumerate(each)}
            layer.sort(key=lambda place: fmean(at[each] for each in tied[place] or [place]))
        orders.append(order)
    return min(orders, key=lambda order: crossings(order, chains))


def crossings(layers: Sequence[Sequence[int]], chains: Sequence[Sequence[int]]) -> int:
    """How many pairs of edges cross between one layer and the next."""
    place = {each: (depth, at) for depth, layer in enumerate(layers) for at, each in enumerate(layer)}
    links = [(place[upper], place[lower]) for chain in chains for upper, lower in itertools.pairwise(chain)]
    return sum(
        a[0][0] == b[0][0] and (a[0][1] - b[0][1]) * (a[1][1] - b[1][1]) < 0
        for a, b in itertools.combinations(links, 2)
    )


def _place(layers: Sequence[Sequence[int]], widths: Sequence[float]) -> dict[int, Box]:
    """Set each layer in the middle of the drawing."""
    wide = {place: widths[place] if place >= 0 else _PASSAGE for layer in layers for place in layer}
    totals = [sum(wide[place] + _GAP for place in layer) for layer in layers]
    boxes: dict[int, Box] = {}
    for depth, layer in enumerate(layers):
        x = _MARGIN + (max(totals) - totals[depth]) / 2
        for place in layer:
            boxes[place] = Box(x=x, y=_MARGIN + depth * _LAYER, width=wide[place])
            x += wide[place] + _GAP
    return boxes


def edge_path(boxes: Sequence[Box]) -> str:
    """The path of a line from the first box to the last, straight down through the layers between."""
    path = ""
    for upper, lower in itertools.pairwise(boxes):
        y, end = upper.y + HEIGHT, lower.y - (2 if lower is boxes[-1] else 0)  # room for the tip of the arrow
        bend = (end - y) / 2
        path += f"{'L' if path else 'M'}{upper.middle:.1f} {y:.1f} "
        path += f"C{upper.middle:.1f} {y + bend:.1f} {lower.middle:.1f} {end - bend:.1f} {lower.middle:.1f} {end:.1f} "
    return path


def _box(box: Box, kind: Kind, name: str, below: str) -> str:
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{HEIGHT}" '
        f'rx="{HEIGHT / 2 if kind is Kind.FULL_COLUMN else 7}" fill="{_FILLS[kind]}" stroke="{_LINES[kind]}"/>'
        f'<text x="{box.middle:.1f}" y="{box.y + 19:.1f}" text-anchor="middle" font-weight="600">{escape(name)}</text>'
        f'<text x="{box.middle:.1f}" y="{box.y + 35:.1f}" text-anchor="middle" font-size="11" fill="#666">'
        f"{escape(below)}</text>"
    )


def _legend(top: float) -> Iterator[str]:
    x = float(_MARGIN)
    for kind, words in _WORDS.items():
        yield f'<rect x="{x}" y="{top}" width="14" height="14" rx="3" fill="{_FILLS[kind]}" stroke="{_LINES[kind]}"/>'
        yield f'<text x="{x + 20:.1f}" y="{top + 11:.1f}" font-size="11" fill="#666">{words}</text>'
        x += len(words) * 6.4 + 40
