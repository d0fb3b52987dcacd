"""Entries of the journal as bytes and back, with every value and its type exactly as it was.

The bytes are pickles, since no other format keeps lone surrogates, nan, -0.0, tuples, dates and huge integers apart. A
pickle that someone else wrote could run code, so only names of an allow-list are looked up. An entry that holds
anything else is left out (its cell is made again), unless the caller trusts the directory as much as its own code.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from zoneinfo import ZoneInfo

from .. import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

Entry: TypeAlias = tuple[Any, ...]

_PROTOCOL = 5

_ALLOWED: frozenset[tuple[str, str]] = frozenset(
    (module, name)
    for module, names in {
        "builtins": "bool bytearray bytes complex dict float frozenset int list range set slice str tuple",
        "collections": "Counter OrderedDict defaultdict deque",
        "datetime": "date datetime time timedelta timezone",
        "decimal": "Decimal",
        "fractions": "Fraction",
        "ipaddress": "IPv4Address IPv4Network IPv6Address IPv6Network",
        "pathlib": "PosixPath PurePosixPath PureWindowsPath WindowsPath",
        "uuid": "UUID",
        "zoneinfo": "ZoneInfo",
        "numpy": "dtype ndarray",
        "numpy.core.multiarray": "_reconstruct scalar",
        "numpy.core.numeric": "_frombuffer",
        "numpy._core.multiarray": "_reconstruct scalar",
        "numpy._core.numeric": "_frombuffer",
        "polars.series.series": "Series",
        "seedbed.models.base": "ChatAnswer EmbeddingAnswer Image ImageAnswer Tokens",
        "polars.dataframe.frame": "DataFrame",
        errors.__name__: " ".join(
            name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.CellError)
        ),
    }.items()
    for name in names.split()
)
# Modules that some Pythons name in pickles and others do not have; a journal may be read by another than wrote it.
_PUBLIC = {"pathlib._local": "pathlib"}  # 3.13


def encode(entries: Sequence[Entry]) -> tuple[bytes, list[int]]:
    """Return the entries as bytes, and the positions of those that cannot be kept because they cannot be pickled."""
    if not entries:
        return b"", []
    file = io.BytesIO()
    plain = _Pickler(file)
    try:
        plain.dump(list(entries))
    except Exception:  # noqa: BLE001 - a user's object may raise anything when it is looked at
        plain.plain = False
    if plain.plain:
        return file.getvalue(), []
    # Each by itself, so that one that cannot be kept, or cannot be read later, costs no other.
    file = io.BytesIO()
    unkept = []
    for position, entry in enumerate(entries):
        start = file.tell()
        try:
            pickle.Pickler(file, _PROTOCOL).dump([entry])
        except Exception:  # noqa: BLE001
            unkept.append(position)
            file.seek(start)
            file.truncate()
    return file.getvalue(), unkept


def decode(data: bytes, *, trusted: bool) -> list[Entry]:
    """Return the entries that can be read; those with values of unknown types are left out unless `trusted`."""
    file = io.BytesIO(data)
    entries: list[Entry] = []
    while file.tell() < len(data):
        start = file.tell()
        reader = _Unpickler(file, trusted=trusted)
        try:
            found = reader.load()
        except Exception:  # noqa: BLE001 - whatever a constructor raises when its class has changed
            file.seek(start)
            _skip(file)
            continue
        if not reader.unknown:
            entries += found
    return entries


def _skip(file: io.BytesIO) -> None:
    """Pass over one pickle without making anything of it."""
    for _ in pickletools.genops(file):
        pass


class _Pickler(pickle.Pickler):
    """Notices values of types that pickle does not know by itself."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, _PROTOCOL)
        self.plain = True

    def reducer_override(self, _value: object) -> Any:
        self.plain = False
        return NotImplemented


class _Unknown:
    """Stands for any class or function that is not looked up; made, called and filled like one, it does nothing."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        return object.__new__(cls)

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        pass

    def __setstate__(self, _state: object) -> None:
        pass

    def __setitem__(self, _key: object, _value: object) -> None:
        pass

    def append(self, _value: object) -> None:
        pass

    def extend(self, _values: object) -> None:
        pass

    def add(self, _value: object) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, *, trusted: bool) -> None:
        super().__init__(file)
        self._trusted = trusted
        self.unknown = False

    def find_class(self, module_name: str, global_name: str) -> Any:
        module_name = _PUBLIC.get(module_name, module_name)
        if self._trusted or (module_name, global_name) in _ALLOWED:
            return super().find_class(module_name, global_name)
        if (module_name, global_name) == ("builtins", "getattr"):
            return self._attribute
        self.unknown = True
        return _Unknown

    def _attribute(self, owner: object, name: str) -> Any:
        # How a time zone is pickled; any other attribute could be anything.
        if owner is ZoneInfo and name == "_unpickle":
            return ZoneInfo._unpickle  # type: ignore[attr-defined]  # noqa: SLF001
        self.unknown = True
        return _Unknown
