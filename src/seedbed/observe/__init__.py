"""What one sees of a run: events, and the readers that make traces and reports of them.

Imports nothing of seedbed but `errors` and `graph`; every other room may import it.
"""
