"""Observation of a run: events, and the readers that turn them into progress, log lines, traces and reports.

Imports errors and graph only; every other package may import it.
"""
