"""A warning for async functions that keep the loop from running."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import seedbed as sb

if TYPE_CHECKING:
    import pytest


@sb.column
async def busy(topic: str) -> str:
    """Uses the processor without awaiting anything."""
    until = time.perf_counter() + 0.12
    while time.perf_counter() < until:
        pass
    return topic


@sb.column
async def polite(topic: str) -> str:
    """Does nothing."""
    return topic


def test_a_column_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with its name and what to do; columns that behave are not mentioned."""
    recipe = sb.Recipe(columns=[sb.Category("topic", values=["tea"]), busy, polite])
    with caplog.at_level(logging.WARNING, logger="seedbed"):
        sb.preview(recipe, rows=2)
    (record,) = caplog.records
    assert "async code of column 'busy' blocked the event loop" in record.getMessage()
