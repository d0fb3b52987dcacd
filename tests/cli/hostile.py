"""Dataset directories as a stranger may hand them over: the one place of the tests that knows what is in them.

Every attack changes a sound, unfinished dataset. `home` is a folder of the user's beside it; whatever reads or resumes
the dataset must leave it as it is.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from contextlib import closing
from typing import TYPE_CHECKING, Any

import attrs

import seedbed as sb
from seedbed.store.journal import Batch, Journal
from seedbed.store.manifest import _SUM_KEY, MANIFEST_NAME, _checksum

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECIPE = """
name: harmless
columns:
  - {name: topic, type: category, values: [a, b]}
"""
SECRET = b"# the user's own file\n"


@attrs.frozen
class Hostile:
    """A dataset directory of a stranger, and a folder of the user's with one file."""

    directory: Path
    home: Path

    @property
    def secret(self) -> Path:
        """The file of the user's."""
        return self.home / ".profile"

    def check_untouched(self) -> None:
        """Nothing outside of the directory was written, removed or added."""
        assert [path.name for path in self.home.iterdir()] == [self.secret.name]
        assert self.secret.read_bytes() == SECRET


def sound(place: Path) -> Hostile:
    """A dataset whose last row group and recipe file are missing, as a kill leaves it; nothing is wrong with it."""
    home, directory, recipe = place / "home", place / "data", place / "recipe.yaml"
    home.mkdir()
    (home / ".profile").write_bytes(SECRET)
    recipe.write_text(RECIPE)
    sb.build(sb.load_recipe(recipe), rows=4, out=directory, config=sb.RunConfig(buffer_size=2))
    found = Hostile(directory, home)
    change_records(found, lambda record: None if record["kind"] == "finished" or record.get("index") == 1 else record)
    (directory / "recipe.yaml").unlink()
    return found


def change_records(found: Hostile, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change or remove records of the manifest; their checksums are right again afterwards."""
    path = found.directory / MANIFEST_NAME
    lines = []
    for line in path.read_bytes().splitlines():
        if line:
            plain = json.loads(line)
            del plain["sum"]
            changed = change(plain)
            if changed is not None:
                body = json.dumps(changed, separators=(",", ":")).encode()
                lines.append(body[:-1] + _SUM_KEY + _checksum(body) + b'"}\n\n')
    path.write_bytes(b"".join(lines))


def change_group(found: Hostile, **changes: Any) -> None:
    """Change fields of the record of the first row group; those that begin with `part_` are those of its part."""

    def change(record: dict[str, Any]) -> dict[str, Any]:
        if record["kind"] == "group":
            for name, value in changes.items():
                target = record["part"] if name.startswith("part_") else record
                target[name.removeprefix("part_")] = value
        return record

    change_records(found, change)


def change_header(found: Hostile, **changes: Any) -> None:
    """Change fields of the header."""
    change_records(found, lambda record: {**record, **changes} if record["kind"] == "header" else record)


def make_journal(found: Hostile) -> None:
    """Give it a journal, as a build that was killed has."""
    journal = Journal.create(found.directory)
    journal.commit(Batch(groups={1: [("value", "topic", 2, 0, "a")]}))
    journal.close()


def _link(name: str) -> Callable[[Hostile], None]:
    def attack(found: Hostile) -> None:
        path = found.directory / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(found.secret)

    return attack


def _link_folder(name: str) -> Callable[[Hostile], None]:
    return lambda found: (found.directory / name).symlink_to(found.home)


# Names and links that reach for files outside. Each must be refused by what writes.
LINKS: dict[str, Callable[[Hostile], None]] = {
    name: _link(name)
    for name in (
        ".recipe.yaml.tmp",
        "recipe.yaml",
        ".manifest.jsonl.tmp",
        "journal.mark",
        "journal.sqlite",
        "journal.sqlite-wal",
        "journal.sqlite-journal",
        "journal.salvaged",
        ".journal.sqlite.tmp",
        "batch_0000000.parquet",
        "batch_0000001.parquet",
        "processed.parquet",
        "traces/run_0001.arrow",
        "images/x.png",
    )
} | {name: _link_folder(name) for name in ("traces", "images")}


def _linked_manifest(found: Hostile) -> None:
    path = found.directory / MANIFEST_NAME
    path.rename(found.directory / "other")
    path.symlink_to("other")


def _copy_out(found: Hostile, name: str) -> None:
    # The file of the part itself, so that its size and checksum are right.
    (found.directory / ".batch_0000000.parquet.0123456789ab.tmp").write_bytes(
        (found.directory / "batch_0000000.parquet").read_bytes()
    )
    change_group(found, part_name=name, part_staged=".batch_0000000.parquet.0123456789ab.tmp")


# Records that no writer writes: each is a `ManifestError`.
MANIFESTS: dict[str, Callable[[Hostile], None]] = {
    "name above": lambda found: _copy_out(found, "../home/.profile"),
    "absolute name": lambda found: _copy_out(found, str(found.secret)),
    "name of another part": lambda found: _copy_out(found, "batch_0000001.parquet"),
    "name of the recipe": lambda found: _copy_out(found, "recipe.yaml"),
    "staged above": lambda found: change_group(found, part_staged="../home/.profile"),
    "staged with a newline": lambda found: change_group(found, part_staged=".batch_0000000.parquet.0123456789ab.tmp\n"),
    "staged elsewhere": lambda found: change_group(found, part_staged="recipe.yaml"),
    "rows of another group": lambda found: change_group(found, start=2, stop=4),
    "a group beyond the end": lambda found: change_group(found, index=7, part_name="batch_0000007.parquet"),
    "groups of no rows": lambda found: change_header(found, buffer_size=0),
    "segments out of order": lambda found: change_header(found, segments=[3, 1]),
    "rows that are text": lambda found: change_header(found, rows="many"),
    "a linked manifest": _linked_manifest,
    "no manifest but a pipe": lambda found: _pipe(found, MANIFEST_NAME),
}


def _pipe(found: Hostile, name: str) -> None:
    path = found.directory / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _foreign_journal(found: Hostile) -> None:
    make_journal(found)
    with closing(sqlite3.connect(found.directory / "journal.sqlite", isolation_level=None)) as database:
        database.execute("ALTER TABLE log RENAME TO other")
        database.execute(
            "CREATE VIEW log AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) "
            "SELECT id, 'entries' AS kind, 0 AS grp, 0 AS count, x'' AS sum, x'' AS data FROM n"
        )


# What is odd but not refused: read as damaged, or not read at all.
ODD: dict[str, Callable[[Hostile], None]] = {
    "a part that is a pipe": lambda found: _pipe(found, "batch_0000000.parquet"),
    "a part that is not parquet": lambda found: change_group(found, part_checksum="0"),
    "a journal with SQL of its own": _foreign_journal,
    "a trace that is none": lambda found: _trace(found, b"not arrow"),
    "a drop that is no drop": lambda found: change_group(found, drops=[{"row": "x"}]),
    "a schema that is none": lambda found: change_group(found, part_schema={"ipc": "AAAA"}),
    "nesting": lambda found: change_group(found, skipped=_nested()),
}


def _nested() -> Any:
    value: Any = []
    for _ in range(500):
        value = [value]
    return value


def _trace(found: Hostile, data: bytes) -> None:
    (found.directory / "traces").mkdir()
    (found.directory / "traces" / "run_0001.arrow").write_bytes(data)


def rollback_journal(found: Hostile) -> None:
    """Put a rollback journal beside the database that names the user's file as the super-journal."""
    name = str(found.secret).encode()
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(">5I", 0, 0, 1, 4096, 4096)
    end = struct.pack(">I", 0) + name + struct.pack(">2I", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
    (found.directory / "journal.sqlite-journal").write_bytes(header.ljust(4096, b"\0") + end)
