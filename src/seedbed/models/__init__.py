"""Model clients: OpenAI-compatible and Anthropic over HTTP, the local model and the scripted model.

A client sends one call and never retries. Imports errors, checks, graph and runtime.
"""

from .anthropic import Anthropic
from .base import (
    ChatAnswer,
    ChatRequest,
    Dedupe,
    Image,
    ImageAnswer,
    Message,
    ModelClient,
    ModelSpec,
    Tokens,
    Tool,
    ToolCall,
    open_models,
)
from .http import open_http
from .local import Local, fetch_weights
from .openai import OpenAICompatible
from .scripted import Scripted

MODEL_TYPES: dict[str, type] = {spec.type: spec for spec in (OpenAICompatible, Anthropic, Local, Scripted)}
"""The spec class of each type name that a recipe file may use; openai where it names none."""

__all__ = [
    "MODEL_TYPES",
    "Anthropic",
    "ChatAnswer",
    "ChatRequest",
    "Dedupe",
    "Image",
    "ImageAnswer",
    "Local",
    "Message",
    "ModelClient",
    "ModelSpec",
    "OpenAICompatible",
    "Scripted",
    "Tokens",
    "Tool",
    "ToolCall",
    "fetch_weights",
    "open_http",
    "open_models",
]
