"""How quickly the viewer shows and searches a large dataset, what its server takes, and what watching costs a build."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np
import polars as pl

import seedbed as sb
from seedbed.store.manifest import GroupRecord, Header
from seedbed.store.writer import DatasetWriter

from . import common
from .common import Bar, Findings, Table, expect

if TYPE_CHECKING:
    from collections.abc import Iterator

_PART = 1_000
_STEMS = ("tea", "bread", "rain", "kettle", "window", "garden", "paper", "river", "stone", "light")
_WORDS = [f"{stem}{end}" for stem in _STEMS for end in "asly"]


def write_dataset(out: Path, rows: int) -> None:
    """Write rows of two texts, scores and numbers, in parts as a build writes them."""
    columns = ("number", "topic", "question", "answer", "score", "price")
    header = Header(rows=rows, buffer_size=_PART, columns=columns, created=time.time(), version="benchmark")
    writer = DatasetWriter.create(out, header)
    rng = np.random.default_rng(1)
    for index, start in enumerate(range(0, rows, _PART)):
        count = min(_PART, rows - start)
        words = rng.integers(0, len(_WORDS), size=(count, 34))
        frame = pl.DataFrame(
            {
                "number": range(start, start + count),
                "topic": [_WORDS[row[0]] for row in words],
                "question": [" ".join(_WORDS[at] for at in row[:10]) for row in words],
                "answer": [" ".join(_WORDS[at] for at in row[10:]) for row in words],
                "score": [{"clarity": int(row[0] % 5 + 1), "depth": int(row[1] % 5 + 1)} for row in words],
                "price": rng.normal(10, 3, count),
            }
        )
        writer.write_group(GroupRecord(index=index, start=start, stop=start + count), frame)
    writer.finish()
    writer.close()


_FOLLOW = """
import sys, urllib.request
headers = {"Authorization": f"Bearer {sys.argv[2]}"}
with urllib.request.urlopen(urllib.request.Request(f"{sys.argv[1]}api/d/data/run", headers=headers)) as response:
    while response.read1(65536):
        pass
"""


class Client:
    """Requests to a server that runs in a process of its own."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self._address, self._token = url.split("#token=")
        self._connection = HTTPConnection(self._address.split("/")[2], timeout=60)
        self.process = process

    def get(self, path: str, **parameters: Any) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"}
        self._connection.request("GET", f"/api/{path}?{urlencode(parameters)}", headers=headers)
        response = self._connection.getresponse()
        body = response.read()
        expect(response.status == 200, f"{path}: {response.status} {body[:200]!r}")
        return json.loads(body)

    def timed(self, path: str, **parameters: Any) -> tuple[float, Any]:
        started = time.perf_counter()
        found = self.get(path, **parameters)
        return time.perf_counter() - started, found

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Have another process read the events of the run: the browser is not part of the build."""
        command = [sys.executable, "-c", _FOLLOW, self._address, self._token]
        with subprocess.Popen(command) as process:
            try:
                yield
            finally:
                process.kill()

    @property
    def peak_memory(self) -> float:
        """The most memory that the server has had, in megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


@contextlib.contextmanager
def served(directory: Path) -> Iterator[Client]:
    """Run `seedbed view` in a process of its own."""
    command = [sys.executable, "-m", "seedbed.cli", "view", str(directory), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Client(json.loads(process.stdout.readline())["url"], process)
        finally:
            process.send_signal(signal.SIGINT)


def queries(rows: int, rounds: int) -> dict[str, float]:
    """Seconds until the first rows, hits and all hits; megabytes of the server."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "data"
        write_dataset(out, rows)
        found: dict[str, list[float]] = {}
        with served(out) as client:
            for at in range(rounds):
                seconds, page = client.timed("d/data/rows", offset=0, limit=100)
                expect(page["total"] == rows and len(page["rows"]) == 100, "the first page is not there")
                found.setdefault("first rows", []).append(seconds)
                seconds, page = client.timed("d/data/rows", offset=rows // 2 + at, limit=100)
                expect(page["rows"][0][0] == rows // 2 + at, "a page in the middle has other rows")
                found.setdefault("rows in the middle", []).append(seconds)
                text = f"{_WORDS[at]} {_WORDS[at + 7]}"  # another search each time: a search is remembered
                started = time.perf_counter()
                page = client.get("d/data/rows", text=text, limit=1)
                found.setdefault("first hits of a text", []).append(time.perf_counter() - started)
                expect(any(text in cell for cell in page["rows"][0][2:4]), "a hit without the text")
                while not client.get("d/data/rows", text=text, limit=1)["done"]:
                    time.sleep(0.02)
                found.setdefault("all hits of a text", []).append(time.perf_counter() - started)
                where = f"price > {19 + at / 1000} AND score.clarity = 5"
                seconds, page = client.timed("d/data/rows", where=where, limit=rows)
                expect(page["done"], "a filter has not ended")
                found.setdefault("a filter", []).append(seconds)
                seconds, page = client.timed("d/data/rows", sort="price", descending=1, where=f"number >= {at}")
                found.setdefault("order by a number", []).append(seconds)
            memory = client.peak_memory
    return {name: sorted(taken)[len(taken) // 2] for name, taken in found.items()} | {"megabytes": memory}


async def _first(context: sb.CellContext) -> int:
    return common.row_of(context)


async def _more(value: int) -> int:
    return value + 1


def build_once(rows: int, *, watched: bool) -> float:
    """Processor seconds of a build in a new directory, with or without a page that follows it."""
    columns = [sb.Column("value", _first), sb.Column("more", _more, requires=["value"])]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        out = Path(folder) / "data"
        out.mkdir()
        if watched:
            stack.enter_context(stack.enter_context(served(out)).following())
        seconds, dataset = common.cpu_seconds(
            lambda: sb.build(columns, rows=rows, out=out, progress="none", config=sb.RunConfig(buffer_size=1_000))
        )
        expect(dataset.rows == rows, "rows are missing")
        return seconds


def measure(short: bool) -> Findings:
    """Measure all of it."""
    found = queries(20_000 if short else 1_000_000, 1 if short else 5)
    size, rounds = (500, 1) if short else (30_000, 5)
    cpu = common.best_of(
        rounds,
        {"unwatched": lambda: build_once(size, watched=False), "watched": lambda: build_once(size, watched=True)},
    )
    ratio = cpu["watched"] / cpu["unwatched"]
    memory = found.pop("megabytes")
    return Findings(
        tables=[
            Table(title="Seconds, medians", rows=[{"query": name, "seconds": taken} for name, taken in found.items()]),
            Table(
                title="Server, and a build that it watches",
                rows=[
                    {"figure": "memory of the server at most, MB", "value": memory},
                    {"figure": "CPU of the build, unwatched, s", "value": cpu["unwatched"]},
                    {"figure": "CPU of the build, watched, s", "value": cpu["watched"]},
                ],
            ),
        ],
        bars=[
            Bar(name="first rows, s", measured=found["first rows"], allowed=0.3),
            Bar(name="first hits of a text, s", measured=found["first hits of a text"], allowed=0.3),
            Bar(name="all hits of a text, s", measured=found["all hits of a text"], allowed=2.5),
            Bar(name="memory of the server, MB", measured=memory, allowed=300),
            Bar(name="CPU of a watched build", measured=ratio, allowed=1.03),
        ],
    )


if __name__ == "__main__":
    sys.exit(common.main("view", measure))
