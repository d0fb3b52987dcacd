"""Seeds from http URLs, from real servers on loopback."""

from __future__ import annotations

import gzip
import io
from typing import Any

import polars as pl
import pytest
from file_server import serve_files

import seedbed as sb
from seedbed.columns.spec import Environment, make_column
from seedbed.errors import ConfigError

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

ROWS = 5_000


def _files() -> dict[str, bytes]:
    csv = "id,text\n" + "".join(f"{row},t{row}\n" for row in range(ROWS))
    parquet = io.BytesIO()
    pl.DataFrame({"id": range(ROWS), "text": [f"t{row}" for row in range(ROWS)]}).write_parquet(parquet)
    lines = "".join(f'{{"id": {row}, "text": "t{row}"}}\n' for row in range(ROWS))
    return {
        "/rows.csv": csv.encode(),
        "/rows.csv.gz": gzip.compress(csv.encode()),
        "/rows.parquet": parquet.getvalue(),
        "/rows.jsonl": lines.encode(),
    }


@pytest.mark.parametrize("name", sorted(_files()))
@pytest.mark.parametrize(
    "server", [{}, {"ranges": False}, {"ranges": False, "length": False}], ids=["ranges", "whole", "no length"]
)
def test_a_seed_is_read_from_an_http_url(name: str, server: dict[str, bool]) -> None:
    """A seed has the rows of the file at its URL, with or without range requests, and a digest of its content."""
    with serve_files(_files(), **server) as (url, _):
        column = make_column(sb.Seed("s", path=f"{url}{name}"), Environment())
        generator: Any = column.generator
        assert column.outputs == ("id", "text")
        found = generator.generate(range(ROWS - 2, ROWS + 1))
        assert found.to_dicts() == [{"id": row % ROWS, "text": f"t{row % ROWS}"} for row in range(ROWS - 2, ROWS + 1)]
        assert generator.content_digest().startswith(f"1 file, {len(_files()[name]):,} bytes, hash ")


def test_a_seed_url_with_a_query_is_read() -> None:
    """A query in the URL is part of it and no pattern."""
    with serve_files(_files()) as (url, requested):
        column = make_column(sb.Seed("s", path=f"{url}/rows.csv?version=2", format="csv"), Environment())
        generator: Any = column.generator
        assert generator.generate(range(1)).to_dicts() == [{"id": 0, "text": "t0"}]
        assert generator.content_digest().startswith("1 file, ")
    assert set(requested) == {"/rows.csv?version=2"}


def test_an_unreachable_seed_url_is_named() -> None:
    """The message has the server's response for a missing file, or the reason if the server is unreachable."""
    with serve_files({}) as (url, _), pytest.raises(ConfigError, match=r"'s': 'http://.*/none.csv' .*404.*Not Found"):
        make_column(sb.Seed("s", path=f"{url}/none.csv"), Environment())
    with pytest.raises(ConfigError, match=r"column 's': 'http://.*/rows.csv' cannot be opened: .*[Cc]onnect"):
        make_column(sb.Seed("s", path=f"{url}/rows.csv"), Environment())
