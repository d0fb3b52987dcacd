"""The kinds of columns, one file each with its spec (what a user writes) and its implementation.

Imports errors, graph, runtime, models and store; recipe, engine, simulation and cli import it.
"""
