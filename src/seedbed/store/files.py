"""Files of a dataset directory, which is not trusted: no link in it is followed.

`create` creates every file that is written into a dataset directory, `rename` names a file that must be whole or
absent, and `open_file` opens every file that is read. A name is relative to the directory and
may have folders (`.seedbed/images/a/1.png`); each of them is opened relative to the one before, so that a link in place
of a folder is an error too. The directory itself may be a link.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
import sys
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ..errors import OutputDirectoryError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The folder of a dataset directory that holds everything but its rows.
PRIVATE = ".seedbed"
# The same folder of a dataset that is being removed.
REPLACED = ".seedbed.replaced.tmp"

# The folder of the stages that are not at the root of a dataset, each with the layout of a dataset.
STAGES = f"{PRIVATE}/stages"
_STAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)

_SUFFIX = ".tmp"
# How many links an error names.
_NAMED_LINKS = 5
# A file beyond this size occupies at least its size divided by the ratio, also on file systems that compress.
_SMALL = 16 << 20
_MAX_RATIO = 64
# Windows has neither; there a pipe cannot be in a directory, and a link needs a privilege.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_BLOCK = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def stage_folder(name: str) -> str:
    """The folder of a stage that is not at the root."""
    return f"{STAGES}/{name}"


def is_stage_name(name: str) -> bool:
    """True for the name of a stage: a folder on any system, and a name in templates."""
    return _STAGE_NAME.fullmatch(name) is not None


def temporary_name(name: str) -> str:
    """Return a new name in the same folder for a file that is renamed to `name` when it is whole."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}.{last}.{uuid.uuid4().hex[:12]}{_SUFFIX}"


def is_temporary(path: Path) -> bool:
    """True if a file is one that a writer left behind when it died."""
    return path.name.startswith(".") and path.name.endswith(_SUFFIX)


def create(directory: Path, name: str, *, replace: bool = True) -> io.FileIO:
    """Create a file, and the folders of its name, for writing and reading.

    A file or link of that name is removed first; without `replace` it is a `FileExistsError`.
    """
    with _opened_folder(directory, name, make=True) as (folder, last):
        if replace:
            with suppress(FileNotFoundError):
                os.unlink(last, dir_fd=folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _BINARY
        return io.FileIO(os.open(last, flags, 0o666, dir_fd=folder), "r+")


def write_file(directory: Path, name: str, data: bytes) -> None:
    """Write a file atomically: all of it is on disk under its name, or nothing is."""
    temporary = temporary_name(name)
    try:
        with io.BufferedWriter(create(directory, temporary)) as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())
        rename(directory, temporary, name)
    except BaseException:
        with suppress(OSError):
            remove(directory, temporary)
        raise
    sync_directory((directory / name).parent)


def rename(directory: Path, old: str, new: str) -> None:
    """Rename a file, within a folder or to another one, replacing what has that name."""
    with _opened_folder(directory, old) as (folder, last), _opened_folder(directory, new) as (target, name):
        os.replace(last, name, src_dir_fd=folder, dst_dir_fd=target)


def copy(directory: Path, old: str, new: str) -> None:
    """Give a file that never changes a second name, or copy it where the file system cannot, and wait for the disk."""
    try:
        with _opened_folder(directory, old) as (folder, last), _opened_folder(directory, new, make=True) as target:
            os.link(last, target[1], src_dir_fd=folder, dst_dir_fd=target[0], follow_symlinks=False)
    except (OSError, NotImplementedError):
        with open_file(directory, old) as source, io.BufferedWriter(create(directory, new)) as file:
            shutil.copyfileobj(source, file)
            file.flush()
            sync_file(file.fileno())
    sync_directory((directory / new).parent)


def remove(directory: Path, name: str) -> None:
    """Remove a file, or a link and not its target; a missing one is no error."""
    with suppress(FileNotFoundError), _opened_folder(directory, name) as (folder, last):
        os.unlink(last, dir_fd=folder)


def open_file(directory: Path, name: str, *, writable: bool = False) -> io.FileIO:
    """Open an existing file; `OSError` for a link or anything else that is not a regular file.

    So is a file that consists of holes, since a few bytes of an archive can become terabytes to read, and writing to a
    file with other hard links, which would change those too.
    """
    with _opened_folder(directory, name) as (folder, last):
        # Without blocking: opening a pipe would wait for ever.
        flags = (os.O_RDWR if writable else os.O_RDONLY) | _NO_FOLLOW | _NO_BLOCK | _BINARY
        try:
            descriptor = os.open(last, flags, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", name) from None
    problem = _problem(os.fstat(descriptor), writable=writable)
    if problem is not None:
        os.close(descriptor)
        raise OSError(errno.EINVAL, problem, name)
    return io.FileIO(descriptor, "r+" if writable else "r")


def _problem(found: os.stat_result, *, writable: bool) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if writable and found.st_nlink > 1:
        return "it has other hard links, which would be changed too; replace it by a copy"
    blocks = getattr(found, "st_blocks", None)  # Windows does not report them
    if blocks is not None and found.st_size > _SMALL and blocks * 512 * _MAX_RATIO < found.st_size:
        return f"it has {found.st_size:,} bytes, nearly all of them holes"
    return None


def read_file(directory: Path, name: str, *, limit: int = -1) -> bytes:
    """Return the content of a file, at most `limit` bytes of it; errors are those of `open_file`."""
    with io.BufferedReader(open_file(directory, name)) as file:
        return file.read(limit)


def exists(directory: Path, name: str) -> bool:
    """True if there is something of that name, whatever it is."""
    return os.path.lexists(directory / name)


def check_links(directory: Path) -> None:
    """Raise `OutputDirectoryError` that names the links in a directory, if it holds any, however deep."""
    found: list[str] = []
    folders = [os.fspath(directory)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    found.append(os.path.relpath(entry.path, directory))
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    if found:
        found.sort()
        names = ", ".join(map(repr, found[:_NAMED_LINKS]))
        more = f" and {len(found) - _NAMED_LINKS} more" if len(found) > _NAMED_LINKS else ""
        raise OutputDirectoryError(
            f"the dataset directory {str(directory)!r} holds symbolic links, so nothing is written there: "
            f"{names}{more}; remove them, or replace each by a copy of its file"
        )


def sync_file(descriptor: int) -> None:
    """Wait until what was written to a file is on disk."""
    if sys.platform == "darwin":
        # There fsync leaves the data in the cache of the drive. Some file systems have nothing better.
        import fcntl  # noqa: PLC0415 - not there on Windows

        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk; on Windows a directory cannot be opened for that."""
    if sys.platform == "win32":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _opened_folder(directory: Path, name: str, *, make: bool = False) -> Iterator[tuple[int | None, str]]:
    """Yield a descriptor of the folder that a file is in, and the file's name in it; on Windows none, and its path."""
    *folders, last = name.split("/")
    if sys.platform == "win32":
        if make:
            directory.joinpath(*folders).mkdir(parents=True, exist_ok=True)
        yield None, os.fspath(directory / name)
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(folder, dir_fd=descriptor)
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, last
    finally:
        os.close(descriptor)
