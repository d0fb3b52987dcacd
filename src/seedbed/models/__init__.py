"""Model clients: OpenAI-compatible and Anthropic over HTTP, the local one, the scripted one, and what they share.

A client sends one call and never retries. Imports embed, errors, graph and runtime; recipe, generators, store, engine
and the packages above import it.
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
