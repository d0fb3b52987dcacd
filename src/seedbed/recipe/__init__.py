"""How a user writes a dataset: frozen specs, recipe files, templates and what they require.

Imports errors, graph and runtime, and of models and store the checks of URLs and types; generators, engine, simulation
and cli import it. The types of columns, models and processors come in as a `Vocabulary`, so that plug-ins need no
change here.
"""
