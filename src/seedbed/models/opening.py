"""The clients of a build: one for each provider, by the aliases that a recipe gives them."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .base import ModelClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from .base import ModelSpec


@runtime_checkable
class SharedClient(ModelClient, Protocol):
    """A client whose connections other models of the same provider can use."""

    def for_model(self, model: str) -> ModelClient: ...


@asynccontextmanager
async def open_models(specs: Mapping[str, ModelSpec]) -> AsyncIterator[Mapping[str, ModelClient]]:
    """Open a client for each alias; those with the same `provider_id` share one. Leaving closes them all."""
    async with AsyncExitStack() as stack:
        opened: dict[str, ModelClient] = {}
        clients: dict[str, ModelClient] = {}
        for alias, spec in specs.items():
            client = opened.get(spec.provider_id)
            if client is None:
                client = opened[spec.provider_id] = await stack.enter_async_context(spec.open())
            clients[alias] = client.for_model(spec.model) if isinstance(client, SharedClient) else client
        yield clients
