"""seedbed builds datasets: columns that depend on each other, each cell run as soon as its inputs are available.

Each public name is imported when it is first used, so that the command can print its usage, and be interrupted, without
waiting for polars. Type checkers read `__init__.pyi`; tests/test_public_names.py compares the two.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES_BY_MODULE = {
    "columns.base": "CellContext Column Model",
    "columns.best_of": "BestOf PreferencePair",
    "columns.conversation": "Conversation Speaker",
    "columns.custom": "column Custom bridge",
    "columns.distributions": "Bernoulli Binomial Gaussian Poisson Scipy Uniform",
    "columns.expression": "Expression",
    "columns.judge": "Judge Score",
    "columns.person": "Person",
    "columns.processors": "Deduplicate DropColumns Filter SchemaTransform",
    "columns.sampler": "UUID Category Datetime Subcategory Timedelta",
    "columns.seed": "Seed",
    "columns.structured": "LLMStructured",
    "columns.tool_sources": "FunctionTool MCPServer",
    "columns.text": "Embedding Image LLMCode LLMText",
    "columns.validation": "Validation",
    "engine.api": "Build Preview abandon_redo build build_async open_build preview redo resume",
    "engine.checkpoint": "FinishedGroup",
    "engine.config": "RunConfig",
    "engine.estimate": "ColumnEstimate",
    "engine.tasks": "Processor",
    "engine.source": "load_recipe",
    "errors": (
        "AllRowsDropped BadOutput BudgetExceeded BuildError BuildStopped CandidatesExhausted CellError CellTimeout "
        "ConfigError DatasetGenerationError "
        "DeadlineExceeded EarlyShutdown Interrupted ManifestError OutputDirectoryError PartError Permanent "
        "ProcessorFailed QuotaExhausted RateLimited Retryable SchemaConflict SeedbedError StoreError ThreadsStuck "
        "WorkerCrashed"
    ),
    "graph": "build_graph",
    "models": "Anthropic Local Message OpenAICompatible Scripted",
    "observe.metrics": "BuildMetrics",
    "observe.preview": "PreviewRow Prompt",
    "observe.telemetry": "Telemetry",
    "observe.report": "BuildReport TaskTrace",
    "publish.export": "Exported export",
    "recipe.acceptance": "NearDuplicates",
    "recipe.recipe": "Recipe",
    "recipe.stages": "Group Stage",
    "runtime.throttle": "KeyLimits open_throttles",
    "simulation.profiles": "CallProfile",
    "simulation.result": "Simulation",
    "simulation.run": "simulate",
    "store.dataset": "Dataset",
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES_BY_MODULE.items() for name in names.split()}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name, or a package of seedbed, when it is first used."""
    if name in _MODULES:
        found = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
        return found
    package = f"{__name__}.{name}"
    if not name.startswith("_"):
        try:
            return importlib.import_module(package)
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_MODULES)
