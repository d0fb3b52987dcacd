"""Hostile dataset directories; all tests of them use this module.

Every attack changes a sound, unfinished dataset. `home` is a folder of the user's beside it; whatever reads or resumes
the dataset must leave it as it is.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import stat
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from hostile_pickles import OBJECT_POINTER

import seedbed as sb
from seedbed.store.entries import Finished, Key
from seedbed.store.files import PRIVATE
from seedbed.store.journal import Journal
from seedbed.store.log import frame, scan
from seedbed.store.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPE = """
name: harmless
columns:
  - {name: topic, type: category, values: [a, b]}
"""
# 503 bytes with a column `topic` of two rows, of which one byte was changed.
PANIC = Path(__file__).parent / "panic.parquet"
# 185 bytes with the same column, of which one byte, of a length, was changed: polars aborts the process.
ABORT = Path(__file__).parent / "abort.parquet"
SECRET = b"# the user's own file\n"

STAGED = ".seedbed/parts/.batch_0000000.parquet.0123456789ab.tmp"


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


def sound(place: Path, *, recipe_text: str = RECIPE) -> Hostile:
    """A dataset whose last row group and recipe file are missing, as a kill leaves it; nothing is wrong with it."""
    home, directory, recipe = place / "home", place / "data", place / "recipe.yaml"
    home.mkdir()
    (home / ".profile").write_bytes(SECRET)
    recipe.write_text(recipe_text)
    sb.build(sb.load_recipe(recipe), rows=4, out=directory, config=sb.RunConfig(buffer_size=2))
    found = Hostile(directory, home)
    change_records(found, lambda record: None if record["kind"] == "finished" or record.get("index") == 1 else record)
    (directory / PRIVATE / "recipe.yaml").unlink()
    return found


def change_records(found: Hostile, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change or remove records of the manifest; their checksums are right again afterwards."""
    path = found.directory / MANIFEST_NAME
    records = []
    for record in scan(path.read_bytes()).records:
        changed = change(json.loads(record.payload))
        if changed is not None:
            records.append(frame(record.kind, json.dumps(changed).encode()))
    path.write_bytes(b"".join(records))


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
    entry = Finished(column="topic", row=-1, attempt=1, salvage_round=0, value=([0, 1], [["a", "b"]]), origin=None)
    journal.commit({Key(group=1): [entry]})
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


# Names and links that reach for files outside. What writes must reject each.
LINKS: dict[str, Callable[[Hostile], None]] = {
    name: _link(name)
    for name in (
        ".seedbed/.recipe.yaml.tmp",
        ".seedbed/recipe.yaml",
        ".seedbed/.manifest.log.tmp",
        ".seedbed/lock",
        ".seedbed/journal-0000001.log",
        ".seedbed/journal-0000002.log",
        "batch_0000000.parquet",
        "batch_0000001.parquet",
        ".seedbed/parts/batch_0000000.part",
        ".seedbed/traces/run_0001.arrow",
        ".seedbed/images/x.png",
    )
} | {name: _link_folder(name) for name in (".seedbed/traces", ".seedbed/images")}


def _linked_manifest(found: Hostile) -> None:
    path = found.directory / MANIFEST_NAME
    path.rename(found.directory / PRIVATE / "other")
    path.symlink_to("other")


def _copy_out(found: Hostile, name: str) -> None:
    # The file of the part itself, so that its size and checksum are right.
    (found.directory / STAGED).write_bytes((found.directory / "batch_0000000.parquet").read_bytes())
    change_group(found, part_name=name, part_staged=STAGED)


# Records that no writer writes: each is a `ManifestError`.
MANIFESTS: dict[str, Callable[[Hostile], None]] = {
    "name above": lambda found: _copy_out(found, "../home/.profile"),
    "absolute name": lambda found: _copy_out(found, str(found.secret)),
    "name of another part": lambda found: _copy_out(found, "batch_0000001.parquet"),
    "name of the recipe": lambda found: _copy_out(found, ".seedbed/recipe.yaml"),
    "staged above": lambda found: change_group(found, part_staged="../home/.profile"),
    "staged with a newline": lambda found: change_group(found, part_staged=f"{STAGED}\n"),
    "staged elsewhere": lambda found: change_group(found, part_staged=".seedbed/recipe.yaml"),
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


def _journal_of(data: bytes) -> Callable[[Hostile], None]:
    """A journal that holds these bytes as a record, and as the entries of one."""

    def attack(found: Hostile) -> None:
        make_journal(found)
        commit = msgspec.msgpack.encode([9, [[1, 0, 0, 9, 1, data]], {"topic": data}])
        segment = found.directory / PRIVATE / "journal-0000002.log"
        segment.write_bytes(frame(1, data) + frame(1, commit) + frame(7, b"") + data)

    return attack


def _entry(*fields: Any) -> Callable[[Hostile], None]:
    return _journal_of(msgspec.msgpack.encode(([fields], [])))


# What is odd but not rejected: read as damaged, or not read at all.
ODD: dict[str, Callable[[Hostile], object]] = {
    "a part that is a pipe": lambda found: _pipe(found, "batch_0000000.parquet"),
    "a part that is not parquet": lambda found: change_group(found, part_checksum="0"),
    "a journal of nothing": _journal_of(b""),
    "a journal that is nested": _journal_of(b"\x91" * 100_000),
    "a journal of a pickle": _journal_of(OBJECT_POINTER),
    "a journal of a marked pickle": _journal_of(msgspec.msgpack.encode(([], [[0, OBJECT_POINTER]]))),
    "a journal of an unknown entry": _entry(99, "topic"),
    "a journal with a value that is none": _entry(1, "topic", -1, 1, 0, 5, None, None, None),
    "a journal with too many values": _entry(1, "topic", -1, 1, 0, [[0, 1], [["a"] * 9]], None, None, None),
    "a journal with other columns": _entry(1, "topic", -1, 1, 0, [[0, 1], [["a", "b"]] * 2], None, None, None),
    "a journal with rows beyond the end": _entry(1, "topic", -1, 1, 0, [[7, 8], [["a", "b"]]], None, None, None),
    "a journal with a row beyond the end": _entry(1, "topic", 9, 1, 0, "a", None, None, None),
    "a journal with columns of no length": _entry(1, "topic", -1, 1, 0, [5, 6], None, None, None),
    "a journal of failures": _entry(2, "topic", -1, 1 << 60, 1 << 60, "no", "dropped"),
    "a journal with other rows": _entry(4, {"topic": ["a"]}, [[5, 5]], [{"row": "x"}]),
    "a journal whose segment is a pipe": lambda found: _pipe(found, ".seedbed/journal-0000001.log"),
    "a manifest of holes": lambda found: _sparse(found, MANIFEST_NAME),
    "a segment of the journal of holes": lambda found: _sparse(found, ".seedbed/journal-0000003.log"),
    "a part of holes": lambda found: _sparse(found, "batch_0000000.parquet"),
    "a part without its columns": lambda found: _part(found, pl.DataFrame({"other": [1, 2]})),
    "a part with another type": lambda found: _part(found, pl.DataFrame({"topic": [1.5, 2.5]})),
    "a part on which polars panics": lambda found: replace_part(found, PANIC.read_bytes()),
    "a part on which polars aborts": lambda found: replace_part(found, ABORT.read_bytes()),
    "a part with more rows": lambda found: _part(found, pl.DataFrame({"topic": ["a"] * 1_000})),
    "a part that is nested": lambda found: _arrow_part(found, _nested_array(60)),
    "a part of an extension type": lambda found: _arrow_part(found, pa.array([b"0" * 16] * 2, pa.uuid())),
    "a part with dates beyond those of Python": lambda found: _arrow_part(
        found, pa.array([2**31 - 1] * 2, pa.date32())
    ),
    "a part of a dictionary": lambda found: _arrow_part(found, pa.array(["a", "b"]).dictionary_encode()),
    "a part that is a socket": lambda found: _socket(found, "batch_0000000.parquet"),
    "a part that is a folder": lambda found: _folder(found, "batch_0000000.parquet"),
    "a part that is a device": lambda found: _device(found, "batch_0000000.parquet"),
    "a part with as many rows as a manifest can say": lambda found: change_group(found, part_rows=2**62),
    "a recipe that is a pipe": lambda found: _pipe(found, ".seedbed/recipe.yaml"),
    "a journal of huge lengths": lambda found: _huge_lengths(found),  # noqa: PLW0108  defined below
    "a trace that is a pipe": lambda found: _trace_pipe(found),  # noqa: PLW0108
    "a trace of something else": lambda found: _trace(found, _ipc(pl.DataFrame({"a": [1]}))),
    "a trace that is none": lambda found: _trace(found, b"not arrow"),
    "a drop that is no drop": lambda found: change_group(found, drops=[{"row": "x"}]),
    "a schema that is none": lambda found: change_group(found, part_schema={"ipc": "AAAA"}),
    "a recipe without end": lambda found: _sparse(found, ".seedbed/recipe.yaml"),
    "a recipe that is no text": lambda found: (found.directory / PRIVATE / "recipe.yaml").write_bytes(b"columns: \xff"),
    "a recipe with half a surrogate pair": lambda found: change_header(found, recipe="name: \ud800"),
    "nesting": lambda found: change_group(found, skipped=_nested()),
}


def _ipc(frame: pl.DataFrame) -> bytes:
    content = io.BytesIO()
    frame.write_ipc(content)
    return content.getvalue()


def _part(found: Hostile, frame: pl.DataFrame) -> None:
    content = io.BytesIO()
    frame.write_parquet(content)
    replace_part(found, content.getvalue())


def replace_part(found: Hostile, data: bytes, *, name: str = "batch_0000000.parquet") -> None:
    """Put a part in place whose size and checksum are those that the manifest lists."""
    (found.directory / name).write_bytes(data)
    checksum = hashlib.blake2b(data, digest_size=32).hexdigest()
    change_group(found, part_size=len(data), part_checksum=checksum)


def _arrow_part(found: Hostile, values: pa.Array) -> None:
    content = io.BytesIO()
    pq.write_table(pa.table({"topic": values}), content)
    replace_part(found, content.getvalue())


def _nested_array(depth: int) -> pa.Array:
    array = pa.array([1, 2])
    for _ in range(depth):
        array = pa.StructArray.from_arrays([array], ["a"])
    return array


def _socket(found: Hostile, name: str) -> None:
    path = found.directory / name
    path.unlink()
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _folder(found: Hostile, name: str) -> None:
    (found.directory / name).unlink()
    (found.directory / name).mkdir()


def _device(found: Hostile, name: str) -> None:
    path = found.directory / name
    path.unlink()
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        path.mkdir()  # only root can make a device


def _huge_lengths(found: Hostile) -> None:
    """Frames whose header announces terabytes, with valid and invalid checksums, before valid frames."""
    make_journal(found)
    path = found.directory / PRIVATE / "journal-0000001.log"
    whole = path.read_bytes()
    forged = b""
    for length in (2**16, 2**31 - 1, 2**31, 2**32 - 1):
        fields = frame(1, b"")[:8] + struct.pack("<IBI", length, 1, 0)
        forged += fields + struct.pack("<I", zlib.crc32(fields)) + bytes(40)
        forged += fields + bytes(44)
    path.write_bytes(forged + whole + forged)


def _trace_pipe(found: Hostile) -> None:
    (found.directory / PRIVATE / "traces").mkdir()
    os.mkfifo(found.directory / PRIVATE / "traces" / "run_0001.arrow")


def _sparse(found: Hostile, name: str) -> None:
    (found.directory / name).touch()
    os.truncate(found.directory / name, 2**36)


def _nested() -> Any:
    value: Any = []
    for _ in range(500):
        value = [value]
    return value


def _trace(found: Hostile, data: bytes) -> None:
    (found.directory / PRIVATE / "traces").mkdir()
    (found.directory / PRIVATE / "traces" / "run_0001.arrow").write_bytes(data)
