from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from seedbed import Column, build_graph
from seedbed.observe.svg import crossings, draw_graph, order_layers


def anything(**needed: object) -> int:
    """A cell function that accepts any requirements."""
    return len(needed)


@st.composite
def graphs(draw: st.DrawFn) -> list[Column]:
    """Columns that need some of those before them."""
    count = draw(st.integers(1, 12))
    needs = [
        draw(st.lists(st.integers(0, index - 1), unique=True, max_size=4)) if index else [] for index in range(count)
    ]
    return [Column(f"c{index}", anything, requires=[f"c{up}" for up in each]) for index, each in enumerate(needs)]


@given(graphs())
def test_every_edge_goes_down_one_layer_at_a_time(columns: list[Column]) -> None:
    """Each column has one place, and each edge is a chain that descends one layer at a time."""
    graph = build_graph(columns)
    layers, chains = order_layers([node.upstream for node in graph.nodes])
    depth = {place: number for number, row in enumerate(layers) for place in row}
    assert sorted(place for place in depth if place >= 0) == list(range(len(columns)))
    assert len(depth) == sum(map(len, layers))
    assert all(depth[lower] == depth[upper] + 1 for chain in chains for upper, lower in pairwise(chain))
    needs = {(up, node.index) for node in graph.nodes for up in node.upstream}
    assert {(chain[0], chain[-1]) for chain in chains} == needs


@given(graphs())
def test_it_is_svg(columns: list[Column]) -> None:
    """The drawing is XML with a name for each column, and every box lies within it."""
    graph = build_graph(columns)
    root = ET.fromstring(draw_graph(graph, {"c0": "<seed> & more"}))
    space = "{http://www.w3.org/2000/svg}"
    texts = {element.text for element in root.iter(f"{space}text")}
    assert {column.name for column in columns} | {"<seed> & more"} <= texts
    width = float(root.attrib["width"])
    boxes = [element for element in root.iter(f"{space}rect") if "x" in element.attrib]
    assert all(float(box.attrib["x"]) + float(box.attrib["width"]) <= width for box in boxes)


def test_crossings_are_avoided() -> None:
    """Two edges that would cross in declared order are drawn without crossing."""
    names = {"a": [], "b": [], "c": ["b"], "d": ["a"]}
    graph = build_graph([Column(name, anything, requires=needs) for name, needs in names.items()])
    layers, chains = order_layers([node.upstream for node in graph.nodes])
    assert crossings([[0, 1], [2, 3]], chains) == 1
    assert crossings(layers, chains) == 0
