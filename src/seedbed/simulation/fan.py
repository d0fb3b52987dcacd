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
    return _Fan(at_once).run(packed)


class _Fan:
    """Children, so many at once. Changed by the threads that wait for them, one child each."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._children: list[subprocess.Popen[bytes]] = []
        self._over = False

    def run(self, jobs: Sequence[bytes]) -> list[Outcome]:
        """What each job gives, in order."""
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="seedbed-simulate") as pool:
            try:
                return list(pool.map(self._elsewhere, jobs))
            except BaseException:
                # Whoever waits has had enough, or needs the others no more.
                self._over = True
                for child in self._children:
                    child.kill()
                raise

    def _elsewhere(self, job: bytes) -> Outcome:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        # Not multiprocessing, which would import the caller's script once more.
        child = subprocess.Popen(
            [sys.executable, "-m", "seedbed.simulation.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self._children.append(child)
        if self._over:
            child.kill()
        with child:
            out, said = child.communicate(job)
        if child.returncode:
            lines = said.decode(errors="replace").strip().splitlines()
            last = lines[-1] if lines else "it said nothing"
            raise SeedbedError(f"a process that simulated ended with status {child.returncode}: {last}")
        result = pickle.loads(out)
        assert isinstance(result, Outcome)
        return result


def _columns(setting: Setting) -> Sequence[object]:
    return setting.recipe if isinstance(setting.recipe, tuple) else setting.recipe.columns


def _packed(jobs: Sequence[tuple[Setting, int]]) -> list[bytes] | None:
    try:
        packed = [pickle.dumps(job) for job in jobs]
    except Exception:  # noqa: BLE001  a recipe may hold anybody's objects
        return None
    # Another process has another main module.
    return None if any(b"__main__" in each for each in packed) else packed
