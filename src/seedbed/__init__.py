"""seedbed builds datasets: columns that depend on each other, each cell run as soon as its inputs are there.

Each public name is imported when it is first used, so that the command can print its usage, and be interrupted, without
waiting for polars. Type checkers read `__init__.pyi`; tests/test_public_names.py compares the two.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES_BY_MODULE = {
    "engine.api": (
        "Build",
        "Preview",
        "build",
        "build_async",
        "open_build",
        "preview",
        "resume",
    ),
    "engine.checkpoint": ("FinishedGroup",),
    "engine.config": ("RunConfig",),
    "engine.processor": ("Processor",),
    "engine.source": ("load_recipe",),
    "errors": (
        "BadOutput",
        "BudgetExceeded",
        "BuildError",
        "BuildStopped",
        "CellError",
        "CellTimeout",
        "ConfigError",
        "DatasetGenerationError",
        "DeadlineExceeded",
        "EarlyShutdown",
        "Interrupted",
        "ManifestError",
        "OutputDirectoryError",
        "PartError",
        "Permanent",
        "ProcessorFailed",
        "QuotaExhausted",
        "RateLimited",
        "Retryable",
        "SchemaConflict",
        "SeedbedError",
        "StoreError",
        "ThreadsStuck",
        "WorkerCrashed",
    ),
    "generators": (
        "CellContext",
        "Column",
        "bridge",
    ),
    "generators.custom": ("column",),
    "graph": ("build_graph",),
    "models": (
        "Anthropic",
        "Local",
        "Message",
        "Model",
        "OpenAICompatible",
        "Scripted",
    ),
    "observe.report": ("BuildReport",),
    "observe.trace": ("TaskTrace",),
    "recipe.custom": ("Custom",),
    "recipe.expression": ("Expression",),
    "recipe.llm": (
        "Judge",
        "LLMCode",
        "LLMStructured",
        "LLMText",
    ),
    "recipe.media": (
        "Embedding",
        "Image",
    ),
    "recipe.processors": (
        "Deduplicate",
        "DropColumns",
        "Filter",
        "SchemaTransform",
    ),
    "recipe.recipe": ("Recipe",),
    "recipe.samplers": (
        "UUID",
        "Bernoulli",
        "Binomial",
        "Category",
        "Datetime",
        "Gaussian",
        "Person",
        "Poisson",
        "Scipy",
        "Subcategory",
        "Timedelta",
        "Uniform",
    ),
    "recipe.scores": ("Score",),
    "recipe.seed": ("Seed",),
    "recipe.validation": ("Validation",),
    "runtime.throttle": (
        "KeyLimits",
        "open_throttles",
    ),
    "simulation.api": ("simulate",),
    "simulation.profiles": ("CallProfile",),
    "simulation.result": ("Simulation",),
    "store.dataset": ("Dataset",),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES_BY_MODULE.items() for name in names}
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
