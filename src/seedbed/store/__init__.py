"""Where rows live: in memory while a row group is built, on disk once it is finished.

`buffer` holds one row group; `values`, `dtypes` and `schema` turn Python values into arrow columns of one type;
`parts` writes parquet files, `manifest` the log that says which of them count, `writer` both; `records` is what the log
holds, `layout` which rows are in which group; `dataset` reads a directory back.

`journal` stores what is finished of row groups that are not: `entries` are its entries, `codec` makes bytes of them.
`log` is the framing of manifest and journal, `files` the one way to the files of a directory.

Everything here is synchronous and runs in the thread that calls it. Imports errors, runtime, `models.base` (answers
are values of the journal) and `observe.profile`; recipe, generators, engine, simulation and cli import it.
"""
