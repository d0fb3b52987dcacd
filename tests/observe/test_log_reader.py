from __future__ import annotations

import logging

import pytest

from seedbed.observe import events
from seedbed.observe.log import LogReader


def dropped(row: int, error: str = "no") -> events.RowDropped:
    """A row that was dropped because of column b."""
    return events.RowDropped(time=0.0, row_group=4, row=row, column="b", attempts=3, error=error)


def test_a_drop_is_logged_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    """The line of a dropped row has its reason, column and row group."""
    LogReader()(dropped(41))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "row 41 dropped after 3 attempts: no (column=b, row_group=4)"


def test_equal_drops_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Of many rows dropped for one reason the first is logged and the rest counted."""
    read = LogReader()
    for row in range(100):
        read(dropped(row))
    read(dropped(100, "another reason"))
    read(events.RowGroupFinished(time=0.0, row_group=4, rows=0, dropped=101))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert messages[-1] == "99 more rows dropped: no (column=b, row_group=4)"


@pytest.mark.parametrize(
    ("event", "level", "message"),
    [
        (
            events.SalvageStarted(time=0.0, row_group=1, round=2, cells=3),
            "INFO",
            "salvage round 2: 3 cells (row_group=1)",
        ),
        (
            events.RowGroupSkipped(time=0.0, row_group=1, error="p: no"),
            "WARNING",
            "row group skipped: p: no (row_group=1)",
        ),
        (
            events.SchemaConflictFound(time=0.0, row_group=1, message="int and text"),
            "WARNING",
            "int and text (row_group=1)",
        ),
        (events.StopRequested(time=0.0, reason="enough"), "INFO", "stopping: enough"),
        (
            events.LateThread(time=0.0, column="b", seconds=2.0),
            "WARNING",
            "an abandoned thread ended 2.0 s after its start; its result was ignored (column=b)",
        ),
    ],
)
def test_other_events_are_logged(
    event: events.Event, level: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Salvage rounds, skips, conflicts, stops and late threads are logged, each at its level."""
    caplog.set_level(logging.INFO, logger="seedbed")
    LogReader()(event)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [(level, message)]
