"""Utilities around trio for builds and plans: throttles, lanes, timers, threads and processes, asyncio.

Knows no recipes, datasets or plans. Imports errors and checks; every package above may import it.
"""
