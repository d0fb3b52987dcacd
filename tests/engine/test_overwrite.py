"""A dataset is replaced only on request, only if it is one, and never by halves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import seedbed as sb
from seedbed.store.manifest import is_dataset, lock
from seedbed.store.replace import remove_dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG = sb.RunConfig(buffer_size=2)


def numbers(rows: range) -> list[int]:
    """The number of each row."""
    return list(rows)


def columns(factor: int = 2) -> list[sb.Column]:
    """Numbers and their multiples."""
    return [
        sb.Column("n", numbers, kind="from_scratch"),
        sb.Column("v", (lambda n: n * 2) if factor == 2 else (lambda n: n * 3)),
    ]


def build(out: Path, factor: int = 2, rows: int = 5, **options: Any) -> sb.Dataset:
    """Build a small dataset."""
    return sb.build(columns(factor), rows=rows, out=out, config=CONFIG, progress="none", **options)


def test_a_finished_dataset_is_not_built_again(tmp_path: Path) -> None:
    """The error says that it is finished and names what can be done, also if the recipe is another one."""
    out = tmp_path / "out"
    build(out)
    with pytest.raises(sb.OutputDirectoryError) as raised:
        build(out)
    for text in ("is finished (5 rows requested)", f"seedbed inspect {out}", "--resume", "--overwrite"):
        assert text in str(raised.value)
    with pytest.raises(sb.OutputDirectoryError, match="holds a dataset of another recipe"):
        build(out, 3)
    assert sb.Dataset.open(out).complete


def test_an_unfinished_dataset_names_resume(tmp_path: Path) -> None:
    """So does one that is not finished."""
    out = tmp_path / "out"

    def fail(frame: Any) -> Any:
        raise ValueError("no")

    processors = [sb.Processor(stage="after_generation", apply=fail)]
    with pytest.raises(sb.ProcessorFailed):
        build(out, processors=processors)
    with pytest.raises(sb.OutputDirectoryError, match=f"is not finished; (.|\n)*to continue: seedbed resume {out}"):
        build(out, processors=processors)


def test_overwrite_replaces_the_dataset(tmp_path: Path) -> None:
    """Nothing of the old one is left; a directory that is new or empty needs no dataset."""
    out = tmp_path / "out"
    processors = [sb.Processor(stage="post_batch", apply=lambda frame: frame.with_columns(m=1))]
    build(out, rows=9, processors=processors, overwrite=True)
    (out / ".seedbed" / "traces").mkdir(exist_ok=True)
    dataset = build(out, 3, overwrite=True)
    assert dataset.to_polars().rows() == [(n, n * 3) for n in range(5)]
    assert pl.read_parquet(f"{out}/*.parquet").equals(dataset.to_polars())
    fresh = build(tmp_path / "fresh", 3)
    files = [{path.relative_to(each.path) for path in each.path.rglob("*")} for each in (dataset, fresh)]
    assert files[0] == files[1]


def _not_a_dataset(out: Path) -> None:
    (out / ".seedbed" / "manifest.log").unlink()


def _a_file_more(out: Path) -> None:
    (out / "notes.txt").write_text("mine")


def _a_link(out: Path) -> None:
    (out / ".seedbed" / "link").symlink_to(out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_not_a_dataset, "is not empty"),
        (_a_file_more, r"holds 'notes\.txt', which seedbed did not write"),
        (_a_link, "holds symbolic links"),
    ],
)
def test_what_is_not_overwritten(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    """Anything that is no dataset, or holds what seedbed did not write, is left as it is."""
    out = tmp_path / "out"
    build(out)
    change(out)
    before = sorted(out.rglob("*"))
    with pytest.raises(sb.OutputDirectoryError, match=message):
        build(out, 3, overwrite=True)
    assert sorted(out.rglob("*")) == before


def test_another_process_writes_it(tmp_path: Path) -> None:
    """Its dataset is not removed."""
    out = tmp_path / "out"
    build(out)
    with lock(out), pytest.raises(sb.OutputDirectoryError, match="another process is writing"):
        build(out, 3, overwrite=True)
    assert sb.Dataset.open(out).complete


def test_a_wrong_recipe_removes_nothing(tmp_path: Path) -> None:
    """Problems of the recipe are found first; `resume` and `overwrite` exclude each other."""
    out = tmp_path / "out"
    build(out)
    with pytest.raises(sb.DatasetGenerationError):
        sb.build([sb.Column("v", lambda m: m)], rows=1, out=out, overwrite=True)
    with pytest.raises(sb.ConfigError, match="pass out with it, and not resume"):
        build(out, resume=True, overwrite=True)
    assert sb.Dataset.open(out).complete


@pytest.mark.parametrize("options", [{"overwrite": True}, {}, {"resume": True}], ids=["overwrite", "run", "resume"])
@pytest.mark.parametrize("point", ["dataset unlisted", "rows removed"])
def test_killed_while_it_is_removed(
    point: str, options: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is no dataset; the next build there removes the rest of it."""
    out = tmp_path / "out"
    build(out)

    def die(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    monkeypatch.setattr("seedbed.runtime.faults.hook", die)
    with pytest.raises(KeyboardInterrupt):
        remove_dataset(out)
    monkeypatch.undo()
    assert not is_dataset(out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(sb.OutputDirectoryError, match="holds 'notes"):
        build(out, 3, **options)
    (out / "notes.txt").unlink()
    assert build(out, 3, **options).to_polars().rows() == [(n, n * 3) for n in range(5)]
    assert min(path.name for path in out.iterdir()) == ".seedbed"
    assert not list(out.glob("*.tmp"))
