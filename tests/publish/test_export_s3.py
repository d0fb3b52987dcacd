"""Exports to a server on loopback that speaks S3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import polars as pl
import pytest
from moto.server import ThreadedMotoServer

from seedbed.errors import ConfigError
from seedbed.publish.export import export

if TYPE_CHECKING:
    from collections.abc import Iterator

    import seedbed as sb


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """The storage options of a server with the bucket "bucket"."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        found = {"endpoint_url": f"http://{host}:{port}", "key": "id", "secret": "secret"}
        fsspec.filesystem("s3", **found).mkdir("bucket")
        yield found
    finally:
        server.stop()


def test_a_bucket_is_a_target(dataset: sb.Dataset, options: dict[str, Any]) -> None:
    """One file, a folder of files and a partitioned folder in a bucket hold the rows; nothing else is left there."""
    export(dataset, "s3://bucket/one.parquet", storage_options=options)
    export(dataset, "s3://bucket/many", format="jsonl", rows_per_file=20, storage_options=options)
    export(dataset, "s3://bucket/parts", partition_by=["parity"], storage_options=options)
    s3 = fsspec.filesystem("s3", **options, skip_instance_cache=True)
    with s3.open("bucket/one.parquet") as file:
        assert pl.read_parquet(file).equals(dataset.to_polars())
    assert sorted(s3.find("bucket/many")) == [f"bucket/many/data-0000{at}-of-00002.jsonl" for at in range(2)]
    assert sum(len(s3.cat_file(name).splitlines()) for name in s3.find("bucket/many")) == dataset.rows
    assert {name.split("/")[2] for name in s3.find("bucket/parts")} == {"parity=even", "parity=odd"}
    assert set(s3.ls("bucket", detail=False)) == {"bucket/many", "bucket/one.parquet", "bucket/parts"}


def test_an_export_to_a_bucket_continues(dataset: sb.Dataset, options: dict[str, Any]) -> None:
    """Files that were stored are not stored again, and an unfinished one does not appear."""

    def stop(done: int, _: int) -> None:
        if done > 20:
            raise KeyboardInterrupt

    where: Any = {"format": "parquet", "rows_per_file": 10, "storage_options": options}
    with pytest.raises(KeyboardInterrupt):
        export(dataset, "s3://bucket/stopped", on_progress=stop, **where)
    s3 = fsspec.filesystem("s3", **options, skip_instance_cache=True)
    names = [name for name in s3.find("bucket/stopped") if name.endswith(".parquet")]
    assert len(names) == 2
    times = {name: s3.info(name)["LastModified"] for name in names}
    export(dataset, "s3://bucket/stopped", **where)
    s3.invalidate_cache()
    assert len(s3.find("bucket/stopped")) == 4
    assert {name: s3.info(name)["LastModified"] for name in names} == times


def test_a_server_that_rejects_is_named(dataset: sb.Dataset, options: dict[str, Any]) -> None:
    """A bucket that does not exist is an error that names the URL."""
    with pytest.raises(ConfigError, match=r"s3://missing/rows\.csv"):
        export(dataset, "s3://missing/rows.csv", storage_options=options)
