from .engine.api import Build, Preview, build, build_async, open_build, preview, resume
from .engine.checkpoint import FinishedGroup
from .engine.config import RunConfig
from .engine.processor import Processor
from .engine.source import load_recipe
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
from .generators.custom import column
from .graph import build_graph
from .models import Anthropic, Local, Message, Model, OpenAICompatible, Scripted
from .observe.report import BuildReport
from .observe.trace import TaskTrace
from .recipe.custom import Custom
from .recipe.expression import Expression
from .recipe.llm import Judge, LLMCode, LLMStructured, LLMText
from .recipe.media import Embedding, Image
from .recipe.processors import Deduplicate, DropColumns, Filter, SchemaTransform
from .recipe.recipe import Recipe
from .recipe.samplers import (
    UUID,
    Bernoulli,
    Binomial,
    Category,
    Datetime,
    Gaussian,
    Person,
    Poisson,
    Scipy,
    Subcategory,
    Timedelta,
    Uniform,
)
from .recipe.scores import Score
from .recipe.seed import Seed
from .recipe.validation import Validation
from .runtime.throttle import KeyLimits, open_throttles
from .simulation.api import simulate
from .simulation.profiles import CallProfile
from .simulation.result import Simulation
from .store.dataset import Dataset

__all__ = [
    "UUID",
    "Anthropic",
    "BadOutput",
    "Bernoulli",
    "Binomial",
    "BudgetExceeded",
    "Build",
    "BuildError",
    "BuildReport",
    "BuildStopped",
    "CallProfile",
    "Category",
    "CellContext",
    "CellError",
    "CellTimeout",
    "Column",
    "ConfigError",
    "Custom",
    "Dataset",
    "DatasetGenerationError",
    "Datetime",
    "DeadlineExceeded",
    "Deduplicate",
    "DropColumns",
    "EarlyShutdown",
    "Embedding",
    "Expression",
    "Filter",
    "FinishedGroup",
    "Gaussian",
    "Image",
    "Interrupted",
    "Judge",
    "KeyLimits",
    "LLMCode",
    "LLMStructured",
    "LLMText",
    "Local",
    "ManifestError",
    "Message",
    "Model",
    "OpenAICompatible",
    "OutputDirectoryError",
    "PartError",
    "Permanent",
    "Person",
    "Poisson",
    "Preview",
    "Processor",
    "ProcessorFailed",
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
    "StoreError",
    "Subcategory",
    "TaskTrace",
    "ThreadsStuck",
    "Timedelta",
    "Uniform",
    "Validation",
    "WorkerCrashed",
    "bridge",
    "build",
    "build_async",
    "build_graph",
    "column",
    "load_recipe",
    "open_build",
    "open_throttles",
    "preview",
    "resume",
    "simulate",
]
