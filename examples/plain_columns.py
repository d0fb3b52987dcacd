"""Product reviews: columns that depend on each other, filled by a stand-in for a model, written as parquet and shown.

Needs no key and no network. `ask` stands where a call to a model would be: it takes a while, refuses now and then as a
busy server does, and always answers the same question in the same way.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import polars as pl
import trio

import seedbed

OUT = Path("data/reviews")
PRODUCTS = ["kettle", "lamp", "rucksack", "notebook", "bicycle bell"]
MOODS = ["delighted", "content", "torn", "annoyed"]
OPENINGS = {
    "delighted": "I would buy this {product} again at once.",
    "content": "A {product} that does what it should.",
    "torn": "I like the look of this {product}, less so its finish.",
    "annoyed": "This {product} went back after two days.",
}
ENDINGS = ["It arrived on time.", "The box was dented.", "My sister has one now too.", "The colour is lovely."]


def draw(question: str, count: int) -> int:
    """A number below `count` that depends on the question alone."""
    return int.from_bytes(hashlib.blake2b(question.encode(), digest_size=4).digest()) % count


calls: dict[str, int] = {}


async def ask(question: str, context: seedbed.CellContext) -> int:
    """Stands for a model: the first time that every eleventh question is asked, the server is too busy for it."""
    calls[question] = calls.get(question, 0) + 1
    await trio.sleep(0.005)
    if calls[question] == 1 and draw(question, 11) == 0:
        raise seedbed.RateLimited("too many requests", retry_after=0.05)
    await trio.sleep(0.015)
    context.report_usage(input_tokens=len(question.split()), output_tokens=20)
    return draw(question, 1000)


def product(rows: range) -> list[str]:
    """From scratch: gets row numbers, gives a value for each."""
    return [PRODUCTS[row % len(PRODUCTS)] for row in rows]


def customer(rows: range) -> list[str]:
    """Who writes; drawn by the row's number, so that it is the same in every run."""
    return [f"customer {1000 + draw(str(row), 9000)}" for row in rows]


async def mood(product: str, customer: str, context: seedbed.CellContext) -> str:
    """A cell: its parameters are the columns that it needs."""
    return MOODS[await ask(f"How does {customer} feel about the {product}?", context) % len(MOODS)]


async def review(product: str, mood: str, customer: str, context: seedbed.CellContext) -> str:
    """What the customer writes."""
    ending = ENDINGS[await ask(f"Write a review: {customer}, {mood}, {product}", context) % len(ENDINGS)]
    return f"{OPENINGS[mood].format(product=product)} {ending}"


async def reply(review: str, customer: str, context: seedbed.CellContext) -> str:
    """What the shop answers."""
    kind = await ask(f"Answer {customer}: {review}", context)
    return f"Dear {customer}, thank you for writing to us" + (", we have sent a voucher." if kind % 3 == 0 else ".")


async def stars(review: str, mood: str, context: seedbed.CellContext) -> int:
    """A judge; runs beside `reply`, which needs the same review."""
    if await ask(f"How many stars is this? {review}", context) % 97 == 0:
        raise seedbed.Permanent("the judge gave no number")
    return 5 - MOODS.index(mood)


def words(frame: pl.DataFrame) -> pl.Series:
    """A whole column at once: gets a frame, gives as many values as it has rows."""
    return frame["review"].str.split(" ").list.len()


def main() -> None:
    """Build 200 rows and show them."""
    if OUT.exists():
        shutil.rmtree(OUT)
    dataset = seedbed.build(
        [
            seedbed.Column("product", product, kind="from_scratch"),
            seedbed.Column("customer", customer, kind="from_scratch"),
            seedbed.Column("mood", mood, key="writer"),
            seedbed.Column("review", review, key="writer"),
            seedbed.Column("reply", reply, key="writer"),
            seedbed.Column("stars", stars, key="judge", dtype=int),
            seedbed.Column("words", words, kind="full_column", requires=["review"]),
        ],
        rows=200,
        out=OUT,
        config=seedbed.RunConfig(buffer_size=50),
        limits={
            "writer": seedbed.KeyLimits(max_parallel_requests=32),
            "judge": seedbed.KeyLimits(max_parallel_requests=8),
        },
    )
    report = dataset.report
    with pl.Config(tbl_rows=8, fmt_str_lengths=60, tbl_width_chars=160):
        sys.stdout.write(f"{dataset.to_polars().head(8)}\n")
    sys.stdout.write(f"{report}\n")
    for key, throttle in report.throttles.items():
        sys.stdout.write(f"{key}: {throttle.sent} calls, {throttle.rate_limited} rate-limited and sent again later\n")
    for reason, count in report.drops_by_reason.items():
        sys.stdout.write(f"dropped {count} rows: {reason}\n")
    sys.stdout.write(f"parquet in {OUT}: {', '.join(sorted(path.name for path in OUT.glob('*.parquet')))}\n")


if __name__ == "__main__":
    main()
