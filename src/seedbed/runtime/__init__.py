"""What builds and plans need of trio: throttles, lanes, timers, threads and processes, backoff, asyncio adapters.

Knows no recipes, datasets or plans. Imports embed and errors; every package above may import it.
"""
