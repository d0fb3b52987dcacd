"""The examples run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from seedbed import Dataset

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_plain_columns_build_a_dataset_and_show_it(tmp_path: Path) -> None:
    """It ends with a complete dataset, prints rows of it, and reports rate limits and drops."""
    command = [sys.executable, str(EXAMPLES / "plain_columns.py")]
    for _ in range(2):  # the second run replaces what the first left
        shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    dataset = Dataset.open(tmp_path / "data" / "reviews")
    dataset.verify()
    assert dataset.complete
    assert dataset.rows == 196
    assert {drop.reason for drop in dataset.drops} == {"stars: the judge gave no number"}
    assert "196 of 200 rows, 4 dropped" in shown
    assert "batch_0000003.parquet" in shown
