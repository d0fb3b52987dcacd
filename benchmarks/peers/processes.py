"""Runs a peer as a process of its own, in the environment that it is given, against a server of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import asdict
from typing import TYPE_CHECKING

from seedbed.testing import serve_openai_process

from ..common import expect
from .work import WARM_UP_ROWS, Taken, Work

if TYPE_CHECKING:
    from pathlib import Path

ANSWER = "It is older than it looks, and whoever made it did not expect it to be kept for so long."
"""What the server says to everything: making something plausible up for each call would cost it more than serving."""
# Nobody is told of these runs, and nobody's settings are read or written.
_ENVIRONMENT = {"HAMILTON_TELEMETRY_ENABLED": "false", "NEMO_TELEMETRY_ENABLED": "false"}


def run_peer(python: str | Path, module: str, *, rows: int, at_once: int, latency: float) -> Taken:
    """What a peer took; the server must have had every call exactly once."""
    with serve_openai_process(latency=latency, answer=ANSWER) as server, tempfile.TemporaryDirectory() as home:
        work = Work(url=server.url, rows=rows, at_once=at_once)
        done = subprocess.run(
            [str(python), "-m", f"benchmarks.peers.{module}", json.dumps(asdict(work))],
            env={**os.environ, **_ENVIRONMENT, "HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )
        statuses = server.statistics()["statuses"]
    expect(done.returncode == 0, f"{module} failed: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    calls = Work(url="", rows=rows + WARM_UP_ROWS, at_once=at_once).calls
    expect(statuses == {"200": calls}, f"{module} got {statuses} from the server instead of {calls} answers")
    return Taken(**json.loads(done.stdout.splitlines()[-1]))
