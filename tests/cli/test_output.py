"""How wide the output of the commands is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from seedbed.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(("columns", "width"), [("50", 50), ("400", 300), ("", 119), ("wide", 119)])
def test_columns_of_the_environment_are_honoured(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """COLUMNS sets the width of tables in a pipe; without it they are 119 characters wide."""
    monkeypatch.setenv("COLUMNS", columns)
    rows: Sequence[dict[str, str]] = [{"text": "word " * 58 + "end."}]
    output.print_records(rows)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == pytest.approx(width, abs=12)
    assert max(map(len, lines)) <= max(width, 310)
