"""By hand: asyncio, aiohttp and a semaphore, row by row. What somebody writes who needs this once."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp

from .work import PROMPTS, SAMPLER, Work, body, measure

if TYPE_CHECKING:
    from pathlib import Path

Ask = Callable[[str], Awaitable[str]]
MakeRow = Callable[[Ask], Awaitable[dict[str, str]]]


@asynccontextmanager
async def open_ask(work: Work) -> AsyncIterator[Ask]:
    """A function that asks the model; a semaphore holds back what would be too much at once."""
    semaphore = asyncio.Semaphore(work.at_once)
    connector = aiohttp.TCPConnector(limit=work.at_once)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(prompt: str) -> str:
            async with semaphore, session.post(f"{work.url}/chat/completions", json=body(prompt)) as response:
                response.raise_for_status()
                answer = await response.json()
                text: str = answer["choices"][0]["message"]["content"]
                return text

        yield ask


async def make_row(ask: Ask) -> dict[str, str]:
    """One row, from its sampler to its last column."""
    row = {SAMPLER: str(uuid.uuid4())}
    row["b"], row["c"] = await asyncio.gather(ask(PROMPTS["b"].format(**row)), ask(PROMPTS["c"].format(**row)))
    row["d"] = await ask(PROMPTS["d"].format(**row))
    row["e"] = await ask(PROMPTS["e"].format(**row))
    return row


async def make_rows(work: Work, make_row: MakeRow) -> list[dict[str, str]]:
    """All rows, a task for each."""
    async with open_ask(work) as ask:
        return await asyncio.gather(*(make_row(ask) for _ in range(work.rows)))


def write_rows(rows: list[dict[str, str]], out: Path) -> int:
    """Write rows as lines of JSON; how many there were."""
    out.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return len(rows)


def make(work: Work, out: Path) -> int:
    """Write the dataset."""
    return write_rows(asyncio.run(make_rows(work, make_row)), out)


if __name__ == "__main__":
    measure(make)
