"""A parsed and validated plan, and the registries it is read against: frozen values, no behaviour."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


class KeyType(enum.Enum):
    """What a column of a row set holds."""

    INT = "int"
    FLOAT = "float"
    STRING = "string"


@attrs.frozen(kw_only=True)
class Key:
    """A column that row sets may have. Reading one that nothing wrote gives `default`, or null if it is nullable."""

    id: int
    name: str
    type: KeyType
    nullable: bool = False
    default: Any = None
    writable: bool = True


@attrs.frozen(kw_only=True)
class Param:
    """A value that a request may override."""

    id: int
    name: str
    type: KeyType
    nullable: bool = False


@attrs.frozen(kw_only=True)
class EndpointPolicy:
    """How an endpoint may be used."""

    max_inflight: int = 64
    connect_timeout_ms: int = 50
    request_timeout_ms: int = 20


@attrs.frozen(kw_only=True)
class Endpoint:
    """A server that ops may ask; host `memory` is the embedded one, seeded from `seed_file` if given."""

    id: str
    name: str
    kind: str
    host: str
    port: int = 6379
    policy: EndpointPolicy = EndpointPolicy()
    seed_file: str | None = None


@attrs.frozen(kw_only=True)
class Registries:
    """What a plan may refer to."""

    keys: Mapping[int, Key]
    params: Mapping[int, Param]
    endpoints: Mapping[str, Endpoint]


@attrs.frozen(kw_only=True)
class PlanNode:
    """One op of a plan, validated: `op` is the full name, `params` are checked and have their defaults.

    `upstream` are the nodes it needs: its inputs, then the nodes that its parameters refer to (concat's rhs).
    """

    node_id: str
    op: str
    inputs: tuple[str, ...]
    params: Mapping[str, Any]
    upstream: tuple[str, ...]
    extensions: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Plan:
    """A plan that passed validation: it can only fail for reasons of data, endpoints and time.

    `expressions` and `predicates` are the JSON trees of the plan's tables, as validated.
    """

    name: str
    nodes: tuple[PlanNode, ...]
    outputs: tuple[str, ...]
    expressions: Mapping[str, Mapping[str, Any]]
    predicates: Mapping[str, Mapping[str, Any]]
    capabilities: tuple[str, ...] = ()
    extensions: Mapping[str, Any] = attrs.field(factory=dict)
    registries: Registries
