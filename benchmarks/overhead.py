"""What the engine costs per cell and per model call, against loops that do only what no design can avoid.

20,000 rows of five columns that do nothing. The loop spawns, for as many cells, a trio task that enters a cancel scope,
takes and releases a limiter and sends on a memory channel.

A recipe with one `LLMText` column, built into a directory with journal and parts, against a server on loopback in a
process of its own. Beside it the same calls by hand: a trio task for each row, a limiter, the same HTTP client, the
same JSON library, and lines of JSON at the end.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import uuid
from functools import partial
from pathlib import Path

import trio

import seedbed as sb
from seedbed import RunConfig
from seedbed.models.http import open_http
from seedbed.testing import serve_openai_process

from .common import (
    DIAMOND,
    Bar,
    Findings,
    Table,
    best_of,
    build_in_memory,
    count_paths,
    counted_paths,
    cpu_seconds,
    expect,
    main,
    make_columns,
)
from .peers.processes import ANSWER
from .peers.work import MODEL, body

AT_ONCE = 128
BAR = 2.0
CALL_BAR = 1.6
LATENCY = 0.05
PROMPT = "Ask one curious question about item {{ item }}."


async def bare_loop(cells: int) -> None:
    """Run that many tasks, 128 at once; completions are drained as they come."""
    limiter = trio.CapacityLimiter(AT_ONCE)
    send, receive = trio.open_memory_channel[int](math.inf)

    async def cell(index: int) -> None:
        with trio.CancelScope():
            async with limiter:
                pass
        send.send_nowait(index)

    started = done = 0
    async with trio.open_nursery() as nursery:
        while done < cells:
            while started < cells and started - done < AT_ONCE:
                nursery.start_soon(cell, started)
                started += 1
            await receive.receive()
            done += 1
            while True:
                try:
                    receive.receive_nowait()
                except trio.WouldBlock:
                    break
                done += 1


def bare_cpu(cells: int) -> float:
    """CPU of the bare loop."""
    return cpu_seconds(partial(trio.run, bare_loop, cells))[0]


def engine_cpu(rows: int, key: str | None) -> float:
    """CPU of building the diamond; all columns have the same key, or none."""
    columns = make_columns(DIAMOND, count_paths(DIAMOND), lambda _: key)
    build = partial(build_in_memory, columns, rows=rows, at_once=AT_ONCE, config=RunConfig())
    cpu, finished = cpu_seconds(partial(trio.run, build))
    for name, value in counted_paths(DIAMOND).items():
        expect(finished.values()[name] == [value] * rows, f"column {name!r} is not {value} everywhere")
    return cpu


async def call_by_hand(url: str, rows: int) -> list[dict[str, str]]:
    """Fill the rows as one would without seedbed."""
    limiter = trio.CapacityLimiter(AT_ONCE)
    written: list[dict[str, str]] = []
    async with open_http() as http:
        endpoint = http.endpoint("POST", f"{url}/chat/completions", {"content-type": "application/json"})

        async def fill_row() -> None:
            async with limiter:
                item = str(uuid.uuid4())
                prompt = f"Ask one curious question about item {item}."
                response = await endpoint.send(json.dumps(body(prompt)).encode())
                expect(response.status == 200, f"the server answered {response.status}")
                answer = json.loads(response.body)
                written.append({"item": item, "question": answer["choices"][0]["message"]["content"].strip()})

        async with trio.open_nursery() as nursery:
            for _ in range(rows):
                nursery.start_soon(fill_row)
    return written


def write_by_hand(url: str, rows: int, out: Path) -> None:
    """Fill the rows and write them as lines of JSON."""
    written = trio.run(call_by_hand, url, rows)
    out.write_text("".join(f"{json.dumps(row)}\n" for row in written), encoding="utf-8")


def by_hand_cpu(url: str, rows: int) -> float:
    """CPU of the calls by hand."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "out.jsonl")
        cpu, _ = cpu_seconds(partial(write_by_hand, url, rows, out))
        lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    check_rows([line["item"] for line in lines], [line["question"] for line in lines], rows)
    return cpu


def recipe_cpu(url: str, rows: int) -> float:
    """CPU of building the recipe into a directory."""
    recipe = sb.Recipe(
        seed=3,
        models={"model": sb.OpenAICompatible(base_url=url, model=MODEL, max_parallel_requests=AT_ONCE)},
        columns=[sb.UUID("item"), sb.LLMText("question", model="model", prompt=PROMPT)],
    )
    with tempfile.TemporaryDirectory() as directory:
        cpu, dataset = cpu_seconds(partial(sb.build, recipe, rows=rows, out=Path(directory, "out")))
        frame = dataset.to_polars()
    check_rows(frame["item"].to_list(), frame["question"].to_list(), rows)
    return cpu


def check_rows(items: list[str], questions: list[str], rows: int) -> None:
    """Every row must be there, once, with the answer of the server."""
    expect(len(set(items)) == rows, f"{len(set(items))} different items instead of {rows}")
    expect(questions == [ANSWER] * rows, "a row does not hold what the server answered")


def measure(short: bool) -> Findings:
    """Compare the engine with the bare loop, and a recipe with its calls by hand."""
    cells, calls = measure_cells(short), measure_calls(short)
    return Findings(tables=[*cells.tables, *calls.tables], bars=[*cells.bars, *calls.bars])


def measure_calls(short: bool) -> Findings:
    """Compare a recipe with one model column with the same calls by hand."""
    rows, rounds = (100, 1) if short else (4_000, 8)
    with serve_openai_process(latency=0.005 if short else LATENCY, answer=ANSWER) as server:
        by_hand, recipe = partial(by_hand_cpu, server.url), partial(recipe_cpu, server.url)
        by_hand(20), recipe(20)  # imports and first uses are not measured
        best = best_of(rounds, {"by hand": partial(by_hand, rows), "recipe": partial(recipe, rows)})
        asked = server.statistics()["requests"]
    expect(asked == 2 * (20 + rounds * rows), f"the server had {asked} calls: not one for each row")
    table = Table(
        title=f"CPU per model call, {rows:,} rows, {AT_ONCE} at once, best of {rounds}",
        rows=[{"": name, "µs": cpu / rows * 1e6, "÷ by hand": cpu / best["by hand"]} for name, cpu in best.items()],
    )
    measured = best["recipe"] / best["by hand"]
    return Findings(
        tables=[table], bars=[Bar(name="CPU per model call ÷ by hand", measured=measured, allowed=CALL_BAR)]
    )


def measure_cells(short: bool) -> Findings:
    """Compare the engine, with and without a throttle key, with the bare loop."""
    rows, rounds = (500, 1) if short else (20_000, 12)
    cells = rows * len(DIAMOND)
    best = best_of(
        rounds,
        {
            "bare loop": partial(bare_cpu, cells),
            "engine, one key": partial(engine_cpu, rows, "key"),
            "engine, no key": partial(engine_cpu, rows, None),
        },
    )
    bare = best["bare loop"]
    table = Table(
        title=f"CPU per cell, {rows:,} rows × {len(DIAMOND)} columns, best of {rounds}",
        rows=[{"": name, "µs": cpu / cells * 1e6, "÷ bare": cpu / bare} for name, cpu in best.items()],
    )
    return Findings(
        tables=[table],
        bars=[Bar(name="CPU per cell with a key ÷ bare loop", measured=best["engine, one key"] / bare, allowed=BAR)],
    )


if __name__ == "__main__":
    sys.exit(main("overhead", measure))
