"""Runs the command in a process of its own, as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

import seedbed as library

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
REVIEWS = ROOT / "examples" / "quickstart" / "reviews.yaml"
COMMAND = [sys.executable, "-m", "seedbed.cli"]
# As `filterwarnings` of the other tests: warnings of the child are errors.
ENVIRONMENT = {
    **os.environ,
    "PYTHONWARNINGS": "error",
    "PYTHONPATH": str(Path(library.__file__).parents[1]),
    "COLUMNS": "100",
    "NO_COLOR": "1",
}
ENVIRONMENT.pop("SEEDBED_PROGRESS", None)


@attrs.frozen
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What --json wrote: one value."""
        return json.loads(self.out)


def seedbed(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> Ended:
    """Run `seedbed` with these arguments."""
    ended = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@contextmanager
def started(*arguments: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start `seedbed` in the background; a test that fails leaves neither the process nor its pipes behind."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": ENVIRONMENT, **options}
    with subprocess.Popen([*COMMAND, *map(str, arguments)], **given) as process:
        try:
            yield process
        finally:
            process.kill()


def recipe(directory: Path, text: str = "", *, name: str = "recipe.yaml") -> Path:
    """Write a small recipe, with more columns if given."""
    path = directory / name
    path.write_text(f"{_SMALL}{text}", encoding="utf-8")
    return path


_SMALL = """\
name: small
seed: 3
models:
  writer: {type: scripted, input_price: 1.0, output_price: 1.0}
columns:
  - {name: thing, type: category, values: [kettle, lamp]}
  - {name: stars, type: uniform, low: 1, high: 5, decimals: 0}
  - {name: good, type: expression, expr: "stars >= 4"}
"""

TEXT = '  - {name: review, type: llm-text, model: writer, prompt: "Review the {{ thing }}, {{ stars }} stars."}\n'
