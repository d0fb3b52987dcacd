"""What a recipe file may reach: the paths it may read, the environment variables it may send, the URLs it contacts.

A file may come from a stranger, so it reads below its own folder only, unless the user grants more. A recipe that is
written in Python has no `Access` and is not restricted: it is the user's own code.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The filesystems of fsspec that a recipe file may name. Those that open local files (`file`, `zip`, `simplecache`, …)
# are not among them, nor are those that nobody has looked at.
REMOTE_PROTOCOLS = frozenset(
    "abfs abfss adl az ftp gcs gs hdfs hf http https memory s3 s3a sftp webhdfs".split()  # noqa: SIM905  easier to read
)
_WILDCARD = re.compile(r"[*?\[]")


def _paths(value: Iterable[Any]) -> tuple[Path, ...]:
    return tuple(Path(each).expanduser().absolute() for each in value)


def _names(value: Iterable[str]) -> frozenset[str]:
    return frozenset(value)


@attrs.frozen(kw_only=True)
class Grants:
    """What the user allows a recipe file: `--allow-code`, `--allow-path` and `--allow-env`."""

    code: bool = False
    paths: tuple[Path, ...] = attrs.field(default=(), converter=_paths)
    env: frozenset[str] = attrs.field(default=frozenset(), converter=_names)

    def options(self) -> list[str]:
        """The options of the command line that grant this."""
        return [
            *(["--allow-code"] if self.code else []),
            *(f"--allow-path {shlex.quote(str(path))}" for path in self.paths),
            *(f"--allow-env {name}" for name in sorted(self.env)),
        ]


@attrs.frozen(kw_only=True)
class Access:
    """What one recipe file may reach: what is below the folder that it is in, and what the user grants."""

    folder: Path
    grants: Grants = Grants()

    def allows(self, path: Path) -> bool:
        """True if the recipe may read there; a symbolic link counts as what it leads to."""
        found = path.resolve()
        return any(found.is_relative_to(allowed.resolve()) for allowed in (self.folder, *self.grants.paths))

    def check_path(self, path: Path, where: str) -> None:
        """Raise `ConfigError` for a path that the recipe may not read, with the option that would allow it."""
        if self.allows(path):
            return
        found = path.resolve()
        folder = shlex.quote(str(found if found.is_dir() else found.parent))
        raise ConfigError(
            f"{where}: {str(found)!r} is outside of the recipe's folder {str(self.folder.resolve())!r}; "
            f"to allow it, pass --allow-path {folder}"
        )

    def check_protocol(self, protocol: str, where: str) -> None:
        """Raise `ConfigError` for a filesystem that might open local files."""
        if protocol not in REMOTE_PROTOCOLS:
            known = ", ".join(sorted(REMOTE_PROTOCOLS))
            raise ConfigError(f"{where}: a recipe file may not use the protocol {protocol!r}, only {known}")

    def model_problems(self, models: Mapping[str, Any], columns: Iterable[Any]) -> list[str]:
        """Header variables and weights of models that are not allowed, a sentence each."""
        declared = {getattr(each, "api_key_env", None) for each in (*models.values(), *columns)}
        problems: list[str] = []
        for alias, model in models.items():
            problems += [
                f"models.{alias}: headers send the environment variable {name}; to allow it, pass --allow-env {name}"
                for name in getattr(model, "header_env", ())
                if name not in self.grants.env and name not in declared
            ]
            for path in _call(model, "paths"):
                try:
                    self.check_path(Path(path), f"models.{alias}")
                except ConfigError as error:
                    problems.append(str(error))
        return problems

    def granting(self, paths: Iterable[Path]) -> Access:
        """The same with more paths, such as one that was given on the command line."""
        return attrs.evolve(self, grants=attrs.evolve(self.grants, paths=(*self.grants.paths, *paths)))


@attrs.frozen(kw_only=True)
class Contact:
    """A server that a recipe contacts, and the environment variables that are sent to it."""

    place: str
    url: str
    env: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.place}: {self.url}" + (f" (is sent {', '.join(self.env)})" if self.env else "")


def contacts(models: Mapping[str, Any], columns: Iterable[Any]) -> list[Contact]:
    """The URLs of models, remote validation and remote seeds."""
    named = [(f"models.{alias}", model) for alias, model in models.items()]
    named += [(f"columns.{column.name}", column) for column in columns]
    return [
        Contact(place=place, url=_shown(url), env=_sent(spec)) for place, spec in named for url in _call(spec, "urls")
    ]


def fixed_part(path: Path) -> Path:
    """What comes before the first wildcard of a pattern; the path itself if it has none."""
    parts = path.parts
    first = next((at for at, part in enumerate(parts) if _WILDCARD.search(part)), len(parts))
    return Path(*parts[:first])


def _call(spec: Any, method: str) -> tuple[str, ...]:
    """What a method of a spec gives; models of users need not have it."""
    found = getattr(spec, method, None)
    return tuple(found()) if callable(found) else ()


def _sent(spec: Any) -> tuple[str, ...]:
    key = getattr(spec, "api_key_env", None)
    return tuple(dict.fromkeys([*([key] if key else []), *getattr(spec, "header_env", ())]))


def _shown(url: str) -> str:
    """A URL without its password and its query, which may hold a signature: it ends up in logs."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="…" if parts.query else "", fragment="").geturl()
