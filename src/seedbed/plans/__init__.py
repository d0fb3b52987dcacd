"""Entry 2, a plan: format, registries, row sets, expressions, ops, compile, execute, endpoints.

May import graph, runtime, observe and errors; never build, nor build this.
"""
