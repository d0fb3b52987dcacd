"""A build or a preview that loses rows says so, with the reason and the place in the user's code."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import polars as pl
import pytest
from engine_helpers import seed

from seedbed import AllRowsDropped, Column, Dataset, Permanent, Processor, build, open_build, preview, resume

if TYPE_CHECKING:
    from pathlib import Path

WARNINGS = "seedbed.missing_rows"


def buggy(n: int) -> float:
    """A column with a bug."""
    return 1 / (n - n)


def picky(n: int) -> int:
    """A column that fails for one row."""
    if n == 1:
        raise KeyError("one")
    return n


LINE = buggy.__code__.co_firstlineno + 2
BUG = f"v: ZeroDivisionError: division by zero (test_nothing_silent.py, line {LINE})"


def test_a_build_without_rows_raises(tmp_path: Path) -> None:
    """The error has the reason with file and line, the report, the traceback and the cause; its rows can be retried."""
    with pytest.raises(AllRowsDropped) as caught:
        build([seed(), Column("v", buggy)], rows=3, out=tmp_path / "out")
    error = caught.value
    assert str(error).startswith(f"all 3 rows were dropped: 3 × {BUG}; ")
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.report is not None
    assert error.report.drops_by_reason == {BUG: 3}
    assert f"line {LINE}, in buggy\n    return 1 / (n - n)" in error.report.tracebacks[BUG]
    assert "seedbed/engine" not in error.report.tracebacks[BUG]
    assert Dataset.open(tmp_path / "out").report.drops_by_reason == {BUG: 3}
    fixed = [seed(), Column("v", lambda n: n, requires=["n"])]
    dataset = resume(tmp_path / "out", fixed, retry_dropped=True, accept_changes=True)
    assert dataset.to_polars()["v"].to_list() == [0, 1, 2]


async def test_waiting_for_a_build_without_rows_raises() -> None:
    """`wait` too; a build whose row groups are iterated over has its report, and raises nothing."""
    columns = [seed(), Column("v", buggy)]
    async with open_build(columns, rows=2) as running:
        with pytest.raises(AllRowsDropped, match=rf"all 2 rows were dropped: 2 × {re.escape(BUG)}; ") as caught:
            await running.wait()
        assert caught.value.report is running.report
    async with open_build(columns, rows=2) as running:
        assert [group.rows async for group in running] == [0]
    assert running.report.drops_by_reason == {BUG: 2}


def test_a_build_that_drops_rows_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the reasons, file and line and the traceback; the dataset shows them too."""
    dataset = build([seed(), Column("v", picky)], rows=3, out=tmp_path / "out")
    (record,) = [record for record in caplog.records if record.name == WARNINGS]
    line = picky.__code__.co_firstlineno + 3
    reason = f"1 × v: KeyError: 'one' (test_nothing_silent.py, line {line})"
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"1 row was dropped: {reason}\nTraceback")
    assert 'raise KeyError("one")' in record.getMessage()
    for shown in (dataset, Dataset.open(tmp_path / "out")):
        assert f"2 rows, 1 dropped ({reason}), complete" in repr(shown)


def test_a_preview_that_drops_rows_warns_and_shows_why(caplog: pytest.LogCaptureFixture) -> None:
    """Also one without rows, which raises nothing."""
    shown = preview([seed(), Column("v", buggy)], rows=2)
    assert BUG in caplog.text
    assert repr(shown).startswith(f"<Preview: 0 of 2 rows, 2 dropped (2 × {BUG})>\n")
    assert "ZeroDivisionError" in shown._repr_html_()


def test_what_the_user_raised_on_purpose_has_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The message of an error of seedbed is what its raiser wanted to say."""

    def refuse(n: int) -> int:
        raise Permanent("not today")

    report = preview([seed(), Column("v", refuse)], rows=2).report
    assert report.drops_by_reason == {"v: not today": 2}
    assert report.tracebacks == {}
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("stage", ["post_batch", "after_generation"])
def test_a_filter_that_leaves_nothing_warns(stage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It may be what the user wants; the warning names the processor."""
    nothing = Processor(stage=stage, apply=lambda rows: rows.filter(pl.lit(False)), name="nothing")
    dataset = build([seed()], rows=3, out=tmp_path / "out", processors=[nothing])
    assert len(dataset) == 0
    assert "no row is left: 0 rows, 3 requested, 3 removed by 'nothing'" in caplog.text


def test_a_build_of_no_rows_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was lost."""
    assert len(build([seed()], rows=0, out=tmp_path / "out")) == 0
    assert not caplog.records


def test_a_failed_processor_names_file_and_line(tmp_path: Path) -> None:
    """The message of a processor's error has the place, and its cause is the exception."""

    def explode(rows: pl.DataFrame) -> pl.DataFrame:
        raise KeyError("x")

    with pytest.raises(Exception, match=r"KeyError: 'x' \(test_nothing_silent.py, line \d+\)") as caught:
        build([seed()], rows=2, out=tmp_path, processors=[Processor(stage="post_batch", apply=explode)])
    assert isinstance(caught.value.__cause__, KeyError)
