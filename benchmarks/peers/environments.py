"""Environments for peers: each its own, inside the one that the benchmark runs in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ENVIRONMENTS = Path(sys.prefix, "peers")


def make_environment(name: str, requirements: Sequence[str]) -> tuple[Path | None, str]:
    """The interpreter of an environment with the newest of what is required; None and the reason if there is none."""
    python = ENVIRONMENTS / name / "bin" / "python"
    # Without pip in it: ours installs, so that it works where `ensurepip` is missing.
    commands = [
        [sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])],
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *requirements],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return None, lines[-1] if lines else f"exit code {done.returncode}"
    return python, ""
