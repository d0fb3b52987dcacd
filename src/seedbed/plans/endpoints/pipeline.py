"""Who asks, who waits for a place and whose reply comes next: decided synchronously, without any I/O.

Replies come in the order of the commands. So a command that was sent keeps its place in the queue, and one of the
`max_inflight` places, until its reply is there, whatever became of its caller: that is what keeps replies apart.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import outcome
import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .resp import Reply

TURN = 32
"""Commands that one call may send at a time while others wait, so that a call with thousands does not hold all up."""


class Call:
    """One caller and its commands, encoded; the task is woken with the replies, or with the error that ended it."""

    __slots__ = ("commands", "over", "placed", "replies", "task")

    def __init__(self, commands: Sequence[bytes], task: trio.lowlevel.Task) -> None:
        self.commands = commands
        self.task = task
        self.placed = 0  # how many of the commands were given a place
        self.replies: list[Reply] = []
        self.over = False  # answered, failed or cancelled: what still comes for it is dropped


class Chunk:
    """Commands of one call that were given places together."""

    __slots__ = ("call", "count", "payload", "sent_at")

    def __init__(self, call: Call, count: int, payload: bytes) -> None:
        self.call = call
        self.count = count  # replies that are still to come
        self.payload = payload
        self.sent_at = 0.0


class Pipeline:
    """The calls of one endpoint. All fields are changed by its methods only, in the loop's thread."""

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
        """Whether there is something to send."""
        return bool(self._unsent)

    @property
    def oldest(self) -> float | None:
        """When the command was sent whose reply comes next; None if no reply is owed."""
        return self._sent[0].sent_at if self._sent else None

    @property
    def oldest_wanted(self) -> float | None:
        """When the first command was sent that somebody still waits for."""
        return next((chunk.sent_at for chunk in self._sent if not chunk.call.over), None)

    def add(self, call: Call) -> None:
        """Let a call wait for its places."""
        self._waiting[call] = None

    def admit(self) -> None:
        """Give places to those who wait, in turns, as long as there are any."""
        while self.free and self._waiting:
            call = next(iter(self._waiting))
            commands, placed = call.commands, call.placed
            count = min(len(commands) - placed, self.free)
            if count > TURN and len(self._waiting) > 1:
                count = TURN
            payload = commands[placed] if count == 1 else b"".join(commands[placed : placed + count])
            self._unsent.append(Chunk(call, count, payload))
            self.free -= count
            call.placed = placed + count
            del self._waiting[call]
            if call.placed < len(commands):
                self._waiting[call] = None

    def take_unsent(self, now: float) -> bytes:
        """What is to be sent now; from here on its replies are owed. Nothing is sent for calls that are over."""
        payloads = []
        while self._unsent:
            chunk = self._unsent.popleft()
            if chunk.call.over:
                self.free += chunk.count
                continue
            payloads.append(chunk.payload)
            chunk.payload = b""
            chunk.sent_at = now
            self.sent += chunk.count
            self._sent.append(chunk)
        return payloads[0] if len(payloads) == 1 else b"".join(payloads)

    def take_replies(self, replies: list[Reply]) -> int:
        """Give each reply to the call that it is for; returns how many were owed to anybody."""
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
        """So many replies to a call, in one piece."""
        if call.over:
            self.dropped += len(replies)
            return
        if any(issubclass(kind, Exception) for kind in set(map(type, replies))):
            # The caller will find it and raise; what else the call asked for is of no use to it.
            failed = next(at for at, reply in enumerate(replies) if isinstance(reply, Exception))
            call.replies += replies[: failed + 1]
            self.dropped += len(replies) - failed - 1
            self._end(call, outcome.Value(call.replies))
            return
        call.replies += replies
        if len(call.replies) == len(call.commands):
            call.over = True
            trio.lowlevel.reschedule(call.task, outcome.Value(call.replies))

    def abandon(self, call: Call) -> None:
        """Forget a call that was cancelled; replies to what it sent are dropped when they come."""
        call.over = True
        self._waiting.pop(call, None)

    def expire(self, now: float, timeout: float, error: Callable[[], Exception]) -> int:
        """Fail the calls that wait for a reply to something sent `timeout` ago or earlier, and count them."""
        # The same sum as in the deadline of whoever calls this, or rounding would make them disagree for ever.
        late = [chunk.call for chunk in self._sent if chunk.sent_at + timeout <= now and not chunk.call.over]
        calls = dict.fromkeys(late)
        for call in calls:
            self._end(call, outcome.Error(error()))
        return len(calls)

    def lose_connection(self, error: Callable[[], Exception]) -> int:
        """Fail the calls that were given places, which are free again, and count them; no reply is owed any more."""
        calls = dict.fromkeys(chunk.call for queue in (self._sent, self._unsent) for chunk in queue)
        self._sent.clear()
        self._unsent.clear()
        self.free = self._limit
        failed = [call for call in calls if not call.over]
        for call in failed:
            self._end(call, outcome.Error(error()))
        return len(failed)

    def give_up(self, error: Callable[[], Exception]) -> int:
        """Fail the calls that wait for places, and count them."""
        failed = list(self._waiting)
        for call in failed:
            self._end(call, outcome.Error(error()))
        return len(failed)

    def _end(self, call: Call, result: outcome.Outcome[list[Reply]]) -> None:
        call.over = True
        self._waiting.pop(call, None)
        trio.lowlevel.reschedule(call.task, result)
