"""What runs on trio and knows neither columns nor requests: timers, throttles, lanes, threads, backoff, turnstile.

May import graph, observe and errors; every room above may import it.
"""
