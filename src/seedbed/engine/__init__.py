"""A build: `plan` checks it, `scheduler` decides everything, `run` performs that on trio, `worker` runs one attempt.

`scheduler`, `row_group`, `tasks`, `budget`, `salvage`, `error_window`, `stateful`, `unkeyed` and `notices` import
neither trio nor the store. `history`, `replay`, `retry`, `states` and `past` resume an interrupted build.

Imports every package below it (embed, errors, generators, graph, models, observe, recipe, runtime, store) and never
plans; simulation and cli import it.
"""
