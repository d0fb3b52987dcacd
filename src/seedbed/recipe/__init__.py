"""A recipe, recipe files and the fingerprint that identifies a recipe on resume.

Imports errors, graph, runtime, models, store and columns; engine, simulation and cli import it.
"""
