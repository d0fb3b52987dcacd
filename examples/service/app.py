"""A web service that grows rows on request and sends each as soon as its row group is finished.

All requests share one throttle, so that together they ask the model for no more than it takes. When a client goes
away, the build that it asked for is cancelled, and with it every call that was made for it.
"""

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import seedbed as sb

URL = os.environ.get("MODEL_URL")  # an OpenAI-compatible server; without one the answers come from a script
WRITER = sb.OpenAICompatible(base_url=URL, model="small") if URL else sb.Scripted(latency=0.05)
CONFIG = sb.RunConfig(buffer_size=5, max_concurrent_row_groups=2)
MOST_ROWS = 1_000


def recipe(topic: str) -> sb.Recipe:
    """Questions about a topic, and their answers."""
    return sb.Recipe(
        models={"writer": WRITER},
        columns=[
            sb.Category("angle", values=["history", "taste", "price", "myth"]),
            sb.LLMText("question", model="writer", prompt=f"One question on the {{{{ angle }}}} of {topic}."),
            sb.LLMText("answer", model="writer", prompt="Answer briefly: {{ question }}"),
        ],
    )


def event(name: str, data: Any) -> str:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


async def grow(topic: str, count: int, throttles: Any) -> AsyncGenerator[str, None]:
    """Build in memory and yield an event for each row, as row groups finish."""
    try:
        async with sb.open_build(recipe(topic), rows=count, config=CONFIG, throttles=throttles) as build:
            async for group in build:
                for row in group.to_polars().iter_rows(named=True):
                    yield event("row", row)
            yield event("done", {"rows": build.report.written, "dropped": len(build.report.dropped)})
    except sb.SeedbedError as error:
        yield event("error", str(error))


class EventStream(Response):
    """Sends events until there are no more, or nobody is there to get them."""

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        async with anyio.create_task_group() as tasks:

            async def watch_client() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch_client)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with aclosing(self._events) as events:
                async for each in events:
                    await send({"type": "http.response.body", "body": each.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()


async def rows(request: Request) -> Response:
    """GET /rows?topic=tea&count=20."""
    try:
        count = int(request.query_params.get("count", "10"))
    except ValueError:
        count = 0
    if not 1 <= count <= MOST_ROWS:
        return JSONResponse({"error": f"count must be a number between 1 and {MOST_ROWS}"}, status_code=400)
    topic = request.query_params.get("topic", "tea")
    return EventStream(grow(topic, count, request.app.state.throttles))


async def load(request: Request) -> Response:
    """GET /load: what each model is asked for at the moment."""
    statistics = request.app.state.throttles.statistics()
    return JSONResponse({key: {"in_flight": each.in_flight, "limit": each.limit} for key, each in statistics.items()})


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Hold what all requests share."""
    async with sb.open_throttles() as app.state.throttles:
        yield


app = Starlette(routes=[Route("/rows", rows), Route("/load", load)], lifespan=lifespan)
