"""The files, code and variables that a recipe file may use, with and without grants."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import seedbed as sb
from seedbed.columns.spec import Access, Grants
from seedbed.engine.source import make_source
from seedbed.errors import ConfigError, DatasetGenerationError, SeedbedError
from seedbed.recipe.recipe import Contact

CERTIFICATE = Path(__file__).parents[1] / "models" / "loopback.pem"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recipe's folder, with a file beside it that is not in it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "rows.csv").write_text("id\n1\n")
    (tmp_path / "outside" / "schema.json").write_text('{"type": "object", "properties": {"a": {"type": "string"}}}')
    (tmp_path / "outside" / "outside_code.py").write_text("def make(id):\n    return id\n")
    found = tmp_path / "recipe"
    found.mkdir()
    (found / "rows.csv").write_text("id\n2\n")
    return found


def write(folder: Path, *columns: dict[str, Any], **more: Any) -> Path:
    """Write a recipe with these columns, or with one that needs nothing."""
    path = folder / "recipe.yaml"
    given = columns or ({"name": "c", "type": "category", "values": ["x"]},)
    path.write_text(yaml.safe_dump({"columns": list(given), **more}))
    return path


def compiled(path: Path, **grants: Any) -> None:
    """Load and compile a recipe, as every command does."""
    make_source(sb.load_recipe(path, **grants))


def seed(path: str | Path) -> dict[str, Any]:
    """A seed column of a recipe file."""
    return {"name": "s", "type": "seed", "path": str(path)}


@pytest.mark.parametrize(
    "path",
    [
        "{out}/rows.csv",
        "../outside/rows.csv",
        "../outside/*.csv",
        "*/../../outside/*.csv",
        "file://{out}/rows.csv",
        "local://{out}/rows.csv",
        "link.csv",
        "l*.csv",
        "linked/rows.csv",
        "**/*.csv",
    ],
)
def test_a_recipe_file_reads_no_seed_outside_of_its_folder(folder: Path, path: str) -> None:
    """Any path that leads out of the recipe's folder is rejected; the message has the option that allows it."""
    outside = folder.parent / "outside"
    (folder / "inner").mkdir()
    (folder / "link.csv").symlink_to(outside / "rows.csv")
    (folder / "linked").symlink_to(outside)
    recipe = write(folder, seed(path.format(out=outside)))
    with pytest.raises(SeedbedError, match=rf"is outside of the recipe's folder .* pass --allow-path {outside}"):
        compiled(recipe)
    compiled(recipe, allow_paths=[outside])


@pytest.mark.parametrize("path", ["rows.csv", "./rows.csv", "*.csv", "../recipe/rows.csv"])
def test_a_recipe_file_reads_seeds_in_its_folder(folder: Path, path: str) -> None:
    """Files below the recipe's folder need no permission, also if the folder is reached by a link."""
    recipe = write(folder, seed(path))
    compiled(recipe)
    (folder.parent / "way").symlink_to(folder)
    compiled(folder.parent / "way" / recipe.name)


@pytest.mark.parametrize("protocol", ["zip", "simplecache", "reference", "dir", "git", "simplecache::file", "FILE"])
def test_a_recipe_file_uses_no_filesystem_that_opens_local_files(folder: Path, protocol: str) -> None:
    """Filesystems that wrap others are rejected by name."""
    recipe = write(folder, {**seed(f"{protocol}:///etc/rows.csv"), "format": "csv"})
    with pytest.raises(SeedbedError, match=rf"a recipe file may not use the protocol '{protocol}'"):
        compiled(recipe, allow_paths=["/"])


def test_base_grants_nothing(folder: Path) -> None:
    """A recipe file that puts its base elsewhere may not read there for that reason."""
    recipe = write(folder, seed("rows.csv"), base=str(folder.parent / "outside"))
    with pytest.raises(SeedbedError, match=r"is outside of the recipe's folder"):
        compiled(recipe)


MODELS = {"m": {"type": "scripted"}}


def test_a_recipe_file_reads_no_schema_outside_of_its_folder(folder: Path) -> None:
    """The file of a schema is checked like any other path."""
    column = {"name": "a", "type": "llm-structured", "model": "m", "prompt": "x", "schema": "../outside/schema.json"}
    recipe = write(folder, column, models=MODELS)
    with pytest.raises(SeedbedError, match=r"column 'a', schema: .* pass --allow-path"):
        compiled(recipe)
    compiled(recipe, allow_paths=[folder.parent / "outside"])


def test_allowed_code_is_not_imported_from_outside_of_the_folder(folder: Path) -> None:
    """Permission for code is for code beside the recipe or installed, not for a folder that the recipe names."""
    column = {"name": "f", "type": "custom", "function": "outside_code:make"}
    recipe = write(folder, seed("rows.csv"), column, base="../outside")
    with pytest.raises(SeedbedError, match=r"column 'f', function: .* pass --allow-path"):
        compiled(recipe, allow_code=True)
    with pytest.raises(SeedbedError, match=r"which needs --allow-code"):
        compiled(recipe, allow_paths=[folder.parent])
    compiled(recipe, allow_code=True, allow_paths=[folder.parent / "outside"])


def test_weights_outside_of_the_folder_are_rejected(folder: Path) -> None:
    """The weights of a local model are checked like any other path."""
    recipe = write(folder, models={"m": {"type": "local", "weights": "/outside/model.gguf"}})
    with pytest.raises(
        DatasetGenerationError, match=r"models.m: '/outside/model.gguf' is outside .*--allow-path /outside"
    ):
        compiled(recipe)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_certificates_outside_of_the_folder_are_rejected(folder: Path, kind: str) -> None:
    """A certificate file is rejected before it is opened, and read if it is allowed."""
    outside = folder.parent / "outside"
    model = {"type": kind, "base_url": "https://localhost/v1", "model": "x", "api_key_env": "PATH"}
    recipe = write(folder, models={"m": {**model, "ca_file": str(outside / "ca.pem")}})
    (outside / "ca.pem").write_text("no certificate")
    with pytest.raises(DatasetGenerationError) as caught:
        compiled(recipe)
    (problem,) = caught.value.problems
    assert problem.startswith(f"models.m: '{outside}/ca.pem' is outside of the recipe's folder '{folder}'; ")
    assert problem.endswith(f"pass --allow-path {outside}")
    with pytest.raises(DatasetGenerationError, match=r"models.m: model 'x': ca_file .* cannot be used"):
        compiled(recipe, allow_paths=[outside])
    (outside / "ca.pem").write_bytes(CERTIFICATE.read_bytes())
    compiled(recipe, allow_paths=[outside])


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe has no name in a folder there")
def test_certificates_in_a_pipe_are_rejected(folder: Path) -> None:
    """A named pipe in place of the certificates is rejected without waiting for a writer."""
    os.mkfifo(folder / "ca.pem")
    model = {"type": "openai", "base_url": "https://localhost/v1", "model": "x", "ca_file": str(folder / "ca.pem")}
    with pytest.raises(DatasetGenerationError, match=r"ca_file .* cannot be used: it is not a regular file"):
        compiled(write(folder, models={"m": model}))


def test_pictures_of_cells_are_read_where_the_recipe_may_read(folder: Path) -> None:
    """A path in a cell, which a model may have written, cannot lead to a picture outside of the folder."""
    picture = b"\x89PNG\r\n\x1a\n" + bytes(20)
    (folder / "in.png").write_bytes(picture)
    (folder.parent / "outside" / "out.png").write_bytes(picture)
    (folder / "rows.csv").write_text(f"p\nin.png\n../outside/out.png\n{folder.parent}/outside/out.png\n")
    column = {"name": "a", "type": "llm-text", "model": "m", "prompt": "x", "images": ["p"]}
    recipe = write(folder, seed("rows.csv"), column, models=MODELS)
    made = sb.preview(sb.load_recipe(recipe), rows=3)
    assert made.to_polars()["p"].to_list() == ["in.png"]
    assert all("--allow-path" in drop.error for drop in made.report.dropped)
    assert sb.preview(sb.load_recipe(recipe, allow_paths=[folder.parent]), rows=3).report.written == 3


def test_headers_send_only_variables_that_are_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header may use a variable only if the user allows it or the recipe declares it as a key."""
    for name in ("MY_KEY", "MY_SECRET"):
        monkeypatch.setenv(name, "value")
    model = {"base_url": "http://127.0.0.1:9/v1", "model": "x", "headers": {"x-token": "${MY_SECRET}"}}
    recipe = write(folder, models={"m": model})
    with pytest.raises(DatasetGenerationError, match=r"models.m: headers .* MY_SECRET; .* pass --allow-env MY_SECRET"):
        compiled(recipe)
    compiled(recipe, allow_env=["MY_SECRET"])
    compiled(write(folder, models={"m": model, "n": {**model, "api_key_env": "MY_SECRET", "headers": {}}}))


def test_a_recipe_in_python_is_not_restricted(folder: Path) -> None:
    """A recipe that is written in Python may read any path and variable."""
    outside = folder.parent / "outside" / "rows.csv"
    model = sb.OpenAICompatible(base_url="http://127.0.0.1:9/v1", model="x", headers={"x-home": "${HOME}"})
    assert os.environ.get("HOME")
    make_source(sb.Recipe(columns=[sb.Seed("s", path=outside)], models={"m": model}, base=folder))


def test_contacts_are_models_validators_and_seeds_by_url(folder: Path) -> None:
    """Contacts are listed with the variables that are sent, without passwords and queries."""
    recipe = write(
        folder,
        seed("https://user:word@example.com/rows.csv?sig=1") | {"format": "csv"},
        {"name": "c", "type": "category", "values": ["x"]},
        {
            "name": "v",
            "type": "validation",
            "of": "c",
            "kind": "remote",
            "url": "http://v.example/",
            "api_key_env": "V",
        },
        models={
            "m": {"base_url": "http://m.example/v1", "model": "x", "headers": {"x-token": "${T}"}},
            "s": MODELS["m"],
        },
    )
    assert sb.load_recipe(recipe).contacts() == [
        Contact(place="models.m", url="http://m.example/v1", env=("T",)),
        Contact(place="columns.s", url="https://example.com/rows.csv?…"),
        Contact(place="columns.v", url="http://v.example/", env=("V",)),
    ]


def test_a_path_that_the_user_varies_is_allowed(folder: Path) -> None:
    """A path that is passed to a simulation needs no other permission."""
    recipe = sb.load_recipe(write(folder, seed("rows.csv")))
    outside = str(folder.parent / "outside" / "rows.csv")
    assert sb.simulate(recipe, rows=2, vary={"columns.s.path": [outside]}).variants


def test_grants_as_command_line_options(tmp_path: Path) -> None:
    """The options of a grant, passed on the command line, grant the same."""
    grants = Grants(code=True, paths=["a b"], env=["B", "A"])
    assert grants.options() == ["--allow-code", f"--allow-path '{Path.cwd()}/a b'", "--allow-env A", "--allow-env B"]
    with pytest.raises(ConfigError, match=r"is outside"):
        Access(folder=tmp_path, grants=grants).check_path(tmp_path.parent, "here")
