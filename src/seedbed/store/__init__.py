"""Rows in memory while a row group is built, and on disk when it is finished.

`values` holds one row group while it is generated and turns Python values into arrow columns, `schema` gives these one
type; `parts` writes parquet files, `manifest` the log that lists those that count, `writer` both; `dataset` reads a
directory.

`journal` stores the outcomes of unfinished row groups; `entries` are its entries, `codec` encodes their values. `log`
is the framing of manifest and journal; `files` opens, creates and renames the files of a directory.

Everything here is synchronous and runs in the thread that calls it. It imports errors, runtime, `models.base` (answers
are values of the journal) and `observe.report`.
"""
