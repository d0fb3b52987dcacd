"""Servers that show datasets, and large datasets without a model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import attrs
import polars as pl

from seedbed.store.manifest import GroupRecord, Header
from seedbed.store.writer import DatasetWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
_WORDS = ("kettle", "garden", "window", "paper", "river", "stone", "lamp", "bread", "morning", "letter")


@attrs.frozen
class Server:
    """A server that runs: its URL with the token, and requests to it."""

    url: str
    process: subprocess.Popen[str]

    @property
    def address(self) -> str:
        return self.url.partition("#")[0]

    @property
    def token(self) -> str:
        return self.url.partition("token=")[2]

    def page(self, path: str) -> str:
        """The URL of a page, for a browser that has seen the token."""
        return f"{self.address}#/{path}"

    def request(
        self, path: str, headers: Mapping[str, str] | None = None, *, method: str = "GET"
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request as it is, with no more headers than these and Host."""
        parts = urlsplit(self.address)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": parts.netloc, **(headers or {})}.items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def get(self, path: str, **parameters: Any) -> Any:
        """The JSON that the page would get; a 4xx is an assertion."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        status, _, body = self.request(f"/api/{quote(path)}{query}", {"Authorization": f"Bearer {self.token}"})
        assert status == 200, body
        return json.loads(body)


@contextmanager
def open_server(*arguments: str | Path, cwd: Path | None = None) -> Iterator[Server]:
    """Run `seedbed view` in a process of its own, and end it with Ctrl-C."""
    command = [sys.executable, "-m", "seedbed.cli", "view", *map(str, arguments), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd, env=os.environ) as process:
        try:
            assert process.stdout is not None
            yield Server(json.loads(process.stdout.readline())["url"], process)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def write_rows(out: Path, rows: int, *, size: int = 1_000, topic: str = "tea") -> Path:
    """Write a dataset of so many rows without a model; row 777 has words that no other row has."""
    columns = ("number", "topic", "text", "score")
    header = Header(rows=rows, buffer_size=size, columns=columns, created=time.time(), version="test")
    writer = DatasetWriter.create(out, header)
    for index, start in enumerate(range(0, rows, size)):
        stop = min(start + size, rows)
        numbers = pl.Series("number", range(start, stop))
        text = [f"{_WORDS[at % 10]} {_WORDS[at // 10 % 10]} {at}" for at in range(start, stop)]
        if start <= 777 < stop:
            text[777 - start] = "a needle in the haystack"
        frame = pl.DataFrame(
            {
                "number": numbers,
                "topic": pl.Series([topic, "rain"] * ((stop - start + 1) // 2))[: stop - start],
                "text": text,
                "score": pl.Series([{"clarity": at % 5 + 1} for at in range(start, stop)]),
            }
        )
        writer.write_group(GroupRecord(index=index, start=start, stop=stop), frame)
    writer.finish()
    writer.close()
    return out
