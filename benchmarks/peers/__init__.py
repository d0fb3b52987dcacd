"""The same dataset made by others: `python -m benchmarks.peers`, or `nox -s bench_peers`.

Each `with_*.py` is a program for an environment of its own, in which seedbed need not be installed; `work.py`, which
they share, needs the standard library only.
"""
