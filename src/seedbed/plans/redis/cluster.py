"""A Redis or Valkey cluster: commands go to the node that has the slot, and follow it when it moves.

A node says MOVED when a slot has gone for good, and ASK while a single key may already be at its next node. What is
learnt so is used at once; the whole map is read again in the background.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import hiredis
import trio

from ...errors import EndpointUnavailable
from ...runtime.policy import backoff_delay
from .connecting import encode
from .link import ask_one, ask_together
from .routes import SlotMap, by_server, redirect_of, shown_address, slot_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Sequence

    from ..endpoint import Endpoint
    from .pipeline import Reply
    from .routes import Address
    from .server import Server

MOST_REDIRECTS: Final = 8
"""Redirections that one read follows. Two are usual while a slot moves; more mean that the nodes disagree."""

REFRESH_PAUSE: Final = 0.5
"""Least seconds between two readings of the slots, however many commands are redirected."""

_SLOTS: Final = encode("CLUSTER", "SLOTS")
_ASKING: Final = encode("ASKING")


class Cluster:
    """The slots of a cluster and what reads them. `run` must be running; the first call reads the slots."""

    def __init__(
        self,
        endpoint: Endpoint,
        server: Callable[[Address], Server],
        retire: Callable[[Collection[Address]], None],
        rng: random.Random,
    ) -> None:
        self._endpoint = endpoint
        self._server = server
        self._retire = retire  # closes the connections to all nodes but these
        self._rng = rng
        self._slots = SlotMap()
        self._seeds = endpoint.cluster
        self._wanted = trio.Event()  # set when the slots shall be read, replaced by `run`
        self._read = trio.Event()  # set after each attempt to read the slots, replaced by `run`
        self._failure: EndpointUnavailable | None = None  # of the last attempt
        self._retry_at = 0.0  # when the next attempt may start
        self.redirects = 0

    def servers(self) -> list[Server]:
        """The nodes that have slots."""
        return [self._server(address) for address in self._slots.nodes]

    async def ready(self) -> None:
        """Wait for the first reading of the slots; raises EndpointUnavailable if it fails."""
        if self._slots.nodes:
            return
        self._wanted.set()
        # As with a connection: no call waits for the next attempt longer than for an attempt.
        if self._retry_at - trio.current_time() <= self._endpoint.policy.connect_timeout_ms / 1000:
            await self._read.wait()
        if not self._slots.nodes:
            assert self._failure is not None
            raise EndpointUnavailable(self._failure.message) from self._failure

    async def run(self) -> None:
        """Read the slots whenever that is wanted; until cancelled."""
        failures = 0
        policy = self._endpoint.policy
        base, maximum = policy.connect_backoff_ms / 1000, policy.connect_backoff_max_ms / 1000
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                failures = 0 if await self._refresh() else failures + 1
                pause = backoff_delay(failures, base, maximum, self._rng) if failures else REFRESH_PAUSE
                self._retry_at = trio.current_time() + pause
                self._read.set()
                self._read = trio.Event()
                await trio.sleep(pause)
        finally:
            self._failure = EndpointUnavailable(f"endpoint {self._endpoint.id!r} was closed")
            self._read.set()

    async def _refresh(self) -> bool:
        """Ask one node after the other for the slots, until one gives them."""
        failed: list[str] = []
        for address in dict.fromkeys((*self._slots.nodes, *self._seeds)):
            try:
                (reply,) = await ask_one(self._server(address).pick(), (_SLOTS,))
            except EndpointUnavailable as error:
                failed.append(error.message)
                continue
            if self._slots.replace(reply, address):
                self._retire({*self._slots.nodes, *self._seeds})
                return True
            failed.append(f"{shown_address(address)} answered CLUSTER SLOTS with {reply!r:.80}")
        found = "; ".join(failed)
        self._failure = EndpointUnavailable(
            f"endpoint {self._endpoint.id!r}: no node of the cluster gives its slots: {found}"
        )
        return False

    async def ask(self, keys: Sequence[str], commands: Sequence[bytes]) -> list[Reply]:
        """The replies in the order of the keys; a redirection that leads nowhere is a reply like any error."""
        await self.ready()
        replies: list[Reply] = [None] * len(keys)
        groups = by_server(keys, (self._owner(slot_of(key)) for key in keys))
        asking: set[int] = set()
        for _ in range(MOST_REDIRECTS + 1):
            redirected: list[int] = []
            targets: list[Address] = []
            again: set[int] = set()
            for address, places, found in await self._send(groups, commands, asking):
                for at, reply in zip(places, found, strict=True):
                    replies[at] = reply
                    if not isinstance(reply, hiredis.ReplyError):
                        continue
                    redirect = redirect_of(str(reply), address)
                    if redirect is None:
                        # The node may have lost its slots, or its cluster.
                        self._wanted.set()
                        continue
                    redirected.append(at)
                    targets.append(redirect.address)
                    if redirect.is_final:
                        self._slots.move(redirect.slot, redirect.address)
                        self._wanted.set()
                    else:
                        again.add(at)
            if not redirected:
                break
            self.redirects += len(redirected)
            asking = again
            groups = {}
            for at, target in zip(redirected, targets, strict=True):
                groups.setdefault(target, []).append(at)
        return replies

    async def _send(
        self, groups: dict[Address, list[int]], commands: Sequence[bytes], asking: set[int]
    ) -> list[tuple[Address, list[int], list[Reply]]]:
        """Send each group to its node; commands at a position in `asking` follow an ASKING, whose reply is left out."""
        parts: list[tuple[Any, list[bytes]]] = []
        for address, places in groups.items():
            sent = [word for at in places for word in ((_ASKING, commands[at]) if at in asking else (commands[at],))]
            parts.append((self._server(address).pick(), sent))
        try:
            found = await ask_together(parts, every_reply=True)
        except EndpointUnavailable:
            self._wanted.set()  # perhaps another node has its slots by now
            raise
        results = []
        for (address, places), answers in zip(groups.items(), found, strict=True):
            left = iter(answers)
            replies = [(next(left), next(left))[1] if at in asking else next(left) for at in places]
            results.append((address, places, replies))
        return results

    def _owner(self, slot: int) -> Address:
        owner = self._slots.owner(slot)
        if owner is None:
            self._wanted.set()
            raise EndpointUnavailable(f"endpoint {self._endpoint.id!r}: no node of the cluster has slot {slot}")
        return owner
