from __future__ import annotations

from typing import TYPE_CHECKING

import seedbed as sb

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "<script>alert(1)</script>"


async def _text(context: sb.CellContext) -> str:
    return f"{HOSTILE} {context.row}"


def test_a_dataset_in_a_notebook(tmp_path: Path) -> None:
    """A dataset shows its first rows, each of which opens, with all text escaped."""
    dataset = sb.build([sb.Column("text", _text)], rows=60, out=tmp_path / "data")
    html = dataset._repr_html_()
    assert html.count("<details") == 50
    assert "and 10 more rows" in html
    assert HOSTILE not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt; 7" in html


def test_a_preview_in_a_notebook() -> None:
    """A preview shows its rows in the same way."""
    html = sb.preview([sb.Column("text", _text)], rows=3)._repr_html_()
    assert html.count("<details") == 3
    assert HOSTILE not in html
