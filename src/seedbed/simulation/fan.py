"""Several simulations at once, each in a process of its own, where they can be sent to one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..errors import SeedbedError
from .once import Outcome, simulate_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .stage import Setting

# A process takes about a second to start: so many cells in all are worth one.
_WORTH = 30_000


def simulate_all(jobs: Sequence[tuple[Setting, int]], *, processes: int | None = None) -> list[Outcome]:
    """What each setting gives with its seed, in order; raises the first failure.

    A recipe with functions of a script or a notebook cannot be sent away: its simulations run here, one by one.
    """
    at_once = min(len(jobs), processes or os.cpu_count() or 1)
    cells = sum(setting.rows * len(_columns(setting)) for setting, _ in jobs)
    packed = _packed(jobs) if at_once > 1 and (processes is not None or cells >= _WORTH) else None
    if packed is None:
        return [simulate_once(*job) for job in jobs]
    with ThreadPoolExecutor(at_once, thread_name_prefix="seedbed-simulate") as pool:
        return list(pool.map(_elsewhere, packed))


def _columns(setting: Setting) -> Sequence[object]:
    return setting.recipe if isinstance(setting.recipe, tuple) else setting.recipe.columns


def _packed(jobs: Sequence[tuple[Setting, int]]) -> list[bytes] | None:
    try:
        packed = [pickle.dumps(job) for job in jobs]
    except Exception:  # noqa: BLE001  a recipe may hold anybody's objects
        return None
    # Another process has another main module.
    return None if any(b"__main__" in each for each in packed) else packed


def _elsewhere(job: bytes) -> Outcome:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # Not multiprocessing, which would import the caller's script once more.
    ended = subprocess.run(
        [sys.executable, "-m", "seedbed.simulation.worker"],
        input=job,
        capture_output=True,
        env=environment,
        check=False,
    )
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        raise SeedbedError(f"a process that simulated died (status {ended.returncode}): {said[-1] if said else ''}")
    result = pickle.loads(ended.stdout)
    if isinstance(result, BaseException):
        raise result
    assert isinstance(result, Outcome)
    return result
