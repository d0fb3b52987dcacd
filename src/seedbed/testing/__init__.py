"""Helpers for tests, ours and those of users: a model server that fails as real ones do, and time that jumps.

Imports models and runtime; no package imports it.
"""

from ..models.behaviour import Behaviour, Fate
from .process import ServerProcess, serve_openai_process, serve_openai_sync
from .server import OpenAIServer, ServerStatistics, serve_openai
from .virtual import VirtualTime, virtual_time
from .wire_format import Reply, ServerAnswer, ServerRequest

__all__ = [
    "Behaviour",
    "Fate",
    "OpenAIServer",
    "Reply",
    "ServerAnswer",
    "ServerProcess",
    "ServerRequest",
    "ServerStatistics",
    "VirtualTime",
    "serve_openai",
    "serve_openai_process",
    "serve_openai_sync",
    "virtual_time",
]
