"""What the fault tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from harness import Builds

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def builds() -> Iterator[Builds]:
    """The process that builds are forked off."""
    made = Builds()
    yield made
    made.close()
