"""Helpers for tests, ours and those of users: a model server on loopback that fails the way real ones do.

May import every room but cli; no room imports it.
"""

from ..models.behaviour import Behaviour, Fate
from .process import ServerProcess, serve_openai_process, serve_openai_sync
from .server import OpenAIServer, ServerStatistics, serve_openai
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
    "serve_openai",
    "serve_openai_process",
    "serve_openai_sync",
]
