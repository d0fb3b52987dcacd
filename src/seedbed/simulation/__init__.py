"""What a build will take, before it is run: the true engine on a clock that jumps, with models that only take time.

Stands on build and on everything below it; cli and the public names import it.
"""
