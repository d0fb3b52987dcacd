"""`seedbed init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

_STARTER = Path(__file__).with_name("starter.yaml")


def init(
    file: Path = Path("recipe.yaml"),
    /,
    *,
    force: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative="", show_default=False)] = False,  # noqa: ARG001  read by `main` for all commands
) -> int:
    """Write a commented starter recipe.

    Parameters
    ----------
    file
        Where to write it.
    force
        Write over a file that is there.
    debug
        Show the traceback of an error.

    """
    import sys

    from ..errors import ConfigError

    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"the starter recipe is YAML: {file} must end in .yaml")
    if file.exists() and not force:
        raise ConfigError(f"{file} is there already; --force writes over it")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_STARTER.read_text(encoding="utf-8"), encoding="utf-8")
    sys.stdout.write(f"wrote {file}; try it: seedbed preview {file}\n")
    return 0
