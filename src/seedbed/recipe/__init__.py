"""How a user writes a dataset: frozen specs, recipe files, templates and what they require.

Imports errors, graph and runtime only; generators and build import it. What there is to choose from (types of columns,
models and processors) comes in as a `Vocabulary`, so that plug-ins need no place here.
"""
