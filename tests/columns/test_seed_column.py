from __future__ import annotations

import functools
import gc
import gzip
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seedbed
from seedbed.columns.seed import Seed
from seedbed.columns.spec import Environment, make_column
from seedbed.engine.plan import plan_build
from seedbed.engine.source import make_source
from seedbed.errors import ConfigError, DatasetGenerationError, Permanent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMATS = ("csv", "jsonl", "parquet", "frame")


def numbers(count: int) -> pl.DataFrame:
    """A frame whose rows are distinct."""
    return pl.DataFrame({"id": range(count), "text": [f"row {row}, “{row % 7}”" for row in range(count)]})


def seed_of(kind: str, frame: pl.DataFrame, folder: Path, **fields: Any) -> Seed:
    """A seed of these rows in one of the formats."""
    path = folder / f"rows.{kind}"
    if kind == "frame":
        return Seed("s", frame=frame, **fields)
    if not path.exists():
        write: dict[str, Callable[[Path], Any]]
        write = {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}
        write[kind](path)
    return Seed("s", path=path, **fields)


def rows_of(column: seedbed.Column, rows: range) -> pl.DataFrame:
    """The rows of a seed, as the engine requests them."""
    assert column.call is not None
    found = column.call.function(rows)
    assert isinstance(found, pl.DataFrame)
    return found


def ids(spec: Seed, rows: range, seed: int = 7) -> list[int]:
    """The ids of a new column's rows."""
    return rows_of(make_column(spec, Environment(seed=seed)), rows)["id"].to_list()


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_are_in_the_order_of_the_file(kind: str, tmp_path: Path) -> None:
    """Every format gives the columns, types and rows of the file, across batches."""
    frame = numbers(20_000)
    column = make_column(seed_of(kind, frame, tmp_path), Environment())
    assert column.problem is None
    assert column.outputs == ("id", "text")
    assert column.is_stateful
    assert [str(column.dtype[name]) for name in column.outputs] in (["int64", "string"], ["int64", "large_string"])
    found = pl.concat([rows_of(column, range(start, start + 3_000)) for start in range(0, 18_000, 3_000)])
    assert found.equals(frame[:18_000])


@pytest.mark.parametrize("order", ["ordered", "shuffled"])
@pytest.mark.parametrize("kind", FORMATS)
def test_rows_start_over(kind: str, order: str, tmp_path: Path) -> None:
    """If more rows are requested than the file has, they start over in the same order."""
    spec = seed_of(kind, numbers(10), tmp_path, order=order)
    once = ids(spec, range(10))
    assert sorted(once) == list(range(10))
    assert ids(spec, range(25)) == once + once + once[:5]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_shuffle_depends_on_the_seed_only(kind: str, tmp_path: Path) -> None:
    """The order is the same in every format and differs for another seed; no row is lost."""
    frame = numbers(15_000)
    spec = seed_of(kind, frame, tmp_path, order="shuffled")
    shuffled = ids(spec, range(15_000))
    assert shuffled[:6] == [6806, 6214, 5573, 13311, 477, 9279]
    assert sorted(shuffled) == frame["id"].to_list()
    assert ids(spec, range(100), seed=8) != shuffled[:100]
    # Not a shuffle of neighbours only.
    assert max(shuffled[:100]) - min(shuffled[:100]) > 12_000


@pytest.mark.parametrize("order", ["ordered", "shuffled"])
@pytest.mark.parametrize(("count", "stop"), [(37, 4), (37, None), (9_000, None)])
@given(data=st.data())
def test_rows_do_not_depend_on_the_order_of_requests(
    order: str, count: int, stop: int | None, data: st.DataObject
) -> None:
    """In any order of requests, as after a resume, each row has the values that it has in one run."""
    column, whole = restless_column(order, count, stop)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(whole) - 1))
        rows = range(start, data.draw(st.integers(start + 1, min(start + 200, len(whole)))))
        assert rows_of(column, rows)["id"].to_list() == whole[rows.start : rows.stop]


@functools.cache
def restless_column(order: str, count: int, stop: int | None) -> tuple[seedbed.Column, list[int]]:
    """A column whose cursor moves with every example, and its rows in one run."""
    spec = Seed("s", frame=numbers(count), order=order, start=3, stop=stop)
    return make_column(spec, Environment(seed=7)), ids(spec, range(3 * count))


@given(count=st.integers(0, 100), parts=st.integers(1, 9), start=st.integers(0, 20), length=st.integers(1, 100))
def test_partitions_divide_the_rows(count: int, parts: int, start: int, length: int) -> None:
    """The parts of a slice are disjoint and complete, and their sizes differ by at most one row."""
    slices = [
        Seed("s", path="a.csv", start=start, stop=start + length, partition=(part, parts)) for part in range(parts)
    ]
    found = [spec.select(count) for spec in slices]
    assert [row for rows in found for row in rows] == list(range(start, min(start + length, count)))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_a_column_reads_its_partition_only() -> None:
    """More rows than the partition has start over within it."""
    assert ids(Seed("s", frame=numbers(10), start=1, partition=(1, 3)), range(5)) == [4, 5, 6, 4, 5]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_column_reads_its_slice_only(kind: str, tmp_path: Path) -> None:
    """Only rows from start to stop are used, and only they are shuffled and start over."""
    spec = seed_of(kind, numbers(50), tmp_path, start=10, stop=13)
    assert ids(spec, range(7)) == [10, 11, 12, 10, 11, 12, 10]
    assert ids(spec, range(4, 6)) == [11, 12]
    shuffled = seed_of(kind, numbers(50), tmp_path, start=10, stop=13, order="shuffled")
    assert sorted(ids(shuffled, range(3))) == [10, 11, 12]


def test_without_cycle_rows_do_not_start_over(tmp_path: Path) -> None:
    """Too many rows are a problem before anything runs, and an error if they are requested anyway."""
    column = make_column(seed_of("csv", numbers(10), tmp_path, start=2, cycle=False), Environment())
    plan_build(make_source([column]), rows=8)
    with pytest.raises(
        DatasetGenerationError, match="column 's' has 8 rows and does not repeat them, but 9 were requested"
    ):
        plan_build(make_source([column]), rows=9)
    with pytest.raises(Permanent, match=r"has 8 rows for this column, and row 8 is requested.*set cycle to true"):
        rows_of(column, range(9))
    assert rows_of(column, range(8))["id"].to_list() == list(range(2, 10))
    endless = make_column(seed_of("csv", numbers(10), tmp_path), Environment())
    plan_build(make_source([endless]), rows=10**9)


@pytest.mark.parametrize(
    ("columns", "outputs"),
    [(["text"], ("text",)), (["text", "id"], ("text", "id")), ({"number": "id", 'od"d': "text"}, ("number", 'od"d'))],
)
def test_columns_can_be_chosen_and_renamed(columns: Any, outputs: tuple[str, ...], tmp_path: Path) -> None:
    """Only these columns are generated, in this order, under these names."""
    column = make_column(seed_of("csv", numbers(3), tmp_path, columns=columns), Environment())
    assert column.outputs == outputs
    assert rows_of(column, range(2)).columns == list(outputs)


def test_paths_are_relative_to_the_recipe(tmp_path: Path) -> None:
    """A file may be compressed, and a pattern may match several."""
    numbers(3).write_csv(tmp_path / "it's a.csv")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"id,text\n8,x\n9,y\n"))
    here = Environment(base=tmp_path)
    assert rows_of(make_column(Seed("s", path="it's a.csv"), here), range(3))["id"].to_list() == [0, 1, 2]
    assert rows_of(make_column(Seed("s", path="b.csv.gz"), here), range(2))["id"].to_list() == [8, 9]
    assert rows_of(make_column(Seed("s", path="*.csv*", format="csv"), here), range(5))["id"].to_list() == [
        8,
        9,
        0,
        1,
        2,
    ]


def test_options_are_passed_to_the_reader(tmp_path: Path) -> None:
    """Reader options select another dialect of CSV."""
    path = tmp_path / "rows.txt"
    path.write_text("1;don't\n2;-\n")
    options = {"delim": ";", "header": False, "names": ["a", "b"], "nullstr": ["-", "don't"]}
    column = make_column(Seed("s", path=path, format="csv", options=options), Environment())
    assert rows_of(column, range(2)).to_dicts() == [{"a": 1, "b": None}, {"a": 2, "b": None}]


def test_files_are_read_through_fsspec() -> None:
    """The file may be on any filesystem that fsspec supports."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/seeds/rows.jsonl", b"".join(json.dumps({"id": row}).encode() + b"\n" for row in range(30)))
    assert ids(Seed("s", path="memory://seeds/rows.jsonl"), range(28, 32)) == [28, 29, 0, 1]
    assert sorted(ids(Seed("s", path="memory://seeds/rows.jsonl", order="shuffled"), range(30))) == list(range(30))
    with pytest.raises(ConfigError, match=r"column 's': file not found: 'memory://seeds/none.csv'"):
        make_column(Seed("s", path="memory://seeds/none.csv"), Environment())
    with pytest.raises(ConfigError, match=r"'nosuch://x.csv' cannot be opened: Protocol not known: nosuch"):
        make_column(Seed("s", path="nosuch://x.csv"), Environment())


def test_structured_values_have_their_types(tmp_path: Path) -> None:
    """Lists and objects of JSON keep their types; types that a dataset cannot store become text."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"tags": ["a", "b"], "at": {"x": 1}}\n{"tags": [], "at": {"x": 2}}\n')
    column = make_column(Seed("s", path=path), Environment())
    assert rows_of(column, range(2)).to_dicts()[0] == {"tags": ["a", "b"], "at": {"x": 1}}
    frame = pl.DataFrame({"c": pl.Series(["x", "y"], dtype=pl.Categorical), "n": [None, None]})
    column = make_column(Seed("s", frame=frame), Environment())
    assert rows_of(column, range(2)).to_dicts() == [{"c": "x", "n": None}, {"c": "y", "n": None}]


def test_frames_may_be_lazy_or_arrow() -> None:
    """Lazy frames and arrow tables are accepted."""
    assert ids(Seed("s", frame=numbers(5).lazy()), range(5)) == list(range(5))
    assert ids(Seed("s", frame=numbers(5).to_arrow()), range(5)) == list(range(5))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "either a path or a frame"),
        ({"path": "a.csv", "frame": numbers(1)}, "either a path or a frame"),
        ({"path": "a.xlsx"}, "the format of 'a.xlsx' cannot be inferred from its name"),
        ({"path": "a.csv", "format": "xml"}, "format must be 'csv' or 'jsonl' or 'parquet', not 'xml'"),
        ({"frame": [1]}, "frame must be a polars frame or an arrow table, not \\[1\\]"),
        ({"frame": pl.DataFrame()}, "the frame has no columns"),
        ({"frame": numbers(1), "options": {"delim": ";"}}, "format and options are for files"),
        ({"path": "a.csv", "options": {"a b": 1}}, "options must be a mapping"),
        ({"path": "a.csv", "order": "random"}, "order must be 'ordered' or 'shuffled', not 'random'"),
        ({"path": "a.csv", "start": -1}, "start must be a whole number, 0 or more, not -1"),
        ({"path": "a.csv", "start": 3, "stop": 3}, r"stop must be above start \(3\), not 3"),
        ({"path": "a.csv", "partition": (2, 2)}, r"partition must be \(i, n\) with i from 0 to n - 1"),
        ({"path": "a.csv", "partition": 2}, "partition must be"),
        ({"path": "a.csv", "cycle": 1}, "cycle must be True or False"),
        ({"path": "a.csv", "columns": []}, "columns must be a list of names"),
        ({"path": "a.csv", "columns": ["a", "a"]}, "columns has a duplicate 'a'"),
    ],
)
def test_invalid_seeds_are_rejected(fields: dict[str, Any], message: str) -> None:
    """The message names the column, the field and what is expected."""
    with pytest.raises(ConfigError, match=f"column 's': .*{message}"):
        Seed("s", **fields)


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("rows.csv", None, {}, "file not found: '.*rows.csv'"),
        ("*.parquet", None, {}, r"file not found: '.*\*.parquet'"),
        ("rows.csv", b"", {}, "'.*rows.csv' is empty"),
        ("rows.csv", b"id,text\n", {}, "'.*rows.csv' is empty"),
        ("rows.jsonl", b"", {}, "'.*rows.jsonl' is empty"),
        ("rows.parquet", b"id,text\n1,2\n", {}, "'.*rows.parquet' cannot be read"),
        ("rows.jsonl", b'{"id": 1}\n{"id": \n', {}, "'.*rows.jsonl' cannot be read"),
        ("rows.csv", b"id,text\n1,a\n", {"columns": ["txt"]}, "has no column 'txt'.*'text'"),
        ("rows.csv", b"id,text\n1,a\n", {"start": 1}, "has 1 rows, and start=1 selects none of them"),
        ("rows.csv", b"id,text\n1,a\n", {"partition": (0, 2)}, r"has 1 rows, and partition=\(0, 2\) selects none"),
        ("rows.csv", b"id,text\n1,a\n", {"options": {"delimeter": ";"}}, "cannot be read: .*delimeter"),
        ("rows.csv", b"id,text\n1,a\n", {"dtype": "int"}, "dtype must be a mapping"),
    ],
)
def test_unusable_files_are_reported(
    name: str, content: bytes | None, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Problems of a file are reported before anything runs."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"column 's': .*{message}"):
        make_column(Seed("s", path=tmp_path / name, **fields), Environment())


def test_a_late_value_of_another_type_names_the_option(tmp_path: Path) -> None:
    """A value that does not fit the type of the first rows is an error that names the option to set."""
    path = tmp_path / "rows.csv"
    path.write_text("id\n" + "\n".join(map(str, range(60_000))) + "\nnot a number\n")
    column = make_column(Seed("s", path=path), Environment())
    with pytest.raises(Permanent, match=r"column 's': .*cannot be read: .*sample_size"):
        rows_of(column, range(60_001))
    whole = make_column(Seed("s", path=path, options={"sample_size": -1}), Environment())
    assert rows_of(whole, range(60_000, 60_001))["id"].to_list() == ["not a number"]


def test_the_shuffled_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary directory is empty once the column is collected."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    column = make_column(Seed("s", frame=numbers(10), order="shuffled"), Environment())
    rows_of(column, range(3))
    assert os.listdir(tmp_path)  # noqa: PTH208
    del column
    gc.collect()
    assert not os.listdir(tmp_path)  # noqa: PTH208


@pytest.mark.parametrize("buffer_size", [7, 100])
def test_a_build_has_the_rows_and_types_of_the_file(buffer_size: int, tmp_path: Path) -> None:
    """Row groups of any size get their rows in order, and the dataset has the file's types."""
    spec = seed_of("jsonl", numbers(40), tmp_path, order="shuffled")
    column = make_column(spec, Environment(seed=7))
    config = seedbed.RunConfig(buffer_size=buffer_size)
    frame = seedbed.build([column], rows=100, out=tmp_path / "d", config=config).to_polars()
    assert frame["id"].to_list() == ids(spec, range(100))
    assert frame.schema == {"id": pl.Int64, "text": pl.String}


_MEASURE = """
import resource, sys
import duckdb, polars, pyarrow
from seedbed.columns.spec import Environment
from seedbed.columns.spec import make_column
from seedbed.columns.seed import Seed
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
column = make_column(Seed("s", path=sys.argv[1]), Environment())
column.call.function(range(1000))
before = peak()
for start in range(1000, 500_000, 1000):
    assert column.call.function(range(start, start + 1000)).height == 1000
print(peak() - before)
"""


def test_a_large_file_is_read_in_batches(tmp_path: Path) -> None:
    """Reading 500,000 rows (250 MB) takes little more memory than reading the first ones."""
    path = tmp_path / "rows.csv"
    with path.open("w") as file:
        file.write("id,text\n")
        for row in range(500_000):
            file.write(f"{row},{'x' * 480}{row}\n")
    done = subprocess.run([sys.executable, "-c", _MEASURE, path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150


def test_consecutive_calls_continue() -> None:
    """Consecutive calls continue where the last one ended, across batches and the end of the data."""
    column = make_column(Seed("s", frame=numbers(10_000)), Environment())
    edges = [0, 1, 8_191, 8_193, 9_999, 10_001, 25_000]
    found = [each for low, high in pairwise(edges) for each in rows_of(column, range(low, high))["id"].to_list()]
    assert found == [row % 10_000 for row in range(25_000)]
