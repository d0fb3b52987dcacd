"""A simulation as one HTML page that needs nothing beside it."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from .text import USE_HEADS, VARIANT_HEADS, headline, seconds_text, use_rows, variant_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .result import Estimate, Simulation
    from .watch import Track

_WIDTH, _HEIGHT = 900, 120
_STYLE = """
body { font: 15px/1.5 ui-sans-serif, system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } th { text-align: left; color: #777; font-weight: normal }
th, td { padding: .15rem 1.2rem .15rem 0; vertical-align: top } svg { max-width: 100% }
"""


def page(simulation: Simulation, title: str) -> str:
    """The whole page."""
    base = simulation.base
    parts = [f"<p><b>{escape(headline(base))}</b></p>", f"<p>Bottleneck: {escape(base.bottleneck)}</p>"]
    if base.stopped is not None:
        parts.append(f"<p><b>It would end early:</b> {escape(base.stopped)}</p>")
    parts += ["<h2>Use</h2>", _table(USE_HEADS, use_rows(base)), _limits(base)]
    names = {use.load.key: use.name for use in base.keys}
    for track in base.timeline:
        parts += [f"<h2>{escape(names.get(track.key, track.key))}: calls in flight</h2>", _chart(track, base)]
    if simulation.variants:
        parts += ["<h2>Variants</h2>", _table(VARIANT_HEADS, variant_rows(simulation))]
    for heading, lines in (("Assumed", base.assumptions), ("Notes", base.notes)):
        if lines:
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            parts.append(f"<h2>{heading}</h2><ul>{items}</ul>")
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{_STYLE}</style>"
    body = "\n".join([f"<h1>{escape(title)}: a simulated run</h1>", *parts])
    return f"<!doctype html>\n<html lang='en'><head>{head}</head>\n<body>\n{body}\n</body></html>\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _limits(base: Estimate) -> str:
    rows = [
        (use.name, str(use.load.ceiling), f"{use.load.busy:.0%}", f"{use.load.held_up + use.load.paced:.0%}")
        for use in base.keys
    ]
    rows += [
        (each.name, f"{each.allowed:,}", f"{each.used / each.allowed:.0%}", f"{each.held_up:.0%}")
        for each in base.limits
    ]
    return "<h2>Limits</h2>" + _table(("limit", "allows", "busy", "held work up"), rows)


def _chart(track: Track, base: Estimate) -> str:
    """Calls in flight as an area, what the throttle allowed as a line above it."""
    step = _WIDTH / len(track.in_flight)

    def points(values: Sequence[float]) -> str:
        return " ".join(
            f"{(at + 0.5) * step:.1f},{_HEIGHT * (1 - value / track.ceiling):.1f}" for at, value in enumerate(values)
        )

    return (
        f'<svg viewBox="-40 -10 {_WIDTH + 60} {_HEIGHT + 40}" font-size="12" fill="#777">'
        f'<polygon points="{step / 2:.1f},{_HEIGHT} {points(track.in_flight)} {_WIDTH - step / 2:.1f},{_HEIGHT}" '
        'fill="#cfdcf3" stroke="#4a6bb0"/>'
        f'<polyline points="{points(track.limit)}" fill="none" stroke="#b3832c" stroke-dasharray="4 3"/>'
        f'<text x="-8" y="4" text-anchor="end">{track.ceiling}</text>'
        f'<text x="-8" y="{_HEIGHT}" text-anchor="end">0</text><text x="0" y="{_HEIGHT + 18}">0s</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 18}" text-anchor="end">{seconds_text(base.seconds.mean)}</text></svg>'
    )
