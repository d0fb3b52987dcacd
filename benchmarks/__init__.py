"""Benchmarks of the engine: `python -m benchmarks.<name> [--short] [--json FILE]`, or all of them by `nox -s bench`."""
