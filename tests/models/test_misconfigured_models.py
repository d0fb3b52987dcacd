"""A wrong key, model or URL and a used-up quota stop the build, whatever calls the model, and drop nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import seedbed
from seedbed.errors import BuildStopped
from seedbed.models import OpenAICompatible
from seedbed.testing import Reply, serve_openai

if TYPE_CHECKING:
    from pathlib import Path

    from seedbed.columns.spec import ColumnSpec

KINDS = ("chat", "structured", "embedding", "image", "custom", "blocking", "remote validation")
UNKNOWN = {"error": {"message": "no model 'small' here", "code": "model_not_found"}}
QUOTA = {"error": {"message": "pay first", "code": "insufficient_quota"}}
# What the server answers, the excerpt of it and the cause in the message.
MISTAKES = {
    "401": (Reply(status=401, body={"error": "no such key"}), "no such key", "answered 401"),
    "403": (Reply(status=403, body={"error": "not for you"}), "not for you", "answered 403"),
    "404": (Reply(status=404, body=UNKNOWN), "no model 'small' here", "answered 404"),
    "quota": (Reply(status=429, body=QUOTA), "pay first", "the quota of its key is used up"),
    "page": (Reply(body=b"<html>It works!</html>"), "It works!", "with a page in place of JSON"),
}


@seedbed.column
async def custom(topic: str, m: seedbed.Model) -> str:
    """An async function of the user's."""
    return await m.chat(f"Say {topic}.")


@seedbed.column
def blocking(topic: str, m: seedbed.Model) -> str:
    """A synchronous function of the user's."""
    return m.sync.chat(f"Say {topic}.")


def columns(url: str) -> dict[str, ColumnSpec]:
    """One column for each way to call a server."""
    return {
        "chat": seedbed.LLMText("text", model="m", prompt="Say {{ topic }}."),
        "structured": seedbed.LLMStructured("data", model="m", prompt="Say {{ topic }}.", schema={"type": "object"}),
        "embedding": seedbed.Embedding("vector", model="m", of="topic"),
        "image": seedbed.Image("picture", model="m", prompt="A {{ topic }}."),
        "custom": custom,
        "blocking": blocking,
        "remote validation": seedbed.Validation("verdict", of="topic", kind="remote", url=f"{url}/chat/completions"),
    }


def recipe(url: str, kind: str) -> seedbed.Recipe:
    """A column of this kind at this URL."""
    topic = seedbed.Category("topic", values=["tea", "bread"])
    model = OpenAICompatible(base_url=url, model="small", max_parallel_requests=2)
    return seedbed.Recipe(columns=[topic, columns(url)[kind]], models={"m": model})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_of_the_configuration_stops_the_build(kind: str, mistake: str, tmp_path: Path) -> None:
    """The message leads with the cause, has the text of the server once, and a fix; nothing is dropped."""
    reply, shown, cause = MISTAKES[mistake]
    async with serve_openai(script=lambda _: reply) as server:
        with pytest.raises(BuildStopped) as caught:
            await seedbed.build_async(recipe(server.url, kind), rows=30, out=tmp_path / "out")
        assert server.statistics.requests <= (4 if kind != "remote validation" else 33)  # at once
    message = str(caught.value)
    assert cause in message.partition(shown)[0]
    assert message.count(shown) == 1
    assert "; " in message.partition(shown)[2]
    assert caught.value.report is not None
    assert caught.value.report.dropped == ()
