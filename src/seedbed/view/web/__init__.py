"""The page: HTML, a style sheet and ES modules, which a browser loads as they are."""

from __future__ import annotations

from importlib.resources import files

_SUFFIXES = (".html", ".js", ".css", ".svg")


def web_files() -> dict[str, bytes]:
    """The files of the page, by name."""
    found = sorted(files(__package__).iterdir(), key=lambda each: each.name)
    return {path.name: path.read_bytes() for path in found if path.name.endswith(_SUFFIXES)}
