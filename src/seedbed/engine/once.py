"""Columns that run once per key (`once_per`): the first cell of a key runs, and the others take its answer.

A cell that waits is no task: it holds neither a permit nor a slot. If the cell that runs is not needed any more,
because its row was dropped, the next one that waits runs in its place. A cell that fails for good fails for all cells
of its key, as its answer would have been the answer of all. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..observe.report import Origin, Usage


@attrs.frozen(kw_only=True, eq=False)
class SharedAnswer:
    """The value that all cells of a key have, or why all of them failed."""

    value: Any = None
    origin: Origin | None = None
    error: str | None = None
    code: str = ""
    attempts: int = 1


@attrs.define(eq=False)
class Once:
    """The answers of one column, by key. Changed by the row groups of its stage."""

    _answers: dict[bytes, SharedAnswer] = attrs.field(factory=dict)
    # Of keys whose first cell runs: what wakes the others, in the order in which they came.
    _waiting: dict[bytes, deque[Callable[[], None]]] = attrs.field(factory=dict)
    # Calls that were answered in a cell that an earlier run did not finish, and what they used, by key.
    _calls: dict[bytes, tuple[dict[bytes, Any], Usage]] = attrs.field(factory=dict)

    def find(self, key: bytes) -> SharedAnswer | None:
        return self._answers.get(key)

    def claim(self, key: bytes, wake: Callable[[], None]) -> bool:
        """True if the caller is to run; otherwise `wake` is called when there is an answer, or it may be its turn."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque()
            return True
        waiting.append(wake)
        return False

    def finish(self, key: bytes, answer: SharedAnswer) -> None:
        """The cell that ran has an answer, or has failed for good: wake all that wait."""
        self._answers[key] = answer
        for wake in self._waiting.pop(key, ()):
            wake()

    def give_up(self, key: bytes) -> None:
        """The cell that ran is not needed any more: the next one that still is runs."""
        waiting = self._waiting.pop(key, None)
        while waiting and key not in self._waiting and key not in self._answers:
            waiting.popleft()()
        if waiting:
            self._waiting.setdefault(key, deque()).extend(waiting)

    def restore(self, key: bytes, answer: SharedAnswer) -> None:
        """An earlier run finished the cell."""
        self._answers[key] = answer
        self._calls.pop(key, None)

    def restore_call(self, key: bytes, call: bytes, answer: Any, spent: Usage) -> None:
        """A call of the cell was answered in an earlier run."""
        known, _ = self._calls.get(key, ({}, spent))
        self._calls[key] = ({**known, call: answer}, spent)

    def take_calls(self, key: bytes) -> tuple[dict[bytes, Any], Usage] | None:
        """What is known of the calls of a cell that is to run, once."""
        return self._calls.pop(key, None)
