"""A dataset directory from a stranger: reading or resuming it never reaches outside of it and never crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from hostile import ABORT, LINKS, MANIFESTS, ODD, PANIC, RECIPE, Hostile, change_header, replace_part, sound

import seedbed as sb
from seedbed.cli import main
from seedbed.cli.exit_codes import ExitCode
from seedbed.store.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from pathlib import Path

# What an error of seedbed's own ends with; anything else is a crash.
ORDERLY = {ExitCode.OK, ExitCode.BAD_INPUT, ExitCode.BAD_DATASET}


@pytest.fixture
def found(tmp_path: Path) -> Hostile:
    """A sound dataset, to be changed."""
    return sound(tmp_path)


def read_every_way(found: Hostile) -> None:
    """Read a directory by every command that reads one."""
    directory = str(found.directory)
    recipe = found.directory.parent / "recipe.yaml"
    recipe.write_text(RECIPE)
    for command in (
        ["inspect", directory],
        ["inspect", directory, "--verify", "--profile"],
        ["simulate", str(recipe), "-n", "4", "--from", directory],
    ):
        assert main(command) in ORDERLY, command
        found.check_untouched()
    try:
        dataset = sb.Dataset.open(directory)
        dataset.damage()
        dataset.to_arrow()
        dataset.to_polars()
    except sb.StoreError:
        pass


def test_a_sound_directory_is_resumed(found: Hostile) -> None:
    """Without an attack everything works, also through a link to the directory: the other tests can fail."""
    link = found.directory.parent / "link"
    link.symlink_to(found.directory)
    read_every_way(found)
    assert main(["resume", str(link)]) == ExitCode.OK
    assert sb.Dataset.open(link).complete
    assert sb.Dataset.open(link).damage() == ()


@pytest.mark.parametrize("name", LINKS)
def test_a_directory_with_a_link_is_not_written_to(
    found: Hostile, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written to a directory with links, the message names them, and no command changes their targets."""
    LINKS[name](found)
    before = sorted(path.name for path in found.directory.iterdir())
    assert main(["resume", str(found.directory)]) in {ExitCode.BAD_DATASET, ExitCode.BAD_INPUT}
    assert repr(name) in capsys.readouterr().err or name == ".seedbed/recipe.yaml"
    assert sorted(path.name for path in found.directory.iterdir()) == before
    read_every_way(found)


@pytest.mark.parametrize("name", MANIFESTS)
def test_an_impossible_manifest_is_rejected(found: Hostile, name: str) -> None:
    """A file name that is not the writer's, and rows that do not add up, are a `ManifestError` for all who read it."""
    MANIFESTS[name](found)
    for attempt in (sb.Dataset.open, sb.resume):
        with pytest.raises(sb.ManifestError):
            attempt(found.directory)
    assert main(["resume", str(found.directory)]) == ExitCode.BAD_DATASET
    read_every_way(found)


@pytest.mark.parametrize("name", ODD)
def test_odd_files_end_in_order(found: Hostile, name: str) -> None:
    """Whatever else a file holds, every command ends in order and nothing outside is changed."""
    ODD[name](found)
    read_every_way(found)
    assert main(["resume", str(found.directory)]) in ORDERLY
    found.check_untouched()


def test_a_recipe_that_cannot_be_parsed_is_not_stored(found: Hostile) -> None:
    """The recipe file is written only after it was parsed and the directory was opened for writing."""
    change_header(found, recipe="columns: [")
    assert main(["resume", str(found.directory)]) == ExitCode.BAD_INPUT
    assert not (found.directory / ".seedbed" / "recipe.yaml").exists()


def test_a_manifest_with_another_hard_link_is_read_but_not_written(found: Hostile) -> None:
    """A copy of a dataset that shares its files is not changed by a resume."""
    manifest = found.directory / MANIFEST_NAME
    backup = found.directory.parent / "backup.log"
    backup.hardlink_to(manifest)
    before = backup.read_bytes()
    assert main(["inspect", str(found.directory)]) == ExitCode.OK
    assert main(["resume", str(found.directory)]) in {ExitCode.BAD_DATASET, ExitCode.BAD_INPUT}
    assert backup.read_bytes() == before


@pytest.mark.parametrize("part", [PANIC, ABORT], ids=lambda path: path.stem)
def test_a_lazy_frame_ends_in_an_error_that_names_the_part(found: Hostile, part: Path) -> None:
    """A part that cannot be read raises `PartError` when a scan is collected, however much of it is requested."""
    replace_part(found, part.read_bytes())
    scan = sb.Dataset.open(found.directory).scan()
    for query in (scan, scan.head(1), scan.filter(pl.col("topic") == "a"), scan.group_by("topic").len()):
        with pytest.raises(sb.PartError, match=r"part 'batch_0000000\.parquet' in .* cannot be read: "):
            query.collect()


@pytest.mark.parametrize("part", [PANIC, ABORT], ids=lambda path: path.stem)
def test_a_processor_over_a_part_that_cannot_be_read(
    tmp_path: Path, part: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An after-generation processor reads every part: the run ends with one sentence and status 3."""
    found = sound(tmp_path, recipe_text=f"{RECIPE}\nprocessors:\n  - {{type: deduplicate, subset: [topic]}}\n")
    name = ".seedbed/parts/batch_0000000.part"
    replace_part(found, part.read_bytes(), name=name)
    capsys.readouterr()
    assert main(["resume", str(found.directory)]) == ExitCode.BAD_DATASET
    assert f"part {name!r} in" in capsys.readouterr().err
