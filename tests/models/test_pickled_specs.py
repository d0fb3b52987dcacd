"""Model specs can be pickled."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

import seedbed as sb

if TYPE_CHECKING:
    from seedbed.models.base import ModelSpec

SPECS = [
    sb.OpenAICompatible(base_url="http://127.0.0.1:1/v1", model="m", max_parallel_requests=7, input_price=1.5),
    sb.Anthropic(model="m", max_parallel_requests=7, parameters={"temperature": {"uniform": [0, 1]}}),
    sb.Scripted(latency=0.4, max_parallel_requests=7, answers=["a", "b"], reasoning="because", parameters={"n": 1}),
    sb.Local(max_parallel_requests=2),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_a_spec_is_pickled_as_a_whole(spec: ModelSpec) -> None:
    """A spec equals its copy from pickle: simulations send recipes to other processes."""
    assert pickle.loads(pickle.dumps(spec)) == spec
