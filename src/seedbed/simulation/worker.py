"""A simulation in a process of its own: reads a pickled job from standard input, writes its pickled outcome."""

from __future__ import annotations

import gc
import pickle
import sys

from .once import simulate_once


def main() -> None:
    """Run one job."""
    # This process makes millions of objects, none of them in circles, and ends.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    setting, seed = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(simulate_once(setting, seed)))


if __name__ == "__main__":
    main()
