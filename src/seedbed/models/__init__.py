"""Who answers: models behind HTTP, the embedded one, the scripted one, and what is common to them.

May import errors, graph and runtime; generators, build and cli import it.
"""

from .anthropic import Anthropic
from .base import (
    ChatAnswer,
    ChatRequest,
    EmbeddingAnswer,
    Image,
    ImageAnswer,
    Message,
    ModelClient,
    ModelSpec,
    Tokens,
)
from .dedupe import Dedupe
from .http import HttpClient, HttpResponse, open_http
from .local import Local, fetch_weights
from .model import Model, SyncModel
from .openai import OpenAICompatible
from .opening import open_models
from .scripted import Scripted

MODEL_TYPES: dict[str, type] = {spec.type: spec for spec in (OpenAICompatible, Anthropic, Local, Scripted)}
"""The spec class of each type name that a recipe file may use; openai where it names none."""

__all__ = [
    "MODEL_TYPES",
    "Anthropic",
    "ChatAnswer",
    "ChatRequest",
    "Dedupe",
    "EmbeddingAnswer",
    "HttpClient",
    "HttpResponse",
    "Image",
    "ImageAnswer",
    "Local",
    "Message",
    "Model",
    "ModelClient",
    "ModelSpec",
    "OpenAICompatible",
    "Scripted",
    "SyncModel",
    "Tokens",
    "fetch_weights",
    "open_http",
    "open_models",
]
