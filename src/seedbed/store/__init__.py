"""Where rows live: in memory while a row group is built, on disk once it is finished.

`buffer` holds one row group; `values`, `dtypes` and `schema` turn Python values into arrow columns of one type;
`parts` writes parquet files, `manifest` the log that says which of them count, `writer` both; `records` is what the log
holds; `dataset` reads a directory back.

Everything here is synchronous and runs in whatever thread calls it. It may import `errors`, `graph`, `runtime` and
`observe.events`; `build`, `plans` and what stands on them may import it.
"""
