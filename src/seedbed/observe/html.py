"""Rows as HTML for notebooks, to be browsed without scripts: these do not run in output that is not trusted."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# Characters of a cell in a line, and of one in its opened row.
_SHORT, _LONG = 120, 4_000
_COLUMNS = 8

_STYLE = """<style>
.seedbed{font:13px/1.45 system-ui,sans-serif;max-width:100%;overflow-x:auto}
.seedbed .line{display:grid;gap:0 12px;border-bottom:1px solid rgba(128,128,128,.25);padding:3px 4px}
.seedbed .line span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.seedbed .head{font-weight:600}.seedbed small{opacity:.65}
.seedbed summary{cursor:pointer;list-style:none}.seedbed details[open]>summary{font-weight:600}
.seedbed dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 14px;margin:6px 0 12px 24px}
.seedbed dt{opacity:.65}.seedbed dd{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
</style>"""


def rows_html(
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    *,
    summary: str,
    total: int,
) -> str:
    """Rows as a table whose lines open to all of a row; `columns` are their names with their types."""
    shown = list(columns)[:_COLUMNS]
    more = len(columns) - len(shown)
    style = f'style="grid-template-columns:56px repeat({len(shown)},minmax(80px,1fr))"'
    heads = "".join(f"<span>{escape(name)} <small>{escape(columns[name][:24])}</small></span>" for name in shown)
    lines = []
    for at, row in enumerate(rows):
        cells = "".join(f"<span>{_cell(row.get(name), _SHORT)}</span>" for name in shown)
        fields = "".join(f"<dt>{escape(name)}</dt><dd>{_cell(row.get(name), _LONG)}</dd>" for name in columns)
        lines.append(
            f'<details name="seedbed-row"><summary class="line" {style}><span>{at:,}</span>{cells}</summary>'
            f"<dl>{fields}</dl></details>"
        )
    left = total - len(rows)
    notes = [f"and {left:,} more rows"] if left > 0 else []
    notes += [f"{more} more columns in each opened row"] if more > 0 else []
    return (
        f'{_STYLE}<div class="seedbed"><p>{escape(summary)}</p>'
        f'<div class="line head" {style}><span></span>{heads}</div>'
        f"{''.join(lines)}<p><small>{escape('; '.join(notes))}</small></p></div>"
    )


def _cell(value: Any, longest: int) -> str:
    if value is None:
        return "<small>null</small>"
    text = f"{len(value):,} bytes" if isinstance(value, bytes) else str(value)
    return escape(text if len(text) <= longest else f"{text[:longest]}…")
