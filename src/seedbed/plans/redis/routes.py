"""Which server of an endpoint has a key: the only one, a shard by ketama, or the node of a cluster. Pure.

Ketama is libmemcached's: 160 points per server on a ring of 32 bits, four from each MD5 of `host:port-N`, and a key
belongs to the next point. Unlike slots of a cluster, it hashes the whole key, braces included.
"""

from __future__ import annotations

import bisect
import hashlib
import struct
from binascii import crc_hqx
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Address = tuple[str, int]

SLOTS: Final = 16_384
_HASHES_PER_SERVER: Final = 40


def shown_address(address: Address) -> str:
    """An address as `host:port`."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Ketama:
    """Consistent hashing: a server that is added or removed moves only the keys that it gets or had."""

    def __init__(self, servers: Iterable[Address]) -> None:
        points = sorted(
            (point, server)
            for server in servers
            for number in range(_HASHES_PER_SERVER)
            for point in struct.unpack("<4I", _md5(f"{shown_address(server)}-{number}"))
        )
        self._points = [point for point, _ in points]
        self._servers = [server for _, server in points]

    def server_of(self, key: str) -> Address:
        (point,) = struct.unpack_from("<I", _md5(key))
        at = bisect.bisect_left(self._points, point)
        return self._servers[at if at < len(self._points) else 0]


def _md5(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


def slot_of(key: str) -> int:
    """The slot of a key: of the part between the first braces, if there is one."""
    name = key.encode()
    start = name.find(b"{")
    if start >= 0:
        end = name.find(b"}", start + 1)
        if end > start + 1:
            name = name[start + 1 : end]
    return crc_hqx(name, 0) % SLOTS


@attrs.frozen(kw_only=True)
class Redirect:
    """MOVED or ASK: the server that has a key."""

    slot: int
    address: Address
    is_final: bool  # MOVED: for all keys of the slot, and for good


def redirect_of(text: str, asked: Address) -> Redirect | None:
    """Read an error reply such as `MOVED 3999 127.0.0.1:6381`; None if it is another one."""
    words = text.split()
    if len(words) != 3 or words[0] not in ("MOVED", "ASK"):
        return None
    host, _, port = words[2].rpartition(":")
    try:
        slot, number = int(words[1]), int(port)
    except ValueError:
        return None
    if not (0 <= slot < SLOTS and 0 < number < 65_536):
        return None
    # Without a host it is another port of the server that was asked.
    return Redirect(slot=slot, address=(host.strip("[]") or asked[0], number), is_final=words[0] == "MOVED")


class SlotMap:
    """Which node of a cluster has which slot. Changed by answers of its nodes only."""

    def __init__(self) -> None:
        self._owners: list[Address | None] = [None] * SLOTS
        self.nodes: list[Address] = []  # that have a slot; empty until the slots are known

    def owner(self, slot: int) -> Address | None:
        return self._owners[slot]

    def move(self, slot: int, owner: Address) -> None:
        self._owners[slot] = owner
        if owner not in self.nodes:
            self.nodes.append(owner)

    def replace(self, reply: Any, asked: Address) -> bool:
        """Take over the reply to CLUSTER SLOTS of a node; False, and nothing changed, if it is none."""
        owners: list[Address | None] = [None] * SLOTS
        try:
            for first, last, (host, port, *_), *_replicas in reply:
                if not (0 <= first <= last < SLOTS and 0 < port < 65_536):
                    return False
                # A node that does not know its own address gives none.
                address = (asked[0] if host in (None, "", "?") else str(host), int(port))
                owners[first : last + 1] = [address] * (last - first + 1)
        except (TypeError, ValueError):
            return False
        if not any(owners):
            return False
        self._owners = owners
        self.nodes = list(dict.fromkeys(owner for owner in owners if owner is not None))
        return True


def by_server(keys: Sequence[str], owners: Iterable[Address]) -> dict[Address, list[int]]:
    """The positions of the keys by the server that has them."""
    found: dict[Address, list[int]] = {}
    for position, owner in zip(range(len(keys)), owners, strict=True):
        found.setdefault(owner, []).append(position)
    return found
