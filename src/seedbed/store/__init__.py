"""Where rows live: in memory while a row group is built, on disk once it is finished.

`values` holds one row group while it is generated and turns Python values into arrow columns, `schema` gives these one
type; `parts` writes parquet files, `manifest` the log that lists those that count, `writer` both; `records` are the
records of that log; `dataset` reads a directory back.

`journal` stores what is finished of row groups that are not; `entries` are its entries, `codec` encodes them.
`log` is the framing of manifest and journal, `files` the one way to the files of a directory.

Everything here is synchronous and runs in the thread that calls it. Imports errors, runtime, `models.base` (answers
are values of the journal) and `observe.report`; recipe, generators, engine, simulation and cli import it.
"""
