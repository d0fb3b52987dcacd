"""One server of an endpoint: its connections, of which there are as many as its load needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from .link import Link

KEPT: Final = 10.0
"""Seconds after its last use for which a further connection stays open."""


class Server:
    """The connections to one server: the first, and others that are opened while all slots of these are taken.

    `run` serves them; what it starts ends with it.
    """

    def __init__(self, open_link: Callable[[], Link], most: int) -> None:
        self._open_link = open_link
        self._most = most
        self._nursery: trio.Nursery | None = None
        # All changed by `pick` only. Further links by the instant of their last use, with the scope that ends them.
        self.links = [open_link()]
        self._last_used: dict[Link, float] = {}
        self._scopes: dict[Link, trio.CancelScope] = {}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for link in self.links:
                nursery.start_soon(link.run)
        self._nursery = None

    def close(self) -> None:
        """End the connections; calls fail from now on."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason="the server is no part of the endpoint any more")

    def pick(self) -> Link:
        """The connection that the next call shall use: of those that are open, the one with the least to do."""
        links = self.links
        if self._most == 1:
            return links[0]
        best = min((link for link in links if link.is_connected), key=_load, default=links[0])
        now = trio.current_time()
        if best.pipeline.waiting and len(links) < self._most and all(link.is_connected for link in links):
            self._add(now)
        if best is not links[0]:
            self._last_used[best] = now
        elif len(links) > 1 and links[-1].is_idle and now - self._last_used[links[-1]] > KEPT:
            self._remove(links[-1])
        return best

    def _add(self, now: float) -> None:
        if self._nursery is None:
            return
        link = self._open_link()
        scope = self._scopes[link] = trio.CancelScope()
        self._last_used[link] = now
        self.links.append(link)
        link.connect_soon()
        self._nursery.start_soon(self._run_link, link, scope)

    async def _run_link(self, link: Link, scope: trio.CancelScope) -> None:
        with scope:
            await link.run()

    def _remove(self, link: Link) -> None:
        self.links.remove(link)
        del self._last_used[link]
        self._scopes.pop(link).cancel(reason="the connection is not needed any more")

    @property
    def is_idle(self) -> bool:
        return all(link.is_idle for link in self.links)


def _load(link: Link) -> tuple[int, int]:
    return link.pipeline.waiting, link.pipeline.in_flight
