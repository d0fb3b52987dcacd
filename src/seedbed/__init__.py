"""seedbed grows datasets: columns that depend on each other, each cell run as soon as its inputs are there."""

from .build.admission import FinishedGroup
from .build.api import Build, Preview, build, build_async, open_build, preview, resume
from .build.config import RunConfig
from .build.processor import Processor
from .errors import (
    BadOutput,
    BudgetExceeded,
    BuildError,
    BuildStopped,
    CellError,
    CellTimeout,
    ConfigError,
    DatasetGenerationError,
    DeadlineExceeded,
    EarlyShutdown,
    Interrupted,
    ManifestError,
    OutputDirectoryError,
    PartError,
    Permanent,
    ProcessorFailed,
    QuotaExhausted,
    RateLimited,
    Retryable,
    SchemaConflict,
    SeedbedError,
    StoreError,
    ThreadsStuck,
    WorkerCrashed,
)
from .generators import CellContext, Column, bridge
from .graph import build_graph
from .observe.report import BuildReport
from .observe.trace import TaskTrace
from .runtime.throttle import KeyLimits, open_throttles
from .store.dataset import Dataset

__all__ = [
    "BadOutput",
    "BudgetExceeded",
    "Build",
    "BuildError",
    "BuildReport",
    "BuildStopped",
    "CellContext",
    "CellError",
    "CellTimeout",
    "Column",
    "ConfigError",
    "Dataset",
    "DatasetGenerationError",
    "DeadlineExceeded",
    "EarlyShutdown",
    "FinishedGroup",
    "Interrupted",
    "KeyLimits",
    "ManifestError",
    "OutputDirectoryError",
    "PartError",
    "Permanent",
    "Preview",
    "Processor",
    "ProcessorFailed",
    "QuotaExhausted",
    "RateLimited",
    "Retryable",
    "RunConfig",
    "SchemaConflict",
    "SeedbedError",
    "StoreError",
    "TaskTrace",
    "ThreadsStuck",
    "WorkerCrashed",
    "bridge",
    "build",
    "build_async",
    "build_graph",
    "open_build",
    "open_throttles",
    "preview",
    "resume",
]
