"""A server in a process of its own: the plan or an empty application, on uvicorn or on Hypercorn under trio.

`GET /cpu` answers the seconds of the processor that the process has used.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from seedbed.plans.serve import ServeConfig, app

from .with_seedbed import PLAN, registries_at

EMPTY = "empty"
ENGINE = "engine"
UVICORN = "uvicorn"
HYPERCORN = "Hypercorn on trio"


async def empty(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, and answer as many bytes as the plan does."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        return await send({"type": "lifespan.shutdown.complete"})
    while (await receive()).get("more_body"):
        pass
    return await _answer(send, b'{"candidates":[' + b" " * 2_400 + b"]}")


async def _answer(send: Any, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def with_clock(application: Any) -> Any:
    """The application, which also says what it has used."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/cpu":
            return await _answer(send, json.dumps(time.process_time()).encode())
        return await application(scope, receive, send)

    return wrapped


def main(what: str, server: str, redis_port: int, listener: socket.socket) -> None:
    """Serve until the process is killed."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / PLAN.name).write_bytes(PLAN.read_bytes())
        config = ServeConfig(deadline=10, max_concurrent_requests=64)
        plans = empty if what == EMPTY else app(folder, registries=registries_at(redis_port), config=config)
        served = with_clock(plans)
        if server == UVICORN:
            import uvicorn  # noqa: PLC0415  one of the two

            settings = uvicorn.Config(served, loop="asyncio", ws="none", log_config=None, access_log=False)
            uvicorn.Server(settings).run([listener])
        else:
            import hypercorn.config  # noqa: PLC0415  one of the two
            import hypercorn.trio  # noqa: PLC0415
            import trio  # noqa: PLC0415

            settings = hypercorn.config.Config()
            settings.bind = [f"fd://{listener.fileno()}"]
            trio.run(partial(hypercorn.trio.serve, served, settings))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), socket.socket(fileno=int(sys.argv[4])))
