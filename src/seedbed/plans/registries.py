"""Registries: the keys, params and endpoints that plans may refer to, read from TOML or JSON."""

from __future__ import annotations

import enum
import functools
import importlib.resources
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from ..errors import ConfigError
from .documents import Code, Problems, Value, read_document, shown
from .endpoint import NAME, Endpoint, read_endpoint

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from .documents import Source

    ParamValue = int | float | str | None

ID: Final = 1  # the key that every row has
COUNTRY: Final = 3001


class KeyType(enum.StrEnum):
    """What a column of a row set holds."""

    INT = "int"
    FLOAT = "float"
    STRING = "string"

    def read(self, value: Value) -> ParamValue:
        """A value of this type; an integer counts as a float."""
        if self is KeyType.STRING:
            return value.text()
        if self is KeyType.INT:
            return value.integer()
        number = value.number()
        return None if number is None else float(number)


@attrs.frozen(kw_only=True)
class Key:
    """A column that row sets may have. Reading one that no op wrote gives `default`, or null if it is nullable."""

    id: int
    name: str
    type: KeyType
    nullable: bool = False
    default: Any = None
    writable: bool = True


_OWN_KEYS: Final = {
    ID: Key(id=ID, name="id", type=KeyType.INT, writable=False),
    COUNTRY: Key(id=COUNTRY, name="country", type=KeyType.STRING, nullable=True),
}


@attrs.frozen(kw_only=True)
class Param:
    """A value that a request may override."""

    id: int
    name: str
    type: KeyType
    nullable: bool = False


@attrs.frozen
class Named:
    """An entry by its kind and name, as plans in Python refer to it; the kind is key, param or that of an endpoint."""

    kind: str
    name: str


@attrs.frozen(kw_only=True)
class Registries:
    """All keys, params and endpoints; the methods look up the one that a value of a document refers to."""

    keys: Mapping[int, Key]
    params: Mapping[int, Param]
    endpoints: Mapping[str, Endpoint]

    def key(self, value: Value) -> Key | None:
        return _by_id(value, self.keys, Code.UNKNOWN_KEY, "key")

    def param(self, value: Value) -> Param | None:
        return _by_id(value, self.params, Code.UNKNOWN_PARAM, "param")

    def endpoint(self, value: Value) -> Endpoint | None:
        if isinstance(value.raw, Named):
            kind = value.raw.kind
            of_kind = [each for each in self.endpoints.values() if each.kind == kind]
            return _by_name(value, of_kind, Code.UNKNOWN_ENDPOINT, f"{kind} endpoint")
        name = value.reference(self.endpoints, Code.UNKNOWN_ENDPOINT, "no endpoint has the id")
        return None if name is None else self.endpoints[name]


Entry = TypeVar("Entry", Key, Param, Endpoint)
Numbered = TypeVar("Numbered", Key, Param)


def _by_id(value: Value, entries: Mapping[int, Numbered], code: Code, what: str) -> Numbered | None:
    if isinstance(value.raw, Named) and value.raw.kind == what:
        return _by_name(value, entries.values(), code, what)
    number = value.integer()
    if number is not None and number not in entries:
        known = ", ".join(f"{each.id} {each.name}" for each in list(entries.values())[:20])
        value.problem(code, f"no {what} has the id {number} (known: {known})")
    return None if number is None else entries.get(number)


def _by_name(value: Value, entries: Iterable[Entry], code: Code, what: str) -> Entry | None:
    known = {each.name: each for each in entries}
    name = Value(value.raw.name, value.path, value.problems).reference(known, code, f"no {what} is named")
    return None if name is None else known[name]


@functools.cache
def default_registries() -> Registries:
    """The registries that are embedded in the package."""
    text = importlib.resources.files(__package__).joinpath("default_registries.toml").read_text(encoding="utf-8")
    return parse_registries(tomllib.loads(text))


def load_registries(path: str | os.PathLike[str]) -> Registries:
    """Read a file: TOML if its name ends so, else JSON. Relative files of endpoints are resolved against its folder."""
    path = Path(path)
    registries = parse_registries(path)
    endpoints = {each.id: each.with_files_in(path.parent) for each in registries.endpoints.values()}
    return attrs.evolve(registries, endpoints=endpoints)


def parse_registries(data: Source) -> Registries:
    """Check registries, or raise one `ConfigError` with everything that is wrong with them."""
    problems = Problems()
    fields = read_document(data, problems).fields("keys", optional=["params", "endpoints"])
    keys = _entries(fields["keys"], _key)
    params = _entries(fields["params"], _param)
    endpoints = _entries(fields["endpoints"], read_endpoint)
    if not problems.found:
        _check_own_keys(keys, fields["keys"])
    if problems.found:
        raise ConfigError(problems.listing("the registries are"))
    return Registries(
        keys={key.id: key for key in keys},
        params={param.id: param for param in params},
        endpoints={endpoint.id: endpoint for endpoint in endpoints},
    )


def _check_own_keys(keys: list[Key], where: Value) -> None:
    """The ops of the format write ids and countries, so these two keys cannot be something else."""
    if all(key.id != ID for key in keys):
        where.problem(Code.MISSING_FIELD, f"the key {ID}, 'id', is required: every row has it")
    for position, key in enumerate(keys):
        expected = _OWN_KEYS.get(key.id, key)
        if key != expected:
            message = (
                f"expected the key {expected.id} to be {expected.name!r}: type {expected.type.value!r}, nullable "
                f"{shown(expected.nullable)}, writable {shown(expected.writable)}, without a default"
            )
            where.problems.add(Code.INVALID_VALUE, f"{where.path}[{position}]", message)


def _entries(value: Value, read: Callable[[Value], Entry]) -> list[Entry]:
    """Read every entry and leave out those with problems; ids and names are unique."""
    entries: list[Entry] = []
    first: dict[object, str] = {}  # the path of the entry that has an id or a name
    for item in value.items() or []:
        before = len(item.problems.found)
        entry = read(item)
        if len(item.problems.found) > before:
            continue
        # EP.redis.x and EP.http.x are two endpoints.
        name = (entry.kind, entry.name) if isinstance(entry, Endpoint) else (None, entry.name)
        if entry.id in first:
            message = f"duplicate id {shown(entry.id)}, which {first[entry.id]} has"
            item.problem(Code.DUPLICATE_ID, message, field="id")
        if name in first:
            item.problem(Code.DUPLICATE_NAME, f"duplicate name {entry.name!r}, which {first[name]} has", field="name")
        first.setdefault(entry.id, item.path)
        first.setdefault(name, item.path)
        entries.append(entry)
    return entries


# What these three return is left out by `_entries` where they have added a problem, so it may be anything then.


def _key(value: Value) -> Key:
    fields = value.fields("id", "name", "type", optional=["nullable", "default", "writable"])
    key_id, name, key_type = _head(fields)
    nullable = bool(fields["nullable"].boolean())
    default = None if key_type is None else key_type.read(fields["default"])
    # Rows that lack a value get the default; only ids are never missing.
    if not nullable and not fields["default"] and key_id != ID and key_type is not None:
        message = "a key that is not nullable needs a default, which rows without a value get"
        value.problem(Code.MISSING_FIELD, message, field="default")
    if nullable and default is not None:
        message = "a nullable key is null where no op wrote it; it has no default"
        fields["default"].problem(Code.INVALID_VALUE, message)
    return Key(
        id=key_id,
        name=name,
        type=key_type or KeyType.INT,
        nullable=nullable,
        default=default,
        writable=not fields["writable"] or bool(fields["writable"].boolean()),
    )


def _param(value: Value) -> Param:
    fields = value.fields("id", "name", "type", optional=["nullable"])
    param_id, name, param_type = _head(fields)
    return Param(id=param_id, name=name, type=param_type or KeyType.INT, nullable=bool(fields["nullable"].boolean()))


def _head(fields: Mapping[str, Value]) -> tuple[int, str, KeyType | None]:
    """The fields that keys and params have in common."""
    number, name = fields["id"].integer(1, 2**32 - 1), fields["name"].text(like=NAME)
    type_name = fields["type"].choice([each.value for each in KeyType])
    return number or 0, name or "", None if type_name is None else KeyType(type_name)
