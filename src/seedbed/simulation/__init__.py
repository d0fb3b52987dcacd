"""Predictions of a build before it runs: the real engine on a clock that jumps, with models that only take time.

Imports engine and the packages below it; cli and the public names import it.
"""
