"""A build: `plan` checks it, `scheduler` decides everything, `run` performs that on trio, `worker` runs one attempt.

`scheduler`, `row_group`, `tasks`, `budget`, `failures` and `stateful` import neither trio nor the store. `resume` and
`replay` resume an interrupted build.

Imports every package below it (errors, columns, graph, models, observe, recipe, runtime, store) and never plans;
simulation and cli import it.
"""
