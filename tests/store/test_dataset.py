"""A dataset directory, read back."""

from __future__ import annotations

import math
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.errors import ManifestError, PartError, SchemaConflict, StoreError
from seedbed.observe.report import Drop
from seedbed.store.dataset import Dataset
from seedbed.store.manifest import MANIFEST_NAME, GroupRecord, Header
from seedbed.store.parts import part_name
from seedbed.store.writer import DatasetWriter

Columns = dict[str, list[Any]]


def write(
    directory: Path,
    *groups: Columns | None,
    finish: bool = True,
    declared: pa.Schema | None = None,
    order: str = "",
    at_end: bool = False,
) -> Dataset:
    """Write the groups, two source rows each, last one first."""
    columns = tuple(order) or tuple(dict.fromkeys(name for group in groups for name in group or ()))
    header = Header(
        rows=2 * len(groups),
        buffer_size=2,
        columns=columns,
        created=0.0,
        version="0",
        declared=declared or pa.schema([]),
        publishes_at_end=at_end,
    )
    with DatasetWriter.create(directory, header) as writer:
        for index in reversed(range(len(groups))):
            writer.write_group(GroupRecord(index=index, start=index * 2, stop=index * 2 + 2), groups[index])
        if finish:
            writer.finish()
    return Dataset.open(directory)


@pytest.mark.parametrize("finish", [True, False])
def test_one_schema_over_all_parts(tmp_path: Path, finish: bool) -> None:
    """A part that is all null, ints then floats and structs with other keys read as one table, lazily and eagerly."""
    dataset = write(
        tmp_path,
        {"a": [1, 2], "b": [{"x": 1}, None], "c": [None, None], "d": [{}, None], "e": [["x"], []]},
        {"a": [0.5, None], "b": [{"y": [1]}, {}], "c": ["s", "t"], "d": [None, {}], "e": [None, [None]]},
        finish=finish,
    )
    expected = {
        "a": [1.0, 2.0, 0.5, None],
        "b": [{"x": 1, "y": None}, None, {"x": None, "y": [1]}, {"x": None, "y": None}],
        "c": [None, None, "s", "t"],
        "d": [{}, None, None, {}],
        "e": [["x"], [], None, [None]],
    }
    assert dataset.complete is finish
    assert (dataset.rows, len(dataset), dataset.columns) == (4, 4, ("a", "b", "c", "d", "e"))
    assert dataset.to_polars().to_dict(as_series=False) == expected
    assert dataset.to_polars().schema == dataset.scan().collect_schema() == dataset.schema
    assert dataset.to_arrow().to_pydict() == expected
    assert dataset.to_arrow().schema == dataset.arrow_schema
    lazy = dataset.scan()
    assert lazy.select("c").collect().to_dict(as_series=False) == {"c": expected["c"]}
    assert lazy.filter(pl.col("a") > 0.7).select("c", "a").collect().rows() == [(None, 1.0), (None, 2.0)]
    assert lazy.head(3).collect()["a"].to_list() == [1.0, 2.0, 0.5]
    assert lazy.head(3).filter(pl.col("a") < 1).collect()["c"].to_list() == ["s"]
    assert lazy.filter(pl.col("a") < 1).head(3).collect()["c"].to_list() == ["s"]
    assert lazy.select(pl.len()).collect().item() == 4
    assert lazy.collect(engine="streaming").to_dict(as_series=False) == expected
    assert dataset.to_polars(["c", "a"]).columns == ["c", "a"]
    dataset.verify()


@pytest.mark.parametrize("finish", [True, False])
def test_a_dataset_of_very_many_columns_is_read(tmp_path: Path, finish: bool) -> None:
    """Reading takes time linear in the number of columns; a query planned by polars does not and would take minutes."""
    dataset = write(tmp_path, {f"column {number}": [number, number] for number in range(5_000)}, finish=finish)
    assert dataset.head(1).row(0) == tuple(range(5_000))
    assert dataset.to_polars().shape == (2, 5_000)
    assert dataset.head(2, ["column 4999", "column 0"]).rows() == [(4999, 0)] * 2


def test_a_lazy_frame_reads_only_the_parts_that_it_needs(tmp_path: Path) -> None:
    """A limit ends the reading before a part that is damaged; without it the damage is an error."""
    dataset = write(tmp_path, {"a": [1, 2]}, {"a": [3, 4]})
    (tmp_path / dataset.parts[1].name).write_bytes(b"not parquet")
    assert dataset.scan().head(2).collect()["a"].to_list() == [1, 2]
    with pytest.raises(PartError, match=r"part 'batch_0000001\.parquet' in .* cannot be read"):
        dataset.scan().collect()


def test_no_rows(tmp_path: Path) -> None:
    """An empty dataset has its columns, the declared types, and null where nothing is known."""
    dataset = write(tmp_path, order="ab", declared=pa.schema({"b": pa.large_list(pa.float32())}))
    assert dataset.complete
    assert dataset.rows == 0
    assert dataset.schema == {"a": pl.Null, "b": pl.List(pl.Float32)}
    assert dataset.to_polars().schema == dataset.scan().collect().schema == dataset.schema
    assert dataset.to_arrow().num_rows == 0
    assert dataset.parts == ()
    assert dataset.drops == ()


def test_a_dataset_whose_rows_were_all_dropped(tmp_path: Path) -> None:
    """Groups without rows leave an empty dataset with the right columns."""
    dataset = write(tmp_path, {"a": [], "b": []}, None, order="ab")
    assert (dataset.complete, dataset.rows, dataset.to_polars().columns) == (True, 0, ["a", "b"])


def test_columns_that_a_processor_added_or_removed(tmp_path: Path) -> None:
    """Columns come in declared order, then as they were added; a part that lacks one has null there."""
    dataset = write(tmp_path, {"new": [1, 2], "b": [1, 2]}, {"b": [3, 4], "a": ["x", "y"]}, order="abz")
    expected = {"a": [None, None, "x", "y"], "b": [1, 2, 3, 4], "new": [1, 2, None, None]}
    assert dataset.to_polars().to_dict(as_series=False) == expected


@pytest.mark.parametrize("finish", [True, False])
def test_a_conflict_hides_only_its_column(tmp_path: Path, finish: bool) -> None:
    """Reading a column in conflict names it and its part; every other column can be read."""
    dataset = write(tmp_path, {"a": [1, 2], "b": [1, 2]}, {"a": [0.5, 1], "b": ["x", "y"]}, finish=finish)
    problem = r"column 'b' of batch_0000001.parquet holds large_string, expected int64"
    for attempt in (dataset.to_polars, dataset.to_arrow, dataset.scan, lambda: dataset.to_polars(["b"])):
        with pytest.raises(SchemaConflict, match=problem):
            attempt()
    assert [conflict.column for conflict in dataset.conflicts] == ["b"]
    assert dataset.to_polars(["a"])["a"].to_list() == [1.0, 2.0, 0.5, 1.0]
    assert dataset.scan(["a"]).collect()["a"].to_list() == [1.0, 2.0, 0.5, 1.0]
    assert dataset.to_arrow(["a"]).to_pydict() == {"a": [1.0, 2.0, 0.5, 1.0]}
    dataset.verify()


@pytest.mark.parametrize("finish", [True, False])
def test_text_of_mixed_values_is_not_taken_for_strings(tmp_path: Path, finish: bool) -> None:
    """A column that one part stores as JSON text is in conflict even if all others hold strings."""
    dataset = write(tmp_path, {"a": ["x", "y"]}, {"a": ["x", 1]}, finish=finish)
    with pytest.raises(SchemaConflict, match=r"column 'a' of batch_0000001.parquet holds values of int and str"):
        dataset.to_polars()


def test_a_value_that_would_be_rounded_is_a_conflict_before_the_end_too(tmp_path: Path) -> None:
    """Reading an unfinished directory refuses what finishing it would refuse."""
    dataset = write(tmp_path, {"a": [2**60 + 1, 2], "b": [1, 2]}, {"a": [0.5, 1], "b": [3, 4]}, finish=False)
    for attempt in (dataset.to_polars, dataset.to_arrow):
        with pytest.raises(SchemaConflict, match=r"column 'a' of batch_0000000.parquet holds int64"):
            attempt()
    assert dataset.to_polars(["b"])["b"].to_list() == [1, 2, 3, 4]


def test_an_unknown_column_is_named(tmp_path: Path) -> None:
    """The error for an unknown column lists the columns."""
    with pytest.raises(KeyError, match="no column 'z'; it has 'a', 'b'"):
        write(tmp_path, {"a": [1, 2], "b": [1, 2]}).to_polars(["z"])


def test_damage_to_a_part_is_found(tmp_path: Path) -> None:
    """A changed byte and a missing file are found and the file is named."""
    dataset = write(tmp_path, {"a": [1, 2]}, {"a": [3, 4]})
    path = tmp_path / part_name(1)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(PartError, match=r"'batch_0000001.parquet' is damaged"):
        dataset.verify()
    path.unlink()
    for attempt in (dataset.verify, dataset.scan, dataset.to_arrow):
        with pytest.raises(PartError, match=r"batch_0000001.parquet"):
            attempt()


def test_a_damaged_record_costs_its_group(tmp_path: Path) -> None:
    """The row group whose record is damaged is not there, and the rest is."""
    write(tmp_path, {"a": [1, 2]}, {"a": [3, 4]}, {"a": [5, 6]})
    path = tmp_path / MANIFEST_NAME
    path.write_bytes(path.read_bytes().replace(part_name(1).encode(), b"botch_0000001.parquet"))
    dataset = Dataset.open(tmp_path)
    assert (dataset.complete, len(dataset.damaged_ranges)) == (False, 1)
    assert dataset.to_polars()["a"].to_list() == [1, 2, 5, 6]
    dataset.verify()


def test_a_damaged_header_costs_nothing(tmp_path: Path) -> None:
    """The header is written twice."""
    write(tmp_path, {"a": [1, 2]})
    path = tmp_path / MANIFEST_NAME
    path.write_bytes(b"?" + path.read_bytes()[1:])
    dataset = Dataset.open(tmp_path)
    assert (dataset.complete, len(dataset.damaged_ranges), dataset.rows) == (True, 1, 2)


def test_published_rows_are_read_and_raw_ones_stay(tmp_path: Path) -> None:
    """The dataset has the rows that a processor returned, in files of `buffer_size` rows; the rows before stay."""
    write(tmp_path, {"a": [1, 2]}, {"a": [0.5, 4]}, at_end=True)
    writer, _, _ = DatasetWriter.open(tmp_path)
    with writer:
        assert not writer.publish(pl.DataFrame({"z": ["never"]}), abandoned=lambda: True)
        assert Dataset.open(tmp_path).columns == ("a",)
        assert writer.publish(pl.DataFrame({"b": ["x", "y", "z"], "e": [{}, {}, {}]}))
        assert not Dataset.open(tmp_path).complete
        writer.finish()
    dataset = Dataset.open(tmp_path)
    assert dataset.complete
    assert [(part.name, part.rows) for part in dataset.parts] == [(part_name(0), 2), (part_name(1), 1)]
    assert dataset.to_polars().to_dict(as_series=False) == {"b": ["x", "y", "z"], "e": [{}, {}, {}]}
    assert dataset.raw().to_polars()["a"].to_list() == [1.0, 2.0, 0.5, 4.0]
    dataset.verify()
    dataset.raw().verify()
    writer, _, _ = DatasetWriter.open(tmp_path)
    with writer:
        assert Dataset.open(tmp_path).rows == 3
        assert writer.publish(pl.DataFrame({"b": ["w"]}))
        writer.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".seedbed", part_name(0)]


def test_rows_are_published_only_where_the_root_is_free(tmp_path: Path) -> None:
    """Where row groups are in the root, publishing something else would overwrite them."""
    write(tmp_path, {"a": [1, 2]})
    writer, _, _ = DatasetWriter.open(tmp_path)
    with writer, pytest.raises(StoreError, match=r"the root of .* holds the row groups"):
        writer.publish(pl.DataFrame({"z": [1]}))


def test_drops_come_in_row_order(tmp_path: Path) -> None:
    """Drops are listed by row group, whichever was written first."""
    drops = [Drop(row=row, column="a", attempts=1, error="no", kind="Permanent") for row in (0, 3)]
    header = Header(rows=4, buffer_size=2, columns=("a",), created=0.0, version="0")
    with DatasetWriter.create(tmp_path, header) as writer:
        writer.write_group(GroupRecord(index=1, start=2, stop=4, drops=drops[1:]), {"a": [1]})
        writer.write_group(GroupRecord(index=0, start=0, stop=2, drops=drops[:1]), {"a": [1]})
        dataset = Dataset.open(tmp_path)
    assert dataset.drops == tuple(drops)
    assert repr(dataset) == f"<Dataset {str(tmp_path)!r}: 2 rows, 2 dropped (2 × a: no), incomplete, columns a>"
    with pytest.raises(AttributeError):
        dataset.drops[0].row = 5  # type: ignore[misc]


def test_a_directory_that_is_no_dataset(tmp_path: Path) -> None:
    """Opening anything else raises an error that names the reason."""
    with pytest.raises(ManifestError, match="is not a dataset"):
        Dataset.open(tmp_path / "nothing")


KINDS: list[st.SearchStrategy[Any]] = [
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(min_value=datetime(1700, 1, 1)),  # noqa: DTZ001 - hypothesis wants the bound without one
    st.datetimes(min_value=datetime(1700, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.times(),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-1000, max_value=1000),
]


# A struct cannot have a field with NUL in its name: such dictionaries are a conflict.
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3)


def columns_of(kinds: list[st.SearchStrategy[Any]]) -> st.SearchStrategy[st.SearchStrategy[Any]]:
    """Strategies of cells: each draws values that one arrow type holds, nested or not, with None anywhere."""
    return st.recursive(
        st.sampled_from(kinds).map(lambda kind: st.none() | kind),
        lambda inner: (
            inner.map(lambda cell: st.none() | st.lists(cell, max_size=3))
            | st.dictionaries(KEYS, inner, max_size=3).map(lambda fields: st.none() | st.fixed_dictionaries(fields))
        ),
        max_leaves=4,
    )


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type, nan being itself."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other) and type(one) is type(other)


@settings(max_examples=settings.default.max_examples // 4)
@given(st.data())
def test_values_survive_the_round_trip(data: st.DataObject) -> None:
    """Values of any one shape, in parts of any size, come back from disk equal, before finishing and after."""
    shapes = data.draw(st.lists(columns_of(KINDS), min_size=1, max_size=3))
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    groups: list[Columns] = [
        {f"c{number}": [data.draw(shape) for _ in range(size)] for number, shape in enumerate(shapes)} for size in sizes
    ]
    with tempfile.TemporaryDirectory() as directory:
        for finish in (False, True):
            dataset = write(Path(directory) / str(finish), *groups, finish=finish)
            assert dataset.conflicts == ()
            frame = dataset.to_polars()
            table = dataset.to_arrow()
            for name in groups[0]:
                expected = [value for group in groups for value in group[name]]
                assert same(frame[name].to_list(), expected)
                assert same(table[name].to_pylist(), expected)
