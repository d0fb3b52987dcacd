"""Endpoints: the servers that ops may read from, as registries describe them. Secrets stay in the environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

from .documents import Code, shown

if TYPE_CHECKING:
    from pathlib import Path

    from .documents import Value

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ID = re.compile(r"ep_[A-Za-z0-9_]+")
_DEFAULT_PORTS = {"redis": 6379, "http": 80}
# A day: no timeout of a request is longer, and a typo of some digits is found.
_MAX_MS = 86_400_000


@attrs.frozen(kw_only=True)
class EndpointPolicy:
    """How an endpoint may be used; `max_inflight` and the timeouts are those of each connection."""

    max_inflight: int = 64
    connect_timeout_ms: int = 50
    request_timeout_ms: int = 20
    connections: int = 1  # at most, to each server
    # Exponential, with jitter: before the next attempt to connect, and before a read is sent again.
    connect_backoff_ms: int = 10
    connect_backoff_max_ms: int = 1_000
    read_attempts: int = 1
    read_backoff_ms: int = 5
    read_backoff_max_ms: int = 100


_POLICY_BOUNDS: Final = {
    **dict.fromkeys((field.name for field in attrs.fields(EndpointPolicy)), _MAX_MS),
    "max_inflight": 1_000_000,
    "connections": 64,
    "read_attempts": 100,
}


@attrs.frozen(kw_only=True)
class Tls:
    """TLS of an endpoint (`rediss`): the server's certificate is always checked, against the system's CAs or a file."""

    ca_file: str | None = None
    cert_file: str | None = None  # of the client
    key_file: str | None = None
    server_name: str | None = None  # that the certificate must have; by default the host


@attrs.frozen(kw_only=True)
class Endpoint:
    """Servers that ops may read from; host `memory` is the embedded one, seeded from `seed_file` if given.

    `shards` (keys are distributed by ketama) and `cluster` (some of its nodes) are addresses in place of `host` and
    `port`, which are those of the first then. `password_env` is the name of an environment variable.
    """

    id: str
    name: str
    kind: str
    host: str
    port: int = 6379
    shards: tuple[tuple[str, int], ...] = ()
    cluster: tuple[tuple[str, int], ...] = ()
    username: str | None = None
    password_env: str | None = None
    database: int = 0
    tls: Tls | None = None
    policy: EndpointPolicy = EndpointPolicy()
    seed_file: str | None = None

    def with_files_in(self, folder: Path) -> Endpoint:
        """The same endpoint with its relative files resolved against a folder."""

        def resolved(file: str | None) -> str | None:
            return None if file is None else str(folder / file)

        tls = self.tls
        if tls is not None:
            tls = attrs.evolve(
                tls,
                ca_file=resolved(tls.ca_file),
                cert_file=resolved(tls.cert_file),
                key_file=resolved(tls.key_file),
            )
        return attrs.evolve(self, seed_file=resolved(self.seed_file), tls=tls)


_REDIS_ONLY: Final = ("shards", "cluster", "username", "password_env", "database", "tls")
_OPTIONAL: Final = ("host", "port", *_REDIS_ONLY, "policy", "seed_file")


def read_endpoint(value: Value) -> Endpoint:
    """An endpoint of a document; what could not be read of it is empty, and has a problem."""
    fields = value.fields("id", "name", "kind", optional=_OPTIONAL)
    endpoint_id, name = fields["id"].text(like=_ID), fields["name"].text(like=NAME)
    kind = fields["kind"].choice(list(_DEFAULT_PORTS))
    host, port = _host(fields["host"]), fields["port"].integer(1, 65_535)
    lists = {each: _addresses(fields[each]) for each in ("shards", "cluster")}
    given = [each for each in ("host", "shards", "cluster") if fields[each]]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        value.problem(Code.INVALID_VALUE, f"expected one of 'host', 'shards' and 'cluster', found {found}")
    elif fields["port"] and not fields["host"]:
        fields["port"].problem(
            Code.INVALID_VALUE, f"the addresses of {given[0]!r} have ports; 'port' belongs to 'host'"
        )
    first = next(((*each,) for each in lists.values() if each), None)
    username, password_env = fields["username"].text(), fields["password_env"].text(like=NAME)
    if username is not None and not fields["password_env"]:
        fields["username"].problem(Code.MISSING_FIELD, "a user needs a password: name its variable in 'password_env'")
    database, seed_file = fields["database"].integer(0, 2**31 - 1), fields["seed_file"].text()
    if database and lists["cluster"]:
        fields["database"].problem(Code.INVALID_VALUE, "a cluster has only database 0")
    endpoint = Endpoint(
        id=endpoint_id or "",
        name=name or "",
        kind=kind or "",
        host=first[0][0] if first else host or "",
        port=first[0][1] if first else port or _DEFAULT_PORTS.get(kind or "", 0),
        shards=lists["shards"],
        cluster=lists["cluster"],
        username=username,
        password_env=password_env,
        database=database or 0,
        tls=_tls(fields["tls"]),
        policy=_policy(fields["policy"]),
        seed_file=seed_file,
    )
    if seed_file is not None and endpoint.host and endpoint.host != "memory":
        message = f"only host 'memory' has a seed file, not {shown(endpoint.host)}"
        fields["seed_file"].problem(Code.INVALID_VALUE, message)
    if host == "memory" and kind == "http":
        fields["host"].problem(Code.INVALID_VALUE, "host 'memory' is of kind 'redis', found 'http'")
    if host == "memory" or kind == "http":
        for each in _REDIS_ONLY:
            if fields[each]:
                message = f"only a server of kind 'redis' has {each!r}, and host 'memory' has not"
                fields[each].problem(Code.INVALID_VALUE, message)
    return endpoint


def _host(value: Value) -> str | None:
    host = value.text()
    if host is not None and not host.strip():
        return value.problem(Code.INVALID_VALUE, "expected a host name or address, found an empty string")
    if host is not None and "://" in host:
        # Not shown: there may be a password in it.
        return value.problem(
            Code.INVALID_VALUE,
            "expected a host name or address, found a URL: write 'host' and 'port', 'database', 'tls' = true for "
            "rediss, 'username' and 'password_env'",
        )
    return host


def _addresses(value: Value) -> tuple[tuple[str, int], ...]:
    items = value.items("an array of addresses such as 'host:6379'") if value else []
    if value and items == []:
        value.problem(Code.INVALID_VALUE, "expected at least one address, found an empty array")
    found: list[tuple[str, int]] = []
    for item in items or []:
        text = item.text("an address such as 'host:6379'") or ""
        host, _, port = text.rpartition(":")
        if text and not (host.strip("[]") and "://" not in host and port.isdecimal() and 0 < int(port[:6]) < 65_536):
            item.problem(Code.INVALID_VALUE, "expected an address such as 'host:6379', without a scheme or a user")
        elif text and (address := (host.strip("[]"), int(port))) in found:
            item.problem(Code.DUPLICATE_NAME, f"duplicate address {shown(text)}")
        elif text:
            found.append(address)
    return tuple(found)


def _tls(value: Value) -> Tls | None:
    if not value or value.raw is False:
        return None
    if value.raw is True:
        return Tls()
    names = [field.name for field in attrs.fields(Tls)]
    tls = Tls(**{name: each.text() for name, each in value.fields(optional=names).items()})
    if tls.key_file is not None and tls.cert_file is None:
        value.problem(Code.MISSING_FIELD, "a key needs the client's certificate", field="cert_file")
    return tls


def _policy(value: Value) -> EndpointPolicy:
    given = value.fields(optional=list(_POLICY_BOUNDS)) if value else {}
    return EndpointPolicy(**{name: each.integer(1, _POLICY_BOUNDS[name]) or 0 for name, each in given.items() if each})
