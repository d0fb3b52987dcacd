"""Predict the time, usage and cost of a build: the real engine on a virtual clock, with simulated model clients.

Imports engine and everything below it; cli and the public names import it.
"""
