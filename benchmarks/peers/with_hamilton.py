"""Hamilton's async driver with aiohttp: a function for each column, one execution of the graph for each row."""

from __future__ import annotations

import asyncio
import sys
import uuid
from types import ModuleType
from typing import TYPE_CHECKING

from hamilton import async_driver

from .with_aiohttp import Ask, make_rows, write_rows
from .work import PROMPTS, SAMPLER, Work, measure

if TYPE_CHECKING:
    from pathlib import Path


async def b(a: str, ask: Ask) -> str:
    """A question."""
    return await ask(PROMPTS["b"].format(a=a))


async def c(a: str, ask: Ask) -> str:
    """A fact."""
    return await ask(PROMPTS["c"].format(a=a))


async def d(a: str, b: str, c: str, ask: Ask) -> str:
    """An answer."""
    return await ask(PROMPTS["d"].format(a=a, b=b, c=c))


async def e(a: str, d: str, ask: Ask) -> str:
    """The answer in short."""
    return await ask(PROMPTS["e"].format(a=a, d=d))


def make_graph() -> ModuleType:
    """The functions above as a module of their own: Hamilton takes every function of a module for a node."""
    graph = ModuleType("graph")
    for function in (b, c, d, e):
        function.__module__ = graph.__name__
        setattr(graph, function.__name__, function)
    sys.modules[graph.__name__] = graph
    graph.__dict__.update(Ask=Ask)  # what the annotations name
    return graph


async def run(work: Work) -> list[dict[str, str]]:
    """As by hand, with the driver in place of what calls the functions in their order."""
    driver = await async_driver.Builder().with_modules(make_graph()).build()

    async def make_row(ask: Ask) -> dict[str, str]:
        drawn = {SAMPLER: str(uuid.uuid4())}
        return {**drawn, **await driver.execute(list(PROMPTS), inputs={**drawn, "ask": ask})}

    return await make_rows(work, make_row)


def make(work: Work, out: Path) -> int:
    """Write the dataset."""
    return write_rows(asyncio.run(run(work)), out)


if __name__ == "__main__":
    measure(make)
