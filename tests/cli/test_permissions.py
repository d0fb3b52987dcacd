"""Permissions of recipe files: one set of options for every command that loads one."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from command import TEXT, recipe, seedbed

from seedbed.testing import serve_openai_sync

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = [
    ("run", "-n", "1", "-o", "made"),
    ("preview", "-n", "1"),
    ("check",),
    ("graph",),
    ("simulate", "-n", "1"),
]


def _seeded(folder: Path, path: str) -> Path:
    folder.mkdir(exist_ok=True)
    return recipe(folder, f"  - {{name: s, type: seed, path: {path}}}\n")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_that_loads_a_recipe_takes_permissions(tmp_path: Path, command: tuple[str, ...]) -> None:
    """A path outside the recipe's folder is rejected with status 2 and the option that allows it."""
    (tmp_path / "rows.csv").write_text("id\n1\n")
    path = _seeded(tmp_path / "recipe", "../rows.csv")
    name, *options = command
    ended = seedbed(name, path, *options, cwd=tmp_path)
    assert ended.code == 2
    assert f"pass --allow-path {tmp_path}" in ended.out + ended.err
    ended = seedbed(name, path, *options, "--allow-path", "other", "--allow-path", ".", cwd=tmp_path)
    assert ended.code == 0, ended.err


def test_resume_needs_the_permissions_of_run(tmp_path: Path) -> None:
    """A stored recipe's base grants nothing; the message names the option, and with it the dataset grows."""
    folder = tmp_path / "recipe"
    path, out = _seeded(folder, "rows.csv"), tmp_path / "out"
    (folder / "rows.csv").write_text("id\n1\n2\n")
    # From its own folder: what is relative must not begin anywhere else on resume.
    ended = seedbed("run", path.name, "-n", "2", "-o", out, cwd=folder)
    assert ended.code == 0, ended.err
    ended = seedbed("resume", out, "-n", "4")
    assert ended.code == 2
    assert f"pass --allow-path {folder}" in ended.err
    ended = seedbed("resume", out, "-n", "4", "--allow-path", folder)
    assert ended.code == 0, ended.err
    assert seedbed("run", path, "-n", "6", "-o", out, "--resume").code == 0


def test_columns_that_use_a_seed_that_may_not_be_read_are_no_problems(tmp_path: Path) -> None:
    """The message has the cause only, although a column of the seed resembles another column."""
    folder, out = tmp_path / "recipe", tmp_path / "out"
    folder.mkdir()
    (folder / "rows.csv").write_text("topic\na\nb\n")
    path = recipe(
        folder,
        "  - {name: s, type: seed, path: rows.csv}\n  - {name: topics, type: expression, expr: \"topic + 'x'\"}\n",
    )
    assert seedbed("run", path, "-n", "2", "-o", out).code == 0
    ended = seedbed("resume", out, "-n", "4")
    assert ended.code == 2
    assert f"pass --allow-path {folder}" in ended.err
    assert "'topics'" not in ended.err


@pytest.mark.parametrize("allowed", [False, True])
def test_headers_need_permission_and_urls_are_listed(tmp_path: Path, allowed: bool) -> None:
    """A variable in a header is sent only if it is allowed; servers are listed before they are contacted."""
    with serve_openai_sync() as server:
        path = recipe(tmp_path, TEXT)
        model = f"{{base_url: '{server.url}', model: m, headers: {{x-org: '${{ORGANIZATION}}'}}}}"
        path.write_text(path.read_text().replace("{type: scripted, input_price: 1.0, output_price: 1.0}", model))
        options = ("--allow-env", "ORGANIZATION") if allowed else ()
        contact = f"contacts models.writer: {server.url} (is sent ORGANIZATION)"
        for command in (("check",), ("models", "check"), ("preview", "-n", "1"), ("run", "-n", "1", "-o", "out")):
            name, *more = command if command[0] != "models" else ("models check",)
            ended = seedbed(*name.split(), path, *more, *options, cwd=tmp_path, ORGANIZATION="o")
            said = ended.out + ended.err
            assert ended.code == (0 if allowed else 2), said
            assert allowed != ("pass --allow-env ORGANIZATION" in said)
            assert not allowed or contact in said
        if not allowed:
            return
        ended = seedbed("check", path, "--json", *options, ORGANIZATION="o")
        assert ended.json["contacts"] == [{"place": "models.writer", "url": server.url, "env": ["ORGANIZATION"]}]
        ended = seedbed("resume", tmp_path / "out", "-n", "2", ORGANIZATION="o")
        assert ended.code == 2
        assert "pass --allow-env ORGANIZATION" in ended.err
        ended = seedbed("resume", tmp_path / "out", "-n", "2", *options, ORGANIZATION="o")
        assert ended.code == 0, ended.err
        assert contact in ended.err


def test_a_stored_recipe_grants_itself_no_folder(tmp_path: Path) -> None:
    """A stored recipe that names a folder of the user cannot read that folder."""
    folder = tmp_path / "recipe"
    path = _seeded(folder, "rows.csv")
    (folder / "rows.csv").write_text("id\n1\n")
    assert seedbed("run", path, "-n", "1", "-o", tmp_path / "out").code == 0
    shutil.rmtree(folder)
    home = tmp_path / "home"
    home.mkdir()
    (home / "rows.csv").write_text("id\nsecret\n")
    stored = tmp_path / "out" / ".seedbed" / "recipe.yaml"
    stored.write_text(stored.read_text().replace(str(folder), str(home)))
    ended = seedbed("resume", tmp_path / "out", "-n", "2", "--accept-changes")
    assert ended.code == 2
    assert f"pass --allow-path {home}" in ended.err
    assert "secret" not in ended.out + ended.err
