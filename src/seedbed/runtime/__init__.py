"""What builds and plans need of trio: throttles, lanes, timers, threads and processes, asyncio.

Knows no recipes, datasets or plans. Imports errors and observe; every package above may import it.
"""
