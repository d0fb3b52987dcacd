"""Exception groups of our own nurseries, taken apart."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, however deep, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


def sole_leaf(error: BaseException) -> BaseException:
    """The exception of a group that holds only one, however deep; any other error as it is."""
    found = list(leaves(error))
    return found[0] if len(found) == 1 else error


@asynccontextmanager
async def open_hidden_nursery(reason: str) -> AsyncIterator[trio.Nursery]:
    """Open a nursery that the caller of the block does not know of; its tasks are cancelled when the block ends.

    What the block raises leaves as it was, and so does the only error of a task: not in a group that nobody asked for.
    `reason` is that of the cancellation.
    """
    raised: BaseException | None = None
    leaving: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                raised = error
                raise
            nursery.cancel_scope.cancel(reason=reason)
    except BaseExceptionGroup as group:
        leaving = raised if raised is not None and _adds_nothing(group, raised) else sole_leaf(group)
    # Outside of `except`, so that the group does not become the context of one of its own exceptions.
    if leaving is not None:
        raise leaving


def _adds_nothing(group: BaseExceptionGroup[BaseException], raised: BaseException) -> bool:
    """Whether a nursery's group holds all that its block raised, and else only cancellations of our tasks.

    Leaves are compared, because a cancel scope copies the groups that pass through it.
    """
    own, all_of_it = set(map(id, leaves(raised))), list(leaves(group))
    return own <= set(map(id, all_of_it)) and all(id(e) in own or isinstance(e, trio.Cancelled) for e in all_of_it)
