"""Exceptions of nurseries that their callers do not see."""

from __future__ import annotations

import pytest
import trio

from seedbed.runtime.tasks import open_hidden_nursery, sole_leaf


async def fail(error: BaseException) -> None:
    """Fail as a task."""
    raise error


async def test_exceptions_of_the_block_keep_cause_and_context() -> None:
    """An exception or group of the block is not wrapped and has its own cause and context."""
    for mine in (KeyError("mine"), ExceptionGroup("mine", [KeyError("a")])):
        cause, context = ValueError("cause"), OSError("context")
        with pytest.raises(type(mine)) as caught:
            async with open_hidden_nursery("done") as nursery:
                nursery.start_soon(trio.sleep_forever)
                try:
                    raise context
                except OSError:
                    raise mine from cause
        assert caught.value is mine
        assert (mine.__cause__, mine.__context__) == (cause, context)


async def test_an_error_of_a_task_leaves_alone() -> None:
    """A single error of the tasks is raised unwrapped, several as a group."""
    for error in (KeyError("task"), SystemExit(3)):
        with pytest.raises(type(error)) as caught:
            async with open_hidden_nursery("done") as nursery:
                nursery.start_soon(fail, error)
                await trio.sleep_forever()
        assert caught.value is error
    with pytest.raises(ExceptionGroup):
        async with open_hidden_nursery("done") as nursery:
            nursery.start_soon(fail, KeyError("a"))
            nursery.start_soon(fail, KeyError("b"))
            await trio.sleep_forever()


async def test_a_cancellation_from_outside_adds_nothing_to_the_error_of_the_block() -> None:
    """The block's exception is raised alone although tasks were cancelled, and a cancelled block stays cancelled."""
    with pytest.raises(KeyError, match="mine"), trio.CancelScope() as scope:
        async with open_hidden_nursery("done") as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.lowlevel.checkpoint()
            scope.cancel()
            raise KeyError("mine")
    with trio.CancelScope() as scope:
        async with open_hidden_nursery("done") as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_nursery_that_ends_its_block_raises_nothing() -> None:
    """A block that was cancelled through the nursery itself ends without an error."""
    async with open_hidden_nursery("done") as nursery:
        nursery.cancel_scope.cancel()
        await trio.sleep_forever()


def test_the_sole_leaf_of_a_group() -> None:
    """A group of one, however deep, is that one; any other stays."""
    error = KeyError("a")
    several = ExceptionGroup("", [error, KeyError("b")])
    assert sole_leaf(ExceptionGroup("", [ExceptionGroup("", [error])])) is error
    assert sole_leaf(error) is error
    assert sole_leaf(several) is several
