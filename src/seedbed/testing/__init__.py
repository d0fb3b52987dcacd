"""Helpers for tests, ours and those of users: a model server on loopback, and virtual time.

Imports models and runtime; no package imports it.
"""

from ..models.scripted import Behaviour, SimulatedOutcome
from .server import (
    OpenAIServer,
    Reply,
    ServerAnswer,
    ServerProcess,
    ServerRequest,
    ServerStatistics,
    serve_openai,
    serve_openai_process,
    serve_openai_sync,
)
from .virtual import VirtualTime, virtual_time

__all__ = [
    "Behaviour",
    "OpenAIServer",
    "Reply",
    "ServerAnswer",
    "ServerProcess",
    "ServerRequest",
    "ServerStatistics",
    "SimulatedOutcome",
    "VirtualTime",
    "serve_openai",
    "serve_openai_process",
    "serve_openai_sync",
    "virtual_time",
]
