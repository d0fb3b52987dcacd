"""Entry 1, a build, in the order data walks it: plan, admission, row group, dispatch, cell, salvage, shutdown.

May import every room but plans and those above (embed, cluster, cli).
"""
