"""Cells that share answers, whatever happens to those that run: one of a key at a time, and none waits for ever."""

from __future__ import annotations

from functools import partial

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from seedbed.engine.once import Once, SharedAnswer

KEYS = (b"a", b"b")


class SharedCells(RuleBasedStateMachine):
    """Cells of two keys, as a row group has them: they take an answer, run, or wait."""

    def __init__(self) -> None:
        super().__init__()
        self.once = Once()
        self.running: dict[bytes, int] = {}
        self.waiting: dict[int, bytes] = {}
        self.done: dict[int, SharedAnswer] = {}
        self.gone: set[int] = set()  # cells whose row was dropped
        self.cells = 0

    def _ready(self, cell: int, key: bytes) -> None:
        self.waiting.pop(cell, None)
        if cell in self.gone or cell in self.done:
            return
        answer = self.once.find(key)
        if answer is not None:
            self.done[cell] = answer
        elif self.once.claim(key, partial(self._ready, cell, key)):
            assert key not in self.running, "two cells of one key run"
            self.running[key] = cell
        else:
            self.waiting[cell] = key

    @rule(key=st.sampled_from(KEYS))
    def cell_is_ready(self, key: bytes) -> None:
        """One more cell has its inputs."""
        self.cells += 1
        self._ready(self.cells, key)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), fails=st.booleans())
    def cell_ends(self, data: st.DataObject, fails: bool) -> None:
        """A cell that runs has an answer, or fails for good."""
        key = data.draw(st.sampled_from(sorted(self.running)))
        cell = self.running.pop(key)
        answer = SharedAnswer(error="no") if fails else SharedAnswer(value=cell)
        self.done[cell] = answer
        self.once.finish(key, answer)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def running_cell_is_dropped(self, data: st.DataObject) -> None:
        """The row of a cell that runs is dropped."""
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.gone.add(self.running.pop(key))
        self.once.give_up(key)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def waiting_cell_is_dropped(self, data: st.DataObject) -> None:
        """The row of a cell that waits is dropped."""
        cell = data.draw(st.sampled_from(sorted(self.waiting)))
        self.gone.add(cell)
        del self.waiting[cell]

    @invariant()
    def none_waits_for_nothing(self) -> None:
        """A cell waits only while another one of its key runs, and there is no answer yet."""
        for key in self.waiting.values():
            assert key in self.running
            assert self.once.find(key) is None

    @invariant()
    def none_is_lost(self) -> None:
        """Each cell is done, runs, waits, or is not needed any more; all answers of a key are one."""
        assert len({*self.done, *self.running.values(), *self.waiting, *self.gone}) == self.cells


TestSharedCells = SharedCells.TestCase
