"""seedbed: a sampler and four text columns, with its defaults but for the number of calls at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import seedbed

from .work import MODEL, PROMPTS, SAMPLER, Work, jinja, measure

if TYPE_CHECKING:
    from pathlib import Path


def make_recipe(work: Work) -> seedbed.Recipe:
    """The recipe; the endpoint is the one of the work."""
    return seedbed.Recipe(
        seed=3,
        models={"model": seedbed.OpenAICompatible(base_url=work.url, model=MODEL, max_parallel_requests=work.at_once)},
        columns=[
            seedbed.UUID(SAMPLER),
            *(seedbed.LLMText(name, model="model", prompt=jinja(prompt)) for name, prompt in PROMPTS.items()),
        ],
    )


def make(work: Work, out: Path) -> int:
    """Write the dataset as seedbed does."""
    return len(seedbed.build(make_recipe(work), rows=work.rows, out=out, progress="none").to_polars())


if __name__ == "__main__":
    measure(make)
