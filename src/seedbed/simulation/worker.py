"""A simulation in a process of its own: reads a pickled job from standard input, writes its pickled outcome."""

from __future__ import annotations

import pickle
import sys

from .once import simulate_once


def main() -> None:
    """Run one job."""
    setting, seed = pickle.load(sys.stdin.buffer)
    try:
        result: object = simulate_once(setting, seed)
    except Exception as error:  # noqa: BLE001  it is raised where the simulation was asked for
        result = error
    sys.stdout.buffer.write(pickle.dumps(result))


if __name__ == "__main__":
    main()
