"""One dataset for all tests that only read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sample_rows import make_dataset

if TYPE_CHECKING:
    import seedbed as sb


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> sb.Dataset:
    """35 rows in five parts, and five dropped ones."""
    return make_dataset(tmp_path_factory.mktemp("datasets") / "data")
