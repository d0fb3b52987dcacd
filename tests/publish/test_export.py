"""`seedbed export`: files of every format hold the rows, and resumed exports equal undisturbed ones."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
from sample_rows import number

import seedbed as sb
from seedbed.cli import main
from seedbed.publish import export as export_module
from seedbed.publish.export import export

if TYPE_CHECKING:
    from collections.abc import Callable

READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    "jsonl": pl.read_ndjson,
    "csv": pl.read_csv,
    "parquet": pl.read_parquet,
    "arrow": pl.read_ipc,
}


def rows_of(path: Path) -> list[Any]:
    """The values of the lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("ending", READERS)
def test_a_file_holds_the_rows_in_order(dataset: sb.Dataset, tmp_path: Path, ending: str) -> None:
    """The ending decides the format, and plain columns come back as they are."""
    target = tmp_path / f"rows.{ending}"
    found = export(dataset, target, columns=["n", "question", "parity"])
    assert (found.rows, found.files) == (dataset.rows, (str(target),))
    assert READERS[ending](target).equals(dataset.to_polars(["n", "question", "parity"]))
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_types_are_exact_in_parquet_and_arrow(dataset: sb.Dataset, tmp_path: Path, ending: str) -> None:
    """Nested values, dates and bytes keep their types."""
    export(dataset, tmp_path / f"rows.{ending}")
    assert READERS[ending](tmp_path / f"rows.{ending}").equals(dataset.to_polars())


def test_lines_of_json_hold_every_kind_of_value(dataset: sb.Dataset, tmp_path: Path) -> None:
    """Dates are ISO text, bytes base64, nested values nested; a null is a null."""
    export(dataset, tmp_path / "rows.jsonl")
    first, fourth = rows_of(tmp_path / "rows.jsonl")[0], rows_of(tmp_path / "rows.jsonl")[3]
    assert first["facts"] == {"day": "2020-01-01", "raw": "AP8=", "of": [0, None]}
    assert first["talk"][1] == {"role": "assistant", "content": "0, «exactly»"}
    assert (fourth["n"], fourth["answer"]) == (3, None)


def test_nested_values_are_json_text_in_csv(dataset: sb.Dataset, tmp_path: Path) -> None:
    """A cell of CSV holds one JSON value where the column is nested."""
    export(dataset, tmp_path / "rows.csv")
    frame = pl.read_csv(tmp_path / "rows.csv")
    assert json.loads(frame["facts"][0])["of"] == [0, None]


def test_documents_are_objects_in_json(tmp_path: Path) -> None:
    """A column of type json is written as what it is, also where a document has lone surrogates."""

    def document(n: int) -> Any:
        return {"city": "Rome"} if n else {"text": "\ud83d", "big": 2**70}

    columns = [
        sb.Column("n", number, kind="from_scratch"),
        sb.Column("v", document, dtype=pa.json_(pa.large_string())),
    ]
    export(sb.build(columns, rows=2, out=tmp_path / "data"), tmp_path / "rows.jsonl")
    assert [row["v"] for row in rows_of(tmp_path / "rows.jsonl")] == [
        {"text": "\ud83d", "big": 2**70},
        {"city": "Rome"},
    ]


def test_a_folder_of_files_is_cut_at_the_number_of_rows(dataset: sb.Dataset, tmp_path: Path) -> None:
    """Files have as many rows as requested, across the parts of the dataset, and loaders read the folder."""
    found = export(dataset, tmp_path / "out", format="parquet", rows_per_file=10)
    assert [Path(name).name for name in found.files] == [f"data-{index:05d}-of-00004.parquet" for index in range(4)]
    assert [pl.read_parquet(name).height for name in found.files] == [10, 10, 10, 5]
    assert pl.read_parquet(tmp_path / "out" / "*.parquet").equals(dataset.to_polars())
    assert pyarrow.dataset.dataset(tmp_path / "out").count_rows() == 35


def test_a_partitioned_folder_is_read_back(dataset: sb.Dataset, tmp_path: Path) -> None:
    """The values of the partition are in the names of the folders."""
    found = export(dataset, tmp_path / "out", partition_by=["parity"])
    assert found.files == (str(tmp_path / "out"),)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"parity=even", "parity=odd"}
    frame = pl.read_parquet(tmp_path / "out" / "**/*.parquet", hive_partitioning=True).sort("n")
    assert frame.select(dataset.columns).equals(dataset.to_polars())


def test_dropped_rows_can_be_exported(dataset: sb.Dataset, tmp_path: Path) -> None:
    """`dropped` writes the rows that the dataset does not have, with their reasons."""
    assert export(dataset, tmp_path / "dropped.jsonl", dropped=True).rows == 5
    assert rows_of(tmp_path / "dropped.jsonl")[0]["_reason"].startswith("ValueError: no seven")


def test_an_empty_dataset_gives_an_empty_file(tmp_path: Path) -> None:
    """Without rows the file is there all the same, with its columns where the format has them."""
    empty = sb.build([sb.Column("n", number, kind="from_scratch", dtype=int)], rows=0, out=tmp_path / "data")
    export(empty, tmp_path / "rows.parquet")
    assert pl.read_parquet(tmp_path / "rows.parquet").schema == {"n": pl.Int64}


class Stop(Exception):
    """Ends an export where a test wants it to end."""


def stop_after(rows: int) -> Callable[[int, int], None]:
    """Progress that ends an export."""

    def check(done: int, _: int) -> None:
        if done >= rows:
            raise Stop

    return check


@pytest.mark.parametrize("rows", [8, 16, 30])
@pytest.mark.parametrize(
    "how",
    [
        {"target": "rows.jsonl"},
        {"target": "rows.csv"},
        {"target": "rows.parquet"},
        {"target": "chat.jsonl", "format": "openai-chat", "mapping": {"prompt": "question", "response": "answer"}},
        {"target": "shards", "format": "jsonl", "rows_per_file": 9},
        {"target": "parts", "partition_by": ["parity"], "rows_per_file": 9},
    ],
    ids=lambda how: f"{how['target']}",
)
def test_an_export_that_ended_early_continues(
    dataset: sb.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], rows: int
) -> None:
    """Begun again, it writes the rest, and the files equal those of an undisturbed export."""
    monkeypatch.setattr(export_module, "_STEP_BYTES", 1)
    options = {name: value for name, value in how.items() if name != "target"}
    target, whole = tmp_path / "stopped" / how["target"], tmp_path / "whole" / how["target"]
    with pytest.raises(Stop):
        export(dataset, target, on_progress=stop_after(rows), **options)
    found = export(dataset, target, **options)
    assert attributes(export(dataset, whole, **options)) == attributes(found)
    if "partition_by" in options:  # where arrow cuts its files into row groups depends on timing
        assert {name: rows.to_dicts() for name, rows in tables(tmp_path / "stopped").items()} == {
            name: rows.to_dicts() for name, rows in tables(tmp_path / "whole").items()
        }
    else:
        assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def tables(folder: Path) -> dict[str, pl.DataFrame]:
    """All parquet files below a folder."""
    return {str(path.relative_to(folder)): pl.read_parquet(path) for path in folder.rglob("*.parquet")}


def attributes(found: Any) -> tuple[int, int, int]:
    """What an export says that does not depend on its folder."""
    return found.rows, found.left_out, len(found.files)


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_continued_export_reads_only_the_rest(
    dataset: sb.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is finished is not written again."""
    monkeypatch.setattr(export_module, "_STEP_BYTES", 1)
    with pytest.raises(Stop):
        export(dataset, tmp_path / "rows.jsonl", on_progress=stop_after(20))
    seen: list[int] = []
    export(dataset, tmp_path / "rows.jsonl", on_progress=lambda done, _: seen.append(done))
    assert seen[0] > 14


KILLED = """
import os, signal, sys
from seedbed.publish import export as module

module._STEP_BYTES = 1
def kill(done, _):
    if done >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
module.export(sys.argv[1], sys.argv[2], on_progress=kill)
"""


@pytest.mark.parametrize("rows", [1, 20, 35])
def test_a_killed_export_continues(dataset: sb.Dataset, tmp_path: Path, rows: int) -> None:
    """After SIGKILL at any point there is no file of that name, and the next export completes it."""
    target = tmp_path / "rows.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, dataset.path, target, str(rows)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    export(dataset, target)
    assert rows_of(target) == json.loads(json.dumps(rows_of(target)))
    assert [row["n"] for row in rows_of(target)] == dataset.to_polars()["n"].to_list()


@pytest.mark.parametrize("options", [{}, {"format": "jsonl", "rows_per_file": 10}])
def test_what_is_there_is_not_overwritten(dataset: sb.Dataset, tmp_path: Path, options: dict[str, Any]) -> None:
    """A target that exists is an error that names the option; with it, the new export takes its place."""
    target = tmp_path / "rows.jsonl"
    export(dataset, target, **options)
    with pytest.raises(sb.ConfigError, match=r"exists already; pass --overwrite \(overwrite=True\)"):
        export(dataset, target, **options)
    again: dict[str, Any] = {**options, **({"rows_per_file": 20} if options else {})}
    export(dataset, target, overwrite=True, **again)
    if options:
        assert sorted(path.name for path in target.iterdir()) == [f"data-{at:05d}-of-00002.jsonl" for at in range(2)]


def test_a_folder_with_other_files_is_not_cleared(dataset: sb.Dataset, tmp_path: Path) -> None:
    """`overwrite` removes files of an export, and nothing in a folder that holds anything else."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(sb.ConfigError, match=r"holds 'notes.txt', which no export has written"):
        export(dataset, tmp_path, format="jsonl", rows_per_file=10, overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_another_export_does_not_continue_an_unfinished_one(dataset: sb.Dataset, tmp_path: Path) -> None:
    """An unfinished export of other columns is not mixed with this one."""
    with pytest.raises(Stop):
        export(dataset, tmp_path / "rows.jsonl", on_progress=stop_after(8))
    with pytest.raises(sb.ConfigError, match="unfinished export of other rows or with other options"):
        export(dataset, tmp_path / "rows.jsonl", columns=["n"])
    export(dataset, tmp_path / "rows.jsonl", columns=["n"], overwrite=True)
    assert rows_of(tmp_path / "rows.jsonl")[0] == {"n": 0}


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("rows.txt", {}, "does not follow from its ending: pass one of jsonl, csv"),
        ("rows", {"format": "jsonlines"}, "unknown format 'jsonlines'; did you mean 'jsonl'"),
        ("rows.csv", {"columns": ["anwser"]}, "unknown column 'anwser'; did you mean 'answer'"),
        ("rows.csv", {"partition_by": ["parity"]}, "partition_by writes parquet, not csv"),
        ("rows", {"format": "jsonl", "rows_per_file": 0}, "rows_per_file must be a whole number, 1 or more"),
        ("rows.csv", {"mapping": {"prompt": "n"}}, "fields are mapped for chat formats"),
        ("rows.csv", {"storage_options": {"key": 1}}, "storage options are for URLs"),
        ("nowhere://bucket/rows.csv", {}, "nowhere:// cannot be opened"),
    ],
)
def test_mistakes_are_named(
    dataset: sb.Dataset, tmp_path: Path, target: str, options: dict[str, Any], message: str
) -> None:
    """Each mistake is an error before anything is written."""
    where = target if "://" in target else str(tmp_path / target)
    with pytest.raises(sb.ConfigError) as caught:
        export(dataset, where, **options)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_url_of_any_file_system_is_a_target(dataset: sb.Dataset) -> None:
    """Here the memory of fsspec."""
    memory = fsspec.filesystem("memory")
    found = export(dataset, "memory://bucket/rows.parquet")
    assert found.files == ("memory:///bucket/rows.parquet",)
    assert memory.ls("/bucket", detail=False) == ["/bucket/rows.parquet"]
    with memory.open("/bucket/rows.parquet") as file:
        assert pl.read_parquet(file).equals(dataset.to_polars())


def test_the_command_says_what_it_wrote(
    dataset: sb.Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with rows and file, another for rows that a chat format cannot have; JSON for programs."""
    chat = ["--format", "alpaca", "--map", "instruction=question", "--map", "output=answer"]
    assert main(["export", str(dataset.path), str(tmp_path / "a.jsonl"), *chat]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        f"32 rows in {tmp_path / 'a.jsonl'}",
        "3 rows were left out: a field of the chat format is null there",
    ]
    assert shown.err == ""
    assert main(["export", str(dataset.path), str(tmp_path / "b.csv"), "--json", "--column", "n"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 35, "left_out": 0, "files": [str(tmp_path / "b.csv")]}
    assert main(["export", str(dataset.path), str(tmp_path / "b.csv")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_to_hf_has_the_same_rows(dataset: sb.Dataset) -> None:
    """`Dataset.to_hf` gives a dataset of the library datasets."""
    found = dataset.to_hf()
    assert found.column_names == list(dataset.columns)
    assert found.data.table.cast(pa.schema(dataset.to_arrow().schema)).equals(dataset.to_arrow())
