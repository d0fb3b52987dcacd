"""Which commands wait for a slot, which are sent next and which reply comes next: decided synchronously, without I/O.

Replies come in the order of the commands. So a command that was sent keeps its position in the queue, and one of the
`max_inflight` slots, until its reply has come, even if its caller was cancelled: else the next caller would get it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import attrs
import outcome
import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# A reply as hiredis parsed it; an error is an instance of an exception and is not raised.
Reply: TypeAlias = object

TURN = 32
"""Commands that one call may send at a time while others wait, so that a call with thousands does not delay them."""


@attrs.define(eq=False)
class Waiter:
    """A task that waits for some calls: woken when all are answered, or with the error of the first that fails."""

    task: trio.lowlevel.Task
    left: int  # calls that it still waits for; 0 once it has been woken

    def answered(self) -> None:
        self.left -= 1
        if not self.left:
            trio.lowlevel.reschedule(self.task)

    def failed(self, error: Exception) -> None:
        if self.left > 0:
            self.left = 0
            trio.lowlevel.reschedule(self.task, outcome.Error(error))


@attrs.define(eq=False)
class Call:
    """Commands, encoded, that one task sends on one connection."""

    commands: Sequence[bytes]
    waiter: Waiter
    # Whether the replies after one that is an error are wanted too; else it ends the call.
    every_reply: bool = False
    admitted: int = 0  # how many of the commands got a slot
    replies: list[Reply] = attrs.field(factory=list)
    done: bool = False  # answered, failed or cancelled: later replies for it are dropped


@attrs.define(eq=False)
class Chunk:
    """Commands of one call that got their slots together."""

    call: Call
    count: int  # replies that are still to come
    payload: bytes
    sent_at: float = 0.0


class Pipeline:
    """The calls of one connection. All fields are changed by its methods only, in the loop's thread."""

    def __init__(self, max_inflight: int) -> None:
        self.free = max_inflight
        self.sent = 0
        self.dropped = 0
        self._limit = max_inflight
        self._waiting: dict[Call, None] = {}  # in order; a dict, so that a cancelled one leaves at once
        self._unsent: deque[Chunk] = deque()
        self._sent: deque[Chunk] = deque()

    @property
    def in_flight(self) -> int:
        return self._limit - self.free

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def oldest(self) -> float | None:
        """When the command whose reply comes next was sent; None if no reply is outstanding."""
        return self._sent[0].sent_at if self._sent else None

    @property
    def oldest_wanted(self) -> float | None:
        """When the first command whose caller still waits was sent."""
        return next((chunk.sent_at for chunk in self._sent if not chunk.call.done), None)

    def add(self, call: Call) -> None:
        self._waiting[call] = None

    def admit(self) -> None:
        """Give free slots to the calls that wait, in turns."""
        while self.free and self._waiting:
            call = next(iter(self._waiting))
            commands, start = call.commands, call.admitted
            count = min(len(commands) - start, self.free)
            if count > TURN and len(self._waiting) > 1:
                count = TURN
            payload = commands[start] if count == 1 else b"".join(commands[start : start + count])
            self._unsent.append(Chunk(call, count, payload))
            self.free -= count
            call.admitted = start + count
            del self._waiting[call]
            if call.admitted < len(commands):
                self._waiting[call] = None

    def take_unsent(self, now: float) -> bytes:
        """Take everything that is to be sent now, but nothing for calls that are done."""
        payloads = []
        while self._unsent:
            chunk = self._unsent.popleft()
            if chunk.call.done:
                self.free += chunk.count
                continue
            payloads.append(chunk.payload)
            chunk.payload = b""
            chunk.sent_at = now
            self.sent += chunk.count
            self._sent.append(chunk)
        return payloads[0] if len(payloads) == 1 else b"".join(payloads)

    def take_replies(self, replies: list[Reply]) -> int:
        """Give each reply to its call; returns how many of the replies were outstanding."""
        at, end, sent = 0, len(replies), self._sent
        while at < end and sent:
            chunk = sent[0]
            count = min(chunk.count, end - at)
            self.free += count
            chunk.count -= count
            if not chunk.count:
                sent.popleft()
            self._answer(chunk.call, replies if count == end else replies[at : at + count])
            at += count
        return at

    def _answer(self, call: Call, replies: list[Reply]) -> None:
        if call.done:
            self.dropped += len(replies)
            return
        if not call.every_reply and any(issubclass(kind, Exception) for kind in set(map(type, replies))):
            # The caller raises the error; it does not need the replies to its other commands.
            failed = next(at for at, reply in enumerate(replies) if isinstance(reply, Exception))
            call.replies += replies[: failed + 1]
            self.dropped += len(replies) - failed - 1
            self.abandon(call)
            call.waiter.answered()
            return
        call.replies += replies
        if len(call.replies) == len(call.commands):
            call.done = True
            call.waiter.answered()

    def abandon(self, call: Call) -> None:
        """End a call; replies to its commands that come later are dropped."""
        call.done = True
        self._waiting.pop(call, None)

    def expire(self, now: float, timeout: float, error: Callable[[], Exception]) -> int:
        """Fail the calls that wait for a reply to something sent `timeout` ago or earlier, and count them."""
        # The same sum as in the caller's deadline: otherwise rounding could make the two disagree for ever.
        return self._fail([chunk.call for chunk in self._sent if chunk.sent_at + timeout <= now], error)

    def lose_connection(self, error: Callable[[], Exception]) -> int:
        """Fail the calls that have slots, free these and return the number of calls; no reply is outstanding then."""
        calls = [chunk.call for queue in (self._sent, self._unsent) for chunk in queue]
        self._sent.clear()
        self._unsent.clear()
        self.free = self._limit
        return self._fail(calls, error)

    def fail_waiting(self, error: Callable[[], Exception]) -> int:
        return self._fail(list(self._waiting), error)

    def _fail(self, calls: list[Call], error: Callable[[], Exception]) -> int:
        failed = [call for call in dict.fromkeys(calls) if not call.done]
        for call in failed:
            self.abandon(call)
            call.waiter.failed(error())
        return len(failed)
