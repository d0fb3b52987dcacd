"""A model of a recipe file that names no type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import seedbed as sb

if TYPE_CHECKING:
    from pathlib import Path


def test_a_model_without_a_type_is_openai_compatible(tmp_path: Path) -> None:
    """An address and a name are enough."""
    path = tmp_path / "r.yaml"
    path.write_text(
        "models: {writer: {base_url: http://127.0.0.1:1/v1, model: small}}\n"
        "columns: [{name: a, type: llm-text, model: writer, prompt: Say something.}]\n"
    )
    model = sb.load_recipe(path).models["writer"]
    assert isinstance(model, sb.OpenAICompatible)
    assert model.model == "small"
