"""DataDesigner: a sampler and four text columns, with its defaults but for the number of calls at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import data_designer.config as dd
from data_designer.interface import DataDesigner

from .work import MODEL, PROMPTS, SAMPLER, Work, jinja, measure

if TYPE_CHECKING:
    from pathlib import Path


def make(work: Work, out: Path) -> int:
    """Write the dataset as DataDesigner does."""
    model = dd.ModelConfig(
        alias="model",
        model=MODEL,
        provider="server",
        inference_parameters=dd.ChatCompletionInferenceParams(max_parallel_requests=work.at_once),
        skip_health_check=True,
    )
    builder = dd.DataDesignerConfigBuilder(model_configs=[model])
    builder.add_column(
        dd.SamplerColumnConfig(name=SAMPLER, sampler_type=dd.SamplerType.UUID, params=dd.UUIDSamplerParams())
    )
    for name, prompt in PROMPTS.items():
        builder.add_column(dd.LLMTextColumnConfig(name=name, prompt=jinja(prompt), model_alias="model"))
    server = dd.ModelProvider(name="server", endpoint=work.url, api_key="none")
    designer = DataDesigner(artifact_path=out, model_providers=[server])
    designer.set_run_config(dd.RunConfig(otel_metrics_port=None))
    return len(designer.create(builder, num_records=work.rows).load_dataset())


if __name__ == "__main__":
    measure(make)
