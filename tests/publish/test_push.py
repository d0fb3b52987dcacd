"""`seedbed push`: what is sent, what is not, and what a rejected push says."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.utils
import polars as pl
import pytest
from hub_server import Hub, serve_hub
from sample_rows import number

import seedbed as sb
from seedbed.cli import main
from seedbed.publish.hub import push

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub without repositories."""
    with serve_hub() as served:
        yield served


# Of the library that the hub's own uses for HTTP.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@attrs.frozen
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Push = Callable[..., Done]


@pytest.fixture
def run_push(hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Push:
    """`seedbed push` with the settings that the library reads from the environment when it is imported."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    huggingface_hub.utils.disable_progress_bars()

    def run(*arguments: object, token: str | None = None) -> Done:
        monkeypatch.setenv("HF_TOKEN", token or hub.token)
        status = main(["push", *map(str, arguments)])
        shown = capsys.readouterr()
        return Done(status, shown.out, shown.err)

    return run


def test_a_push_sends_rows_and_card_and_nothing_else(dataset: sb.Dataset, hub: Hub, run_push: Push) -> None:
    """One commit with the parts under the hub's usual names, whose rows are the dataset, and the card at the root."""
    done = run_push(dataset.path, "hf://org/name", "--license", "mit")
    assert (done.returncode, done.stderr) == (0, "")
    assert "7 files" in done.stdout
    files = hub.files["main"]
    parts = [f"data/train-{at:05d}-of-00005.parquet" for at in range(5)]
    assert sorted(files) == ["README.md", "croissant.json", *parts]
    assert pl.concat(pl.read_parquet(io.BytesIO(files[name])) for name in parts)["n"].to_list() == [
        *dataset.to_polars()["n"]
    ]
    assert b"path: data/*.parquet" in files["README.md"]
    assert json.loads(files["croissant.json"])["distribution"][0]["contentUrl"] == parts[0]
    assert sum(each.endswith("/commit/main") for each in hub.asked) == 1


def test_dropped_rows_and_journal_are_sent_on_request(dataset: sb.Dataset, hub: Hub, run_push: Push) -> None:
    """They are sent with their options only."""
    run_push(dataset.path, "hf://org/name", "--dropped", "--journal")
    assert {"dropped/dropped.parquet", ".seedbed/manifest.log"} <= set(hub.files["main"])
    dropped = pl.read_parquet(io.BytesIO(hub.files["main"]["dropped/dropped.parquet"]))
    assert dropped.height == 5


def test_a_second_push_replaces_the_parts_of_the_first(dataset: sb.Dataset, hub: Hub, run_push: Push) -> None:
    """Parts that are no longer there are removed; other files of the repository stay."""
    hub.files["main"] = {"data/train-00009-of-00010.parquet": b"old", "notes.md": b"mine"}
    assert run_push(dataset.path, "hf://org/name").returncode == 0
    assert "data/train-00009-of-00010.parquet" not in hub.files["main"]
    assert hub.files["main"]["notes.md"] == b"mine"


def test_a_branch_can_be_named(dataset: sb.Dataset, hub: Hub, run_push: Push) -> None:
    """The commit is on the branch, and main stays as it is."""
    assert run_push(dataset.path, "hf://org/name@draft").returncode == 0
    assert "README.md" in hub.files["draft"]
    assert hub.files["main"] == {}


def test_a_dry_run_lists_and_sends_nothing(dataset: sb.Dataset, hub: Hub, run_push: Push) -> None:
    """Every file with its size, and no request."""
    done = run_push(dataset.path, "hf://org/name", "--dry-run")
    assert done.returncode == 0
    assert "data/train-00004-of-00005.parquet" in done.stdout
    assert "would be sent to org/name" in done.stdout
    assert hub.asked == []


def test_a_rejected_token_is_one_sentence(dataset: sb.Dataset, hub: Hub, run_push: Push) -> None:
    """What the hub rejects is a message and no traceback, and the token is not shown."""
    done = run_push(dataset.path, "hf://org/name", token="hf_wrong")
    assert done.returncode == 3
    assert "could not be pushed to hf://org/name" in done.stderr
    assert "Traceback" not in done.stderr
    assert "hf_wrong" not in done.stderr


def test_an_interrupted_push_sends_finished_files_once(dataset: sb.Dataset, hub: Hub, run_push: Push) -> None:
    """Files that the hub has are not sent again by the next push."""
    hub.uploads_fail = True
    assert run_push(dataset.path, "hf://org/name").returncode == 3
    assert hub.files["main"] == {}
    hub.uploads_fail = False
    assert run_push(dataset.path, "hf://org/name").returncode == 0
    hub.asked.clear()
    assert run_push(dataset.path, "hf://org/name").returncode == 0
    assert not any(each.startswith("PUT") for each in hub.asked)


@pytest.mark.parametrize("target", ["org/name", "hf://name", "s3://bucket/x", "hf://org/name/more"])
def test_another_target_is_an_error(dataset: sb.Dataset, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the hub is pushed to; the message has the form that is expected."""
    assert main(["push", str(dataset.path), target, "--dry-run"]) == 2
    assert "hf://org/name" in capsys.readouterr().err


def test_links_in_a_directory_are_not_followed(tmp_path: Path) -> None:
    """A directory from a stranger cannot have files of the user published."""
    built = sb.build([sb.Column("n", number, kind="from_scratch")], rows=1, out=tmp_path / "data")
    secret = tmp_path / "secret"
    secret.write_text("key")
    (built.path / ".seedbed" / "images").mkdir()
    (built.path / ".seedbed" / "images" / "x.png").symlink_to(secret)
    with pytest.raises(sb.StoreError, match="holds symbolic links"):
        push(built, "hf://org/name", dry_run=True)
