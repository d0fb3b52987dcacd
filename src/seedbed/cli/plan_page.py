"""The page of `seedbed plan explain --html`: the plan drawn with its segments, and a table of its nodes.

It is one file without scripts that loads nothing: it may be attached to a ticket and opened years later.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ..observe.svg import HEIGHT, edge_path, lay_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..observe.svg import Box

    Node = Mapping[str, Any]

_STYLE: Final = """
:root { --ink: #1b1d21; --soft: #5a6068; --paper: #fff; --line: #8a9099; --band: #eef1f6; --hot: #b3261e;
  --loop: #e3f1e5; --inline: #e6ecf8; --thread: #f8efdc; --auto: #efe7f7; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a9b0ba; --paper: #16181c; --line: #7b828d;
  --band: #22262d; --hot: #ff8a80; --loop: #1f3a26; --inline: #20304f; --thread: #443618; --auto: #382a4a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; } p { margin: .3rem 0; }
.scroll { overflow-x: auto; } .soft { color: var(--soft); } .hot { color: var(--hot); font-weight: 600; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .25rem .8rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--band); } td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg text { fill: var(--ink); font-size: 13px; } svg .op { fill: var(--soft); font-size: 11px; }
.edge { fill: none; stroke: var(--line); stroke-width: 1.3; } .edge.critical { stroke: var(--hot); stroke-width: 2.6; }
.node rect { stroke: var(--line); } .node.critical rect { stroke: var(--hot); stroke-width: 2.6; }
.loop rect { fill: var(--loop); } .inline rect { fill: var(--inline); } .thread rect { fill: var(--thread); }
.auto rect { fill: var(--auto); } .segment { fill: none; stroke: var(--band); stroke-width: 76;
  stroke-linecap: round; stroke-linejoin: round; }
.bar { background: var(--band); width: 16rem; height: .8rem; position: relative; }
.bar i { position: absolute; top: 0; bottom: 0; background: var(--line); } .critical .bar i { background: var(--hot); }
"""
_WHERE: Final = {
    "loop": "waits for servers, on the loop",
    "inline": "on the loop",
    "thread": "in a thread",
    "auto": "on the loop or in a thread, by the number of rows",
}
_MARGIN: Final = 20


def page_text(found: Mapping[str, Any]) -> str:
    """The page of what `plan explain` found, with its trace if it has one."""
    trace = found.get("trace")
    critical = list(trace["critical_path"]) if trace else []
    title = f"Plan {found['plan']}"
    summary = [f"{len(found['nodes'])} nodes in {len(found['segments'])} segments, outputs: {_names(found['outputs'])}"]
    if trace:
        summary.append(f"a request took {trace['total_ms']:.2f} ms, of which it waited {trace['queued_ms']:.2f} ms")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>{escape(title)}</h1>",
        *(f'<p class="soft">{escape(line)}</p>' for line in summary),
    ]
    if critical:
        parts.append(f'<p>Critical path: <span class="hot">{escape(" → ".join(critical))}</span></p>')
    parts += ['<div class="scroll" tabindex="0">', _drawing(found, critical), "</div>", _legend()]
    parts += ["<h2>Nodes</h2>", '<div class="scroll" tabindex="0">', _node_table(found, critical), "</div>"]
    if trace and trace["reads"]:
        parts += ["<h2>Reads</h2>", _reads_table(trace)]
    if found["endpoints"]:
        parts += ["<h2>Endpoints</h2>", _endpoint_table(found["endpoints"])]
    return "\n".join([*parts, "</main></body></html>"]) + "\n"


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _drawing(found: Mapping[str, Any], critical: Sequence[str]) -> str:
    nodes: Sequence[Node] = found["nodes"]
    at = {node["node"]: index for index, node in enumerate(nodes)}
    upstream = [[at[name] for name in node["needs"]] for node in nodes]
    labels = [(node["node"], node["op"], _written(node)) for node in nodes]
    boxes, chains, width, height = lay_out(upstream, labels)
    height += _MARGIN  # the band of a segment is higher than its boxes
    # The arrows are followed by whoever cannot see the drawing in the column "needs" of the table.
    head = (
        f'<svg role="img" aria-label="The graph of the plan" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" xmlns="http://www.w3.org/2000/svg">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" fill="context-stroke"/></marker></defs>'
    )
    parts = [
        head,
        *_segments(found["segments"], at, boxes),
    ]
    steps = set(pairwise(critical))
    for chain in chains:
        hot = " critical" if (nodes[chain[0]]["node"], nodes[chain[-1]]["node"]) in steps else ""
        path = edge_path([boxes[place] for place in chain])
        parts.append(f'<path class="edge{hot}" d="{path}" marker-end="url(#tip)"/>')
    parts += [_box(node, boxes[index], found, node["node"] in critical) for index, node in enumerate(nodes)]
    return "\n".join([*parts, "</svg>"])


def _segments(segments: Iterable[Mapping[str, Any]], at: Mapping[str, int], boxes: Mapping[int, Box]) -> Iterable[str]:
    """A band behind the nodes of each segment that has several."""
    for number, segment in enumerate(segments):
        if len(segment["nodes"]) > 1:
            points = [boxes[at[name]] for name in segment["nodes"]]
            line = " ".join(f"{box.middle:.1f},{box.y + HEIGHT / 2:.1f}" for box in points)
            yield f'<polyline class="segment" points="{line}"><title>segment {number}</title></polyline>'


def _box(node: Node, box: Box, found: Mapping[str, Any], is_critical: bool) -> str:
    where = found["segments"][node["segment"]]["where"]
    lines = ((14, "", node["node"]), (28, "op", node["op"]), (40, "op", _written(node)))
    texts = "".join(
        f'<text class="{kind}" x="{box.middle:.1f}" y="{box.y + y:.1f}" text-anchor="middle">{escape(text)}</text>'
        for y, kind, text in lines
        if text
    )
    return (
        f'<g class="node {where}{" critical" if is_critical else ""}" id="node-{escape(node["node"])}">'
        f"<title>{escape(node['runs'])}</title>"
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{HEIGHT}" rx="7"/>{texts}</g>'
    )


def _written(node: Node) -> str:
    return f"writes {_names(node['writes'])}" if node["writes"] else ""


def _legend() -> str:
    boxes = " ".join(
        f'<svg class="node {name}" width="16" height="12" aria-hidden="true"><rect width="16" height="12" rx="3"/>'
        f"</svg> {escape(text)};"
        for name, text in _WHERE.items()
    )
    return f'<p class="soft">{boxes} a band joins nodes that run as one segment</p>'


def _node_table(found: Mapping[str, Any], critical: Sequence[str]) -> str:
    trace = found.get("trace")
    ran = {each["node"]: each for each in trace["nodes"]} if trace else {}
    total = max((each["end_ms"] for each in ran.values()), default=0.0) or 1.0
    head = ["node", "op", "label", "segment", "runs", "endpoint", "needs", "writes"]
    head += ["began, ms", "took, ms", "rows", "when"] if trace else []
    rows = []
    for node in found["nodes"]:
        plain = [node["node"], node["op"], node["label"], str(node["segment"]), node["runs"], node["endpoint"]]
        cells = [f"<td>{escape(text or '')}</td>" for text in (*plain, _names(node["needs"]), _names(node["writes"]))]
        if trace and (each := ran.get(node["node"])) is not None:
            took = each["end_ms"] - each["start_ms"]
            cells += [f'<td class="number">{number:.2f}</td>' for number in (each["start_ms"], took)]
            cells.append(f'<td class="number">{each["rows_in"]} → {each["rows_out"]}</td>')
            left, width = each["start_ms"] / total * 100, max(0.5, took / total * 100)
            cells.append(f'<td><div class="bar"><i style="left:{left:.1f}%;width:{width:.1f}%"></i></div></td>')
        hot = ' class="critical"' if node["node"] in critical else ""
        rows.append(f"<tr{hot}>{''.join(cells)}</tr>")
    return _table(head, rows)


def _reads_table(trace: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td>{escape(each['endpoint'])}</td><td>{escape(each['command'])}</td>"
        f'<td class="number">{each["keys"]}</td><td class="number">{each["start_ms"]:.2f}</td>'
        f'<td class="number">{each["end_ms"] - each["start_ms"]:.2f}</td></tr>'
        for each in trace["reads"]
    ]
    return _table(["endpoint", "command", "keys", "began, ms", "took, ms"], rows)


def _endpoint_table(endpoints: Sequence[Mapping[str, Any]]) -> str:
    cells = [[f"<td>{escape(str(value))}</td>" for value in each.values()] for each in endpoints]
    return _table(list(endpoints[0]), [f"<tr>{''.join(row)}</tr>" for row in cells])


def _table(head: Iterable[str], rows: Iterable[str]) -> str:
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
