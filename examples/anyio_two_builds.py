"""Two builds at once that share one throttle, under anyio: together they keep to what the model takes.

`python anyio_two_builds.py asyncio` runs the very same under asyncio, `… trio` under trio. Needs no key and no network
(but for `pip install anyio`).
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

import seedbed as sb

AT_ONCE = 8
WRITER = sb.Scripted(latency=0.02)


def recipe(topic: str) -> sb.Recipe:
    """Questions about a topic."""
    return sb.Recipe(
        models={"writer": WRITER},
        columns=[
            sb.Category("angle", values=["history", "taste", "price"]),
            sb.LLMText("question", model="writer", prompt=f"One question on the {{{{ angle }}}} of {topic}."),
        ],
    )


async def main() -> None:
    """Build both and show what they had in common."""
    datasets: dict[str, sb.Dataset] = {}
    limits = {WRITER.key("chat"): sb.KeyLimits(max_parallel_requests=AT_ONCE)}
    with TemporaryDirectory() as directory:
        async with sb.open_throttles(limits) as throttles:

            async def build(topic: str) -> None:
                out = Path(directory, topic)
                datasets[topic] = await sb.build_async(recipe(topic), rows=40, out=out, throttles=throttles)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(build, "tea")
                tasks.start_soon(build, "bread")
            (shared,) = throttles.statistics().values()
        for topic, dataset in sorted(datasets.items()):
            print(f"{topic}: {dataset.rows} rows, {dataset.to_polars()['question'][0]}")
        print(f"{shared.accepted} calls under one limit of {shared.ceiling}")


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
