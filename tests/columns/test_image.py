from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from chatting import FakeContext, environment, fill_in, grow_specs, numbers, served_by

from seedbed.columns.spec import Environment, make_column
from seedbed.columns.text import Image, LLMText
from seedbed.models import ImageAnswer, Scripted, open_models
from seedbed.models.answers import small_png
from seedbed.models.base import Image as Picture
from seedbed.testing import ServerRequest, serve_openai

if TYPE_CHECKING:
    from pathlib import Path

SPEC = Image("cover", model="painter", prompt="A cover for {{ n }}")


async def test_a_picture_is_written_to_the_dataset_directory(tmp_path: Path) -> None:
    """The cell has its path, relative to the dataset, and no other file is left in the folder."""
    async with environment({"painter": Scripted()}, artifacts=tmp_path) as here:
        path = await fill_in(SPEC, here, FakeContext(row=12), n=1)
        again = await fill_in(SPEC, here, FakeContext(row=12), n=1)
    data = small_png("A cover for 1 0")
    digest = hashlib.blake2b(data, digest_size=6).hexdigest()
    assert path == again == f".seedbed/images/cover/0000012_{digest}.png"
    assert (tmp_path / path).read_bytes() == data
    assert [each.name for each in (tmp_path / ".seedbed" / "images" / "cover").iterdir()] == [path.rpartition("/")[2]]


async def test_different_pictures_of_one_row_number_have_different_files(tmp_path: Path) -> None:
    """Copies that a processor made of a row have its number; each has its own picture."""
    async with environment({"painter": Scripted()}, artifacts=tmp_path) as here:
        one = await fill_in(SPEC, here, FakeContext(row=1), n="a")
        other = await fill_in(SPEC, here, FakeContext(row=1), n="b")
    assert one != other
    assert (tmp_path / one).read_bytes() != (tmp_path / other).read_bytes()


@pytest.mark.parametrize("name", ["..", "a/b", "ü ?"])
async def test_column_names_are_quoted_in_paths(name: str, tmp_path: Path) -> None:
    """The name of a column cannot lead out of the folder of pictures."""
    spec = Image(name, model="painter", prompt="Hello")
    async with environment({"painter": Scripted()}, artifacts=tmp_path) as here:
        path = await fill_in(spec, here)
    folder, _, _ = path.removeprefix(".seedbed/images/").partition("/")
    assert folder not in ("", ".", "..")
    assert path.count("/") == 3
    assert (tmp_path / ".seedbed" / "images" / folder).is_dir()


async def test_other_formats_have_their_suffix(tmp_path: Path) -> None:
    """The suffix of the file is that of its format."""

    class Client:
        async def image(self, prompt: str, parameters: Any) -> ImageAnswer:
            return ImageAnswer(images=(Picture(data=b"\xff\xd8", media_type="image/jpeg"),))

    here = Environment(models={"painter": Scripted()}, clients={"painter": Client()}, artifacts=tmp_path)  # type: ignore[arg-type, return-value]
    assert (await fill_in(SPEC, here, n=1)).endswith(".jpg")


async def test_a_picture_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk fails the cell and leaves no partial file."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("seedbed.store.files.os.fsync", full)
    async with environment({"painter": Scripted()}, artifacts=tmp_path) as here:
        with pytest.raises(OSError, match="No space left"):
            await fill_in(SPEC, here, n=1)
    assert list((tmp_path / ".seedbed" / "images" / "cover").iterdir()) == []


async def test_in_a_preview_cells_hold_bytes() -> None:
    """A preview writes no files, so the cell holds the picture."""
    async with serve_openai() as server:
        grown = await grow_specs([numbers(), SPEC], {"painter": served_by(server)}, rows=2)
    assert grown.frame.schema["cover"] == pl.Binary
    assert grown.frame["cover"].to_list() == [small_png(f"A cover for {n} 0") for n in range(2)]


async def test_a_generated_picture_can_be_sent_by_another_column(tmp_path: Path) -> None:
    """The bytes of the picture reach the other model through the files of the dataset."""
    shown: list[str] = []

    def script(request: ServerRequest) -> str | None:
        if request.path.endswith("/chat/completions"):
            shown.append(request.body["messages"][0]["content"][1]["image_url"]["url"])
        return None

    async with serve_openai(script=script) as server:
        models = {"painter": served_by(server)}
        specs = [numbers(), SPEC, LLMText("about", model="painter", prompt="Describe it", images="cover")]
        grown = await grow_specs(specs, models, rows=3, artifacts=tmp_path)
    assert grown.frame.schema["cover"] == pl.String
    assert all((tmp_path / path).is_file() for path in grown.frame["cover"])
    assert len(set(shown)) == 3
    assert all(url.startswith("data:image/png;base64,") for url in shown)


async def test_image_column_has_key_and_requirements() -> None:
    """Key and requirements are those of the model and the prompt."""
    models = {"painter": Scripted()}
    async with open_models(models):
        column = make_column(SPEC, Environment(models=models))
    assert (column.key, column.requires) == ("scripted scripted image", ("n",))
