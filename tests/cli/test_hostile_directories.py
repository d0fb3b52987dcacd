"""A dataset directory from a stranger: reading or resuming it never reaches outside of it and never crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hostile import LINKS, MANIFESTS, ODD, RECIPE, Hostile, change_header, sound

import seedbed as sb
from seedbed.cli.exit_codes import ExitCode
from seedbed.cli.main import main

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
def test_a_directory_that_holds_a_link_is_refused_for_writing(
    found: Hostile, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written where there are links, the message names them, and no command changes what they point to."""
    LINKS[name](found)
    before = sorted(path.name for path in found.directory.iterdir())
    assert main(["resume", str(found.directory)]) in {ExitCode.BAD_DATASET, ExitCode.BAD_INPUT}
    assert repr(name) in capsys.readouterr().err or name == ".seedbed/recipe.yaml"
    assert sorted(path.name for path in found.directory.iterdir()) == before
    read_every_way(found)


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_no_writer_writes_is_refused(found: Hostile, name: str) -> None:
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
