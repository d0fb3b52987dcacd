"""Identical requests answered once: those in flight together, and those that come again."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .base import ChatRequest

T = TypeVar("T")


def request_key(model: str, request: ChatRequest) -> bytes:
    """Equal for requests that a model cannot tell apart."""
    digest = hashlib.blake2b(digest_size=16)
    for message in request.messages:
        for part in (message.role.encode(), message.text.encode("utf-8", "surrogatepass")):
            digest.update(len(part).to_bytes(8, "big") + part)
        for image in message.images:
            digest.update(hashlib.blake2b(image.data).digest() + image.media_type.encode())
        digest.update(b"\0")
    rest: list[Any] = [model, dict(request.parameters), request.schema]
    digest.update(json.dumps(rest, sort_keys=True, default=repr).encode())
    return digest.digest()


def call_key(*parts: Any) -> bytes:
    """Equal for the same call of the same cell, made of what JSON can tell."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=repr).encode(), digest_size=16).digest()


class Dedupe:
    """The answers of the last `max_entries` requests, and those under way. Used from one trio run.

    Failures are not kept and not shared: when the call that others wait for fails or is cancelled, one of them makes it
    again as its own.
    """

    def __init__(self, max_entries: int = 10_000) -> None:
        if max_entries < 1:
            raise ConfigError(f"max_entries must be 1 or more, not {max_entries!r}")
        self._max_entries = max_entries
        self._answers: OrderedDict[bytes, Any] = OrderedDict()
        self._in_flight: dict[bytes, trio.Event] = {}
        # Answers that cost nothing.
        self.hits = 0

    def knows(self, key: bytes) -> bool:
        """Whether the answer for a key is kept or on its way."""
        return key in self._answers or key in self._in_flight

    async def once(self, key: bytes, call: Callable[[], Awaitable[T]]) -> T:
        """The answer for a key: kept, waited for, or by calling."""
        while True:
            if key in self._answers:
                self._answers.move_to_end(key)
                self.hits += 1
                # A checkpoint, as a call would have been: a loop over kept answers must not hog the run.
                await trio.lowlevel.checkpoint()
                found: T = self._answers[key]
                return found
            other = self._in_flight.get(key)
            if other is None:
                return await self._call(key, call)
            await other.wait()

    async def _call(self, key: bytes, call: Callable[[], Awaitable[T]]) -> T:
        done = self._in_flight[key] = trio.Event()
        try:
            answer = await call()
            self._answers[key] = answer
            if len(self._answers) > self._max_entries:
                self._answers.popitem(last=False)
            return answer
        finally:
            del self._in_flight[key]
            done.set()
