from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from chatting import environment, fill_in, grow_specs, numbers, served_by

from seedbed.columns.spec import Environment, make_column
from seedbed.columns.text import Embedding, LLMText
from seedbed.errors import ConfigError
from seedbed.models import Scripted
from seedbed.models.answers import hash_vector
from seedbed.testing import serve_openai

if TYPE_CHECKING:
    from seedbed.models import ModelSpec

SPEC = Embedding("vector", model="embedder", of="text")


@pytest.mark.parametrize(("value", "text"), [("tea", "tea"), ({"a": "ä"}, '{"a": "ä"}'), (3, "3")])
async def test_text_and_other_values_are_embedded(value: Any, text: str) -> None:
    """Text is embedded as it is, other values as JSON."""
    async with environment({"embedder": Scripted()}) as here:
        assert await fill_in(SPEC, here, text=value) == list(hash_vector(text, 16))


async def test_null_has_no_vector() -> None:
    """A null is not sent to the model."""
    async with environment({"embedder": Scripted(error_share=1.0)}) as here:
        assert await fill_in(SPEC, here, text=None) is None


async def test_vectors_over_http_beside_a_chat_column() -> None:
    """Each cell is one call under the embedding key, with the usual retries; vectors are lists of 32-bit floats."""
    models: dict[str, ModelSpec] = {}
    async with serve_openai(record=True) as server:
        models |= {"writer": served_by(server), "embedder": served_by(server, parameters={"dimensions": 8})}
        specs = [
            numbers(),
            LLMText("text", model="writer", prompt="Ask about tea {{ n }}"),
            SPEC,
            Embedding("of_number", model="embedder", of="n", parameters={"dimensions": 4}),
        ]
        grown = await grow_specs(specs, models, rows=5)
        sent = [request.body for request in server.requests if request.path.endswith("/embeddings")]
        assert len(sent) == 10
        assert {len(body["input"]) for body in sent} == {1}
    assert grown.frame.schema["vector"] == pl.List(pl.Float32)
    assert grown.frame["vector"].list.len().to_list() == [8] * 5
    assert grown.frame["of_number"].list.len().to_list() == [4] * 5
    expected = hash_vector(grown.frame["text"][3], 8)
    assert grown.frame["vector"][3].to_list() == pytest.approx(expected, rel=1e-6)


async def test_rate_limits_and_server_errors_lose_no_vector() -> None:
    """The engine retries rate-limited and failed calls."""
    async with serve_openai(rate_limit_share=0.3, error_share=0.2, retry_after=0) as server:
        grown = await grow_specs([numbers("text"), SPEC], {"embedder": served_by(server)}, rows=20)
        assert server.statistics.statuses[429] > 0
        assert server.statistics.statuses[500] > 0
    assert grown.frame["vector"].null_count() == 0
    assert grown.frame.height == 20


def test_embedding_column_has_key_requirement_and_type() -> None:
    """Key, requirement and type are known before a run; a type in the spec takes precedence."""
    column = make_column(SPEC, Environment(models={"embedder": Scripted()}))
    assert (column.key, column.requires, column.dtype) == (
        "scripted scripted embedding",
        ("text",),
        pl.List(pl.Float32),
    )
    own = Embedding("vector", model="embedder", of="text", dtype=pl.Array(pl.Float64, 16))
    column = make_column(own, Environment(models={"embedder": Scripted()}))
    assert column.dtypes() == {"vector": pl.Array(pl.Float64, 16)}
    with pytest.raises(ConfigError, match="column 'vector': model 'embedder' is not in models"):
        make_column(SPEC, Environment())
    assert json.dumps(column.outputs) == '["vector"]'
