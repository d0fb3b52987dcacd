"""`seedbed init`: a starter recipe, or one of the cookbook with its files.

The folder `templates` beside this file is `examples/cookbook` of the repository.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from .exit_codes import ExitCode
from .options import Flag

_STARTER = Path(__file__).with_name("starter.yaml")
_TEMPLATES = Path(__file__).with_name("templates")


def init(
    path: Annotated[
        Path | None,
        Parameter(
            help="The file to write, or the folder of a template. [default: recipe.yaml, or the template's name]"
        ),
    ] = None,
    /,
    *,
    template: Annotated[
        str | None, Parameter(help="Write this recipe of the cookbook, with its seed files, instead of the starter.")
    ] = None,
    list_: Annotated[Flag, Parameter(name="--list", help="List the templates and write nothing.")] = False,
    force: Annotated[Flag, Parameter(help="Overwrite existing files.")] = False,
    debug: Annotated[Flag, Parameter(help="Show the traceback of an error.")] = False,  # noqa: ARG001  `main` reads it
) -> int:
    """Write a commented recipe: a starter, or one of the templates that --list lists."""
    from . import output

    if list_:
        width = max(map(len, templates()))
        for name, about in templates().items():
            output.print_line(f"{name:{width}}  {about}")
        output.print_line("to write one: seedbed init --template NAME")
        return ExitCode.OK
    recipe = _write_starter(path or Path("recipe.yaml"), force) if template is None else _copy(template, path, force)
    allow = " --allow-code" if list(recipe.parent.glob("*.py")) and template is not None else ""
    sys.stdout.write(f"wrote {recipe}; try it: seedbed preview {recipe}{allow}\n")
    return ExitCode.OK


def templates() -> dict[str, str]:
    """What each template makes, by name: the first line of its recipe."""
    recipes = sorted(_TEMPLATES.glob("*/recipe.yaml"))
    return {path.parent.name: path.read_text(encoding="utf-8").partition("\n")[0].strip("# ") for path in recipes}


def _write_starter(file: Path, force: bool) -> Path:
    from ..errors import ConfigError

    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"the starter recipe is YAML: {file} must end in .yaml")
    if file.exists() and not force:
        raise ConfigError(f"{file} exists; to overwrite it, pass --force")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_STARTER.read_text(encoding="utf-8"), encoding="utf-8")
    return file


def _copy(template: str, folder: Path | None, force: bool) -> Path:
    from ..errors import ConfigError
    from ..graph import nearest

    known = templates()
    if template not in known:
        guess = nearest(template, known) or f" (known: {', '.join(known)})"
        raise ConfigError(f"unknown template {template!r}{guess}")
    folder = Path(template) if folder is None else folder
    if folder.is_file() or folder.suffix in (".yaml", ".yml"):
        raise ConfigError(f"a template is a recipe and its files: name a folder, not {folder}")
    files = [each for each in sorted((_TEMPLATES / template).iterdir()) if each.is_file()]
    existing = [name for each in files if (name := folder / each.name).exists()]
    if existing and not force:
        raise ConfigError(f"{existing[0]} exists; to overwrite it, pass --force")
    folder.mkdir(parents=True, exist_ok=True)
    for each in files:
        shutil.copyfile(each, folder / each.name)
    return folder / "recipe.yaml"
