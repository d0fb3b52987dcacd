from .columns.base import CellContext, Column, Model
from .columns.best_of import BestOf, PreferencePair
from .columns.conversation import Conversation, Speaker
from .columns.custom import Custom, bridge, column
from .columns.distributions import Bernoulli, Binomial, Gaussian, Poisson, Scipy, Uniform
from .columns.expression import Expression
from .columns.judge import Judge, Score
from .columns.person import Person
from .columns.processors import Deduplicate, DropColumns, Filter, SchemaTransform
from .columns.sampler import UUID, Category, Datetime, Subcategory, Timedelta
from .columns.seed import Seed
from .columns.structured import LLMStructured
from .columns.text import Embedding, Image, LLMCode, LLMText
from .columns.tool_sources import FunctionTool, MCPServer
from .columns.validation import Validation
from .engine.api import Build, Preview, abandon_redo, build, build_async, open_build, preview, redo, resume
from .engine.checkpoint import FinishedGroup
from .engine.config import RunConfig
from .engine.estimate import ColumnEstimate
from .engine.source import load_recipe
from .engine.tasks import Processor
from .errors import (
    AllRowsDropped,
    BadOutput,
    BudgetExceeded,
    BuildError,
    BuildStopped,
    CandidatesExhausted,
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
from .graph import build_graph
from .models import Anthropic, Local, Message, OpenAICompatible, Scripted
from .observe.metrics import BuildMetrics
from .observe.preview import PreviewRow, Prompt
from .observe.report import BuildReport, TaskTrace
from .observe.telemetry import Telemetry
from .publish.export import Exported, export
from .recipe.acceptance import NearDuplicates
from .recipe.recipe import Recipe
from .recipe.stages import Group, Stage
from .runtime.throttle import KeyLimits, open_throttles
from .simulation.profiles import CallProfile
from .simulation.result import Simulation
from .simulation.run import simulate
from .store.dataset import Dataset

__all__ = [
    "UUID",
    "AllRowsDropped",
    "Anthropic",
    "BadOutput",
    "Bernoulli",
    "BestOf",
    "Binomial",
    "BudgetExceeded",
    "Build",
    "BuildError",
    "BuildMetrics",
    "BuildReport",
    "BuildStopped",
    "CallProfile",
    "CandidatesExhausted",
    "Category",
    "CellContext",
    "CellError",
    "CellTimeout",
    "Column",
    "ColumnEstimate",
    "ConfigError",
    "Conversation",
    "Custom",
    "Dataset",
    "DatasetGenerationError",
    "Datetime",
    "DeadlineExceeded",
    "Deduplicate",
    "DropColumns",
    "EarlyShutdown",
    "Embedding",
    "Exported",
    "Expression",
    "Filter",
    "FinishedGroup",
    "FunctionTool",
    "Gaussian",
    "Group",
    "Image",
    "Interrupted",
    "Judge",
    "KeyLimits",
    "LLMCode",
    "LLMStructured",
    "LLMText",
    "Local",
    "MCPServer",
    "ManifestError",
    "Message",
    "Model",
    "NearDuplicates",
    "OpenAICompatible",
    "OutputDirectoryError",
    "PartError",
    "Permanent",
    "Person",
    "Poisson",
    "PreferencePair",
    "Preview",
    "PreviewRow",
    "Processor",
    "ProcessorFailed",
    "Prompt",
    "QuotaExhausted",
    "RateLimited",
    "Recipe",
    "Retryable",
    "RunConfig",
    "SchemaConflict",
    "SchemaTransform",
    "Scipy",
    "Score",
    "Scripted",
    "Seed",
    "SeedbedError",
    "Simulation",
    "Speaker",
    "Stage",
    "StoreError",
    "Subcategory",
    "TaskTrace",
    "Telemetry",
    "ThreadsStuck",
    "Timedelta",
    "Uniform",
    "Validation",
    "WorkerCrashed",
    "abandon_redo",
    "bridge",
    "build",
    "build_async",
    "build_graph",
    "column",
    "export",
    "load_recipe",
    "open_build",
    "open_throttles",
    "preview",
    "redo",
    "resume",
    "simulate",
]
