"""Registries: which keys, params and endpoints there are. Read from TOML or JSON and checked as a whole."""

from __future__ import annotations

import functools
import importlib.resources
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from ..errors import ConfigError
from .documents import read_document
from .model import Endpoint, EndpointPolicy, Key, KeyType, Param, Registries
from .problems import Code, Problems, shown

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from .documents import Source

ID_KEY = 1  # the key that every row has
_ID = Key(id=ID_KEY, name="id", type=KeyType.INT, writable=False)
_COUNTRY = Key(id=3001, name="country", type=KeyType.STRING, nullable=True)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDPOINT_ID = re.compile(r"ep_[A-Za-z0-9_]+")
_TYPES = [each.value for each in KeyType]
_KINDS = ["redis", "http"]
_DEFAULT_PORTS = {"redis": 6379, "http": 80}
_MAX_PORT = 65_535
# A day: no timeout of a request is longer, and a typo of some digits is found.
_MAX_TIMEOUT_MS = 86_400_000

Entry = TypeVar("Entry", Key, Param, Endpoint)


@functools.cache
def default_registries() -> Registries:
    """The registries that are embedded in the package."""
    text = importlib.resources.files(__package__).joinpath("default_registries.toml").read_text(encoding="utf-8")
    return parse_registries(tomllib.loads(text))


def load_registries(path: str | os.PathLike[str]) -> Registries:
    """Read a file: TOML if its name ends so, else JSON. A relative `seed_file` is looked for beside it."""
    path = Path(path)
    registries = parse_registries(path)
    endpoints = {
        each.id: each if each.seed_file is None else attrs.evolve(each, seed_file=str(path.parent / each.seed_file))
        for each in registries.endpoints.values()
    }
    return attrs.evolve(registries, endpoints=endpoints)


def parse_registries(data: Source) -> Registries:
    """Check registries, or raise one `ConfigError` with everything that is wrong with them."""
    problems = Problems()
    document = read_document(data, problems)
    registries = None if problems.found else _registries(document, problems)
    if registries is None or problems.found:
        raise ConfigError(problems.listing("the registries are"))
    return registries


def _registries(document: object, problems: Problems) -> Registries | None:
    fields = problems.fields(document, "$", required=["keys"], optional=["params", "endpoints"])
    if fields is None:
        return None
    keys = _entries(fields.get("keys", []), "$.keys", _key, problems)
    params = _entries(fields.get("params", []), "$.params", _param, problems)
    endpoints = _entries(fields.get("endpoints", []), "$.endpoints", _endpoint, problems)
    if not problems.found:
        _check_own_keys(keys, problems)
    return Registries(
        keys={key.id: key for key in keys},
        params={param.id: param for param in params},
        endpoints={endpoint.id: endpoint for endpoint in endpoints},
    )


def _check_own_keys(keys: list[Key], problems: Problems) -> None:
    """The ops of the format make ids and countries, so these two keys cannot be something else."""
    ids = {key.id: index for index, key in enumerate(keys)}
    if ID_KEY not in ids:
        problems.add(Code.MISSING_FIELD, "$.keys", f"the key {ID_KEY}, 'id', is required: every row has it")
    for expected in (_ID, _COUNTRY):
        index = ids.get(expected.id)
        if index is not None and keys[index] != expected:
            message = (
                f"expected the key {expected.id} to be {expected.name!r}: type {expected.type.value!r}, nullable "
                f"{shown(expected.nullable)}, writable {shown(expected.writable)}, without a default"
            )
            problems.add(Code.INVALID_VALUE, f"$.keys[{index}]", message)


def _entries(
    value: object, path: str, read: Callable[[object, str, Problems], Entry | None], problems: Problems
) -> list[Entry]:
    """Read every entry; ids and names are each there once."""
    entries: list[Entry] = []
    ids: dict[object, str] = {}
    names: dict[object, str] = {}
    for index, item in enumerate(problems.items(value, path) or []):
        at = f"{path}[{index}]"
        entry = read(item, at, problems)
        if entry is None:
            continue
        # EP.redis.x and EP.http.x are two endpoints.
        name = (entry.kind, entry.name) if isinstance(entry, Endpoint) else entry.name
        if entry.id in ids:
            problems.add(Code.DUPLICATE_ID, f"{at}.id", f"the id {shown(entry.id)} is that of {ids[entry.id]} already")
        if name in names:
            message = f"the name {entry.name!r} is that of {names[name]} already"
            problems.add(Code.DUPLICATE_NAME, f"{at}.name", message)
        ids.setdefault(entry.id, at)
        names.setdefault(name, at)
        entries.append(entry)
    return entries


def _key(value: object, path: str, problems: Problems) -> Key | None:
    before = len(problems.found)
    fields = problems.fields(value, path, required=["id", "name", "type"], optional=["nullable", "default", "writable"])
    if fields is None:
        return None
    key_id, name, key_type = _head(fields, path, problems)
    nullable = _flag(fields, "nullable", path, problems, default=False)
    writable = _flag(fields, "writable", path, problems, default=True)
    default = _default(fields, key_type, path, problems)
    # What an op does not write has to be made up for rows that lack it; only ids never are.
    if not nullable and "default" not in fields and key_id != ID_KEY and key_type is not None:
        message = "a key that is not nullable needs a default, which rows without a value get"
        problems.add(Code.MISSING_FIELD, f"{path}.default", message)
    if nullable and default is not None:
        problems.add(Code.INVALID_VALUE, f"{path}.default", "a nullable key is null where nothing wrote it; no default")
    if len(problems.found) > before or key_id is None or name is None or key_type is None:
        return None
    return Key(id=key_id, name=name, type=key_type, nullable=nullable, default=default, writable=writable)


def _default(
    fields: dict[str, Any], key_type: KeyType | None, path: str, problems: Problems
) -> int | float | str | None:
    if "default" not in fields or key_type is None:
        return None
    value, at = fields["default"], f"{path}.default"
    if key_type is KeyType.STRING:
        return problems.text(value, at)
    if key_type is KeyType.INT:
        return problems.integer(value, at)
    number = problems.number(value, at)
    return None if number is None else float(number)


def _param(value: object, path: str, problems: Problems) -> Param | None:
    before = len(problems.found)
    fields = problems.fields(value, path, required=["id", "name", "type"], optional=["nullable"])
    if fields is None:
        return None
    param_id, name, param_type = _head(fields, path, problems)
    nullable = _flag(fields, "nullable", path, problems, default=False)
    if len(problems.found) > before or param_id is None or name is None or param_type is None:
        return None
    return Param(id=param_id, name=name, type=param_type, nullable=nullable)


def _endpoint(value: object, path: str, problems: Problems) -> Endpoint | None:
    before = len(problems.found)
    fields = problems.fields(
        value, path, required=["id", "name", "kind", "host"], optional=["port", "policy", "seed_file"]
    )
    if fields is None:
        return None
    endpoint_id = _matching(fields, "id", _ENDPOINT_ID, path, problems)
    name = _matching(fields, "name", _NAME, path, problems)
    kind = problems.choice(fields["kind"], f"{path}.kind", _KINDS) if "kind" in fields else None
    host = problems.text(fields["host"], f"{path}.host") if "host" in fields else None
    if host is not None and not host.strip():
        problems.add(Code.INVALID_VALUE, f"{path}.host", "expected a host name or address, found an empty string")
    port = problems.integer(fields["port"], f"{path}.port", low=1, high=_MAX_PORT) if "port" in fields else None
    policy = _policy(fields["policy"], f"{path}.policy", problems) if "policy" in fields else EndpointPolicy()
    seed_file = problems.text(fields["seed_file"], f"{path}.seed_file") if "seed_file" in fields else None
    if seed_file is not None and host is not None and host != "memory":
        problems.add(Code.INVALID_VALUE, f"{path}.seed_file", f"only host 'memory' has a seed file, not {shown(host)}")
    if host == "memory" and kind == "http":
        problems.add(Code.INVALID_VALUE, f"{path}.host", "host 'memory' is of kind 'redis', found 'http'")
    if len(problems.found) > before or endpoint_id is None or name is None or kind is None or host is None:
        return None
    return Endpoint(
        id=endpoint_id,
        name=name,
        kind=kind,
        host=host,
        port=_DEFAULT_PORTS[kind] if port is None else port,
        policy=policy,
        seed_file=seed_file,
    )


def _policy(value: object, path: str, problems: Problems) -> EndpointPolicy:
    bounds = {"max_inflight": 1_000_000, "connect_timeout_ms": _MAX_TIMEOUT_MS, "request_timeout_ms": _MAX_TIMEOUT_MS}
    fields = problems.fields(value, path, optional=list(bounds)) or {}
    given = {
        name: problems.integer(fields[name], f"{path}.{name}", low=1, high=high)
        for name, high in bounds.items()
        if name in fields
    }
    return EndpointPolicy(**{name: number for name, number in given.items() if number is not None})


def _head(fields: dict[str, Any], path: str, problems: Problems) -> tuple[int | None, str | None, KeyType | None]:
    """What keys and params have in common."""
    number = problems.integer(fields["id"], f"{path}.id", low=1, high=2**32 - 1) if "id" in fields else None
    name = _matching(fields, "name", _NAME, path, problems)
    type_name = problems.choice(fields["type"], f"{path}.type", _TYPES) if "type" in fields else None
    return number, name, None if type_name is None else KeyType(type_name)


def _matching(
    fields: dict[str, Any], field: str, pattern: re.Pattern[str], path: str, problems: Problems
) -> str | None:
    if field not in fields:
        return None
    text = problems.text(fields[field], f"{path}.{field}")
    if text is not None and not pattern.fullmatch(text):
        problems.add(
            Code.INVALID_VALUE, f"{path}.{field}", f"expected text like {pattern.pattern}, found {shown(text)}"
        )
        return None
    return text


def _flag(fields: dict[str, Any], field: str, path: str, problems: Problems, *, default: bool) -> bool:
    if field not in fields:
        return default
    return bool(problems.boolean(fields[field], f"{path}.{field}"))
