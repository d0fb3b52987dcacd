from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.errors import ConfigError
from seedbed.plans.endpoint import Endpoint, EndpointPolicy, Tls
from seedbed.plans.registries import (
    Key,
    KeyType,
    Param,
    default_registries,
    load_registries,
    parse_registries,
)

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, Any] = {
    "keys": [
        {"id": 1, "name": "id", "type": "int", "writable": False},
        {"id": 2, "name": "score", "type": "float", "default": 0},
    ],
    "params": [{"id": 1, "name": "weight", "type": "float"}],
    "endpoints": [{"id": "ep_a", "name": "a", "kind": "redis", "host": "memory", "seed_file": "seed.json"}],
}


def test_the_defaults_are_those_of_the_format() -> None:
    """The embedded registries hold the keys, params and the endpoint that the format names."""
    registries = default_registries()
    scores = {1001: "model_score_1", 1002: "model_score_2", 2001: "final_score"}
    strings = {3001: "country", 3002: "title"}
    assert registries.keys == {
        1: Key(id=1, name="id", type=KeyType.INT, writable=False),
        **{number: Key(id=number, name=name, type=KeyType.FLOAT, default=0.0) for number, name in scores.items()},
        **{number: Key(id=number, name=name, type=KeyType.STRING, nullable=True) for number, name in strings.items()},
    }
    assert registries.params == {
        1: Param(id=1, name="media_age_penalty_weight", type=KeyType.FLOAT),
        2: Param(id=2, name="blocklist_regex", type=KeyType.STRING, nullable=True),
        3: Param(id=3, name="esr_cutoff", type=KeyType.FLOAT),
    }
    policy = EndpointPolicy(max_inflight=64, connect_timeout_ms=50, request_timeout_ms=20)
    assert registries.endpoints == {
        "ep_0001": Endpoint(
            id="ep_0001", name="redis_default", kind="redis", host="127.0.0.1", port=6379, policy=policy
        )
    }


def test_toml_and_json_agree(tmp_path: Path) -> None:
    """A file is TOML if its name ends so, else JSON; a seed file is resolved against its folder."""
    toml = tmp_path / "registries.toml"
    toml.write_text(
        """
        [[keys]]
        id = 1
        name = "id"
        type = "int"
        writable = false
        [[keys]]
        id = 2
        name = "score"
        type = "float"
        default = 0
        [[params]]
        id = 1
        name = "weight"
        type = "float"
        [[endpoints]]
        id = "ep_a"
        name = "a"
        kind = "redis"
        host = "memory"
        seed_file = "seed.json"
        """,
        encoding="utf-8",
    )
    as_json = tmp_path / "registries.json"
    as_json.write_text(json.dumps(SMALL), encoding="utf-8")
    assert load_registries(toml) == load_registries(str(as_json))
    assert load_registries(toml).endpoints["ep_a"].seed_file == str(tmp_path / "seed.json")
    assert parse_registries(SMALL).endpoints["ep_a"].seed_file == "seed.json"
    assert load_registries(toml).keys[2].default == 0.0


def test_ports_have_the_default_of_their_kind() -> None:
    """An endpoint without a port has that of its kind, one without a policy the default one."""
    given_registries = copy.deepcopy(SMALL)
    given_registries["endpoints"] += [
        {"id": "ep_b", "name": "b", "kind": "http", "host": "h", "policy": {"max_inflight": 3}}
    ]
    endpoints = parse_registries(given_registries).endpoints
    assert (endpoints["ep_a"].port, endpoints["ep_b"].port) == (6379, 80)
    assert endpoints["ep_a"].policy == EndpointPolicy()
    assert endpoints["ep_b"].policy == EndpointPolicy(max_inflight=3)


def test_servers_as_they_are_deployed(tmp_path: Path) -> None:
    """Addresses of shards and clusters, logins, databases and policies are read; files are beside the registries."""
    given_registries = copy.deepcopy(SMALL)
    tls = {"ca_file": "ca.pem", "cert_file": "/c.pem", "key_file": "c.key", "server_name": "redis"}
    login = {"username": "ranker", "password_env": "REDIS_PASSWORD"}
    given_registries["endpoints"] = [
        {
            "id": "ep_a",
            "name": "a",
            "kind": "redis",
            "shards": ["one:1", "[::1]:2"],
            "database": 3,
            "tls": True,
            **login,
        },
        {"id": "ep_b", "name": "b", "kind": "redis", "cluster": ["one:1"], "tls": tls, "policy": {"connections": 4}},
        {"id": "ep_c", "name": "c", "kind": "redis", "host": "h", "tls": False, "password_env": "P"},
    ]
    file = tmp_path / "registries.json"
    file.write_text(json.dumps(given_registries), encoding="utf-8")
    shards, cluster, plain = load_registries(file).endpoints.values()
    assert (shards.host, shards.port, shards.shards) == ("one", 1, (("one", 1), ("::1", 2)))
    assert (shards.database, shards.tls, shards.username, shards.password_env) == (3, Tls(), *login.values())
    assert (cluster.cluster, cluster.policy) == ((("one", 1),), EndpointPolicy(connections=4))
    in_folder = str(tmp_path / "ca.pem"), str(tmp_path / "c.key")
    assert cluster.tls == Tls(ca_file=in_folder[0], cert_file="/c.pem", key_file=in_folder[1], server_name="redis")
    assert (plain.tls, plain.username, plain.password_env) == (None, None, "P")


SERVERS = {"id": "ep_a", "name": "a", "kind": "redis"}
CASES: list[tuple[str, Any, str]] = [
    ("keys/1/id", 1, "$.keys[1].id: duplicate id 1, which $.keys[0] has [DUPLICATE_ID]"),
    ("keys/1/name", "id", "$.keys[1].name: duplicate name 'id', which $.keys[0] has [DUPLICATE_NAME]"),
    ("keys/1/id", True, "$.keys[1].id: expected an integer, found true [WRONG_TYPE]"),
    ("keys/1/id", 0, "$.keys[1].id: expected an integer from 1 to 4294967295, found 0 [INVALID_VALUE]"),
    ("keys/1/name", "a b", "$.keys[1].name: expected text like [A-Za-z_][A-Za-z0-9_]*, found 'a b' [INVALID_VALUE]"),
    ("keys/1/type", "double", "$.keys[1].type: expected one of 'int', 'float', 'string', found 'double'"),
    ("keys/1/nulable", True, "$.keys[1].nulable: unknown field 'nulable'; did you mean 'nullable'? [UNKNOWN_FIELD]"),
    ("keys/1/nullable", True, "$.keys[1].default: a nullable key is null where no op wrote it; it has no default"),
    ("keys/1/nullable", 1, "$.keys[1].nullable: expected true or false, found 1 [WRONG_TYPE]"),
    ("keys/1/default", "x", "$.keys[1].default: expected a number, found 'x' [WRONG_TYPE]"),
    (
        "keys/1",
        {"id": 2, "name": "s", "type": "float"},
        "$.keys[1].default: a key that is not nullable needs a default",
    ),
    ("keys/0/writable", True, "$.keys[0]: expected the key 1 to be 'id': type 'int', nullable false, writable false"),
    ("keys/0/id", 5, "$.keys[0].default: a key that is not nullable needs a default"),
    ("keys", [], "$.keys: the key 1, 'id', is required: every row has it [MISSING_FIELD]"),
    (
        "keys/1",
        {"id": 3001, "name": "country", "type": "float", "default": 0},
        "$.keys[1]: expected the key 3001 to be 'country': type 'string', nullable true, writable true",
    ),
    ("keys", {}, "$.keys: expected an array, found an object [WRONG_TYPE]"),
    ("params/0/type", None, "$.params[0].type: expected a string, found null [WRONG_TYPE]"),
    ("params/0/default", 1, "$.params[0].default: unknown field 'default'"),
    ("endpoints/0/id", "a", "$.endpoints[0].id: expected text like ep_[A-Za-z0-9_]+, found 'a' [INVALID_VALUE]"),
    ("endpoints/0/kind", "sql", "$.endpoints[0].kind: expected one of 'redis', 'http', found 'sql' [INVALID_VALUE]"),
    ("endpoints/0/kind", "http", "$.endpoints[0].host: host 'memory' is of kind 'redis', found 'http' [INVALID_VALUE]"),
    ("endpoints/0/host", " ", "$.endpoints[0].host: expected a host name or address, found an empty string"),
    ("endpoints/0/host", "h", "$.endpoints[0].seed_file: only host 'memory' has a seed file, not 'h' [INVALID_VALUE]"),
    ("endpoints/0/port", 70_000, "$.endpoints[0].port: expected an integer from 1 to 65535, found 70000"),
    ("endpoints/0/host", "rediss://u:pw@h", "$.endpoints[0].host: expected a host name or address, found a URL: write"),
    ("endpoints/0/shards", ["h:1"], "$.endpoints[0]: expected one of 'host', 'shards' and 'cluster', found host and"),
    ("endpoints/0/database", 1, "$.endpoints[0].database: only a server of kind 'redis' has 'database', and host"),
    ("endpoints/0/tls", 1, "$.endpoints[0].tls: expected an object, found 1 [WRONG_TYPE]"),
    ("endpoints/0/tls", {"key_file": "k"}, "$.endpoints[0].tls.cert_file: a key needs the client's certificate"),
    ("endpoints/0/password", "p", "$.endpoints[0].password: unknown field 'password'; did you mean 'password_env'?"),
    ("endpoints/0/username", "u", "$.endpoints[0].username: a user needs a password: name its variable in"),
    ("endpoints/0/policy", {"read_attempts": 101}, "$.endpoints[0].policy.read_attempts: expected an integer from 1"),
    (
        "endpoints/0",
        {**SERVERS, "cluster": []},
        "$.endpoints[0].cluster: expected at least one address",
    ),
    (
        "endpoints/0",
        {**SERVERS, "cluster": ["h"]},
        "$.endpoints[0].cluster[0]: expected an address such as",
    ),
    ("endpoints/0", {**SERVERS, "shards": ["h:1", "h:1"]}, "$.endpoints[0].shards[1]: duplicate address 'h:1'"),
    ("endpoints/0", {**SERVERS, "shards": ["h:99999"]}, "$.endpoints[0].shards[0]: expected an address such as"),
    ("endpoints/0", {**SERVERS, "shards": ["r://u:p@h:1"]}, "$.endpoints[0].shards[0]: expected an address such as"),
    (
        "endpoints/0",
        {**SERVERS, "shards": ["h:1"], "port": 1},
        "$.endpoints[0].port: the addresses of 'shards'",
    ),
    ("endpoints/0", {**SERVERS, "cluster": ["h:1"], "database": 1}, "$.endpoints[0].database: a cluster has only"),
    ("endpoints/0", SERVERS, "$.endpoints[0]: expected one of 'host', 'shards' and 'cluster', found none of them"),
    ("endpoints/0/policy", {"max_inflight": 0}, "$.endpoints[0].policy.max_inflight: expected an integer from 1 to"),
    ("endpoints/0/policy", {"retries": 1}, "$.endpoints[0].policy.retries: unknown field 'retries'"),
    ("endpoints/0/policy", [], "$.endpoints[0].policy: expected an object, found an array [WRONG_TYPE]"),
    ("models", [], "$.models: unknown field 'models'"),
]


@pytest.mark.parametrize(("change", "value", "message"), CASES)
def test_problems_are_named(change: str, value: Any, message: str) -> None:
    """A problem of the registries has its code, its path and the expected value."""
    registries: Any = copy.deepcopy(SMALL)
    *steps, last = [int(step) if step.isdecimal() else step for step in change.split("/")]
    place = registries
    for step in steps:
        place = place[step]
    place[last] = value
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_registries(registries)


def test_all_problems_are_reported_at_once() -> None:
    """One error has every problem of the registries."""
    registries = copy.deepcopy(SMALL)
    registries["keys"][1]["type"] = "double"
    registries["params"][0]["id"] = "1"
    registries["endpoints"][0]["port"] = 0
    with pytest.raises(ConfigError, match="the registries are invalid, 3 problems"):
        parse_registries(registries)


def test_invalid_toml_is_reported_with_its_line(tmp_path: Path) -> None:
    """TOML that cannot be parsed is one problem with the line."""
    file = tmp_path / "registries.toml"
    file.write_text("[[keys]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\$: expected TOML: .*line 1"):
        load_registries(file)


def test_endpoints_of_two_kinds_may_share_a_name() -> None:
    """A name is unique among the endpoints of a kind, by which plans refer to them."""
    registries = copy.deepcopy(SMALL)
    registries["endpoints"].append({"id": "ep_b", "name": "a", "kind": "http", "host": "h"})
    assert len(parse_registries(registries).endpoints) == 2
    registries["endpoints"].append({"id": "ep_c", "name": "a", "kind": "http", "host": "h"})
    with pytest.raises(ConfigError, match="DUPLICATE_NAME"):
        parse_registries(registries)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=5), SCALARS, max_size=3)
LIKELY = st.sampled_from(["int", "float", "string", "redis", "http", "memory", "id", "ep_1", 1, 3001, True])
FIELDS = [
    "id",
    "name",
    "type",
    "kind",
    "host",
    "port",
    "policy",
    "default",
    "nullable",
    "seed_file",
    "shards",
    "cluster",
    "tls",
]
ENTRIES = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, LIKELY | JSON)) | JSON, max_size=3)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("keys", "params", "endpoints"), ENTRIES | JSON)) | JSON)
def test_any_registries_are_parsed_or_rejected_with_a_config_error(document: Any) -> None:
    """Registries are parsed or rejected with a ConfigError."""
    try:
        parse_registries(document)
    except ConfigError as error:
        assert str(error)  # noqa: PT017  it may also be valid
