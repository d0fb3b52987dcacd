"""The examples of embedding run as a user runs them: a real server, both backends."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hosts import PATIENCE, child

from seedbed.testing import OpenAIServer, serve_openai_sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLES = Path(__file__).parents[3] / "examples"


@contextmanager
def service(**environment: str) -> Iterator[tuple[str, int]]:
    """The service under uvicorn in a process of its own; on a socket that is open before it starts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = ["-m", "uvicorn", "--app-dir", EXAMPLES / "service", "app:app", "--log-level", "warning"]
        number = listener.fileno()
        with child(*command, "--fd", str(number), environment=environment, pass_fds=[number]) as process:
            yield listener.getsockname()
            process.terminate()  # uvicorn shuts down and ends what is open
            complaints = process.communicate()[1]
    assert complaints == ""


def get(address: tuple[str, int], path: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Ask the service; the answer may still be coming."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
    connection.request("GET", path)
    return connection, connection.getresponse()


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """Server-sent events, as they come."""
    name = ""
    for line in response:
        word, _, text = line.decode().strip().partition(": ")
        if word == "event":
            name = text
        elif word == "data":
            yield name, json.loads(text)


def wait_for(holds: Callable[[], bool]) -> None:
    """Poll until it holds; other processes have no event to wait for."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    """A model server."""
    with serve_openai_sync(latency=0.01) as found:
        yield found


def test_the_service_streams_rows_and_a_client_that_leaves_cancels(server: OpenAIServer) -> None:
    """Rows come as events while the build runs; when a client goes away its calls end, and the service continues."""
    with service(MODEL_URL=server.url) as address:
        connection, response = get(address, "/rows?topic=tea&count=12")
        found = list(events(response))
        connection.close()
        assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert [name for name, _ in found] == [*["row"] * 12, "done"]
        assert found[-1][1] == {"rows": 12, "dropped": 0}
        assert set(found[0][1]) == {"angle", "question", "answer"}

        # This one hangs in its calls: the topic is part of every prompt.
        connection, response = get(address, "/rows?topic=%5B%5Bhang%5D%5D&count=500")
        wait_for(lambda: server.statistics.in_flight >= 10)
        other, load = get(address, "/load")
        assert sum(each["in_flight"] for each in json.load(load).values()) >= 10
        other.close()
        asked = server.statistics.requests
        response.close()
        connection.close()
        wait_for(lambda: server.statistics.in_flight == 0)
        assert server.statistics.requests < asked + 100  # of the 1,000 that it would have made

        connection, response = get(address, "/rows?topic=rain&count=3")
        assert [name for name, _ in events(response)] == ["row", "row", "row", "done"]
        connection.close()
        connection, response = get(address, "/rows?count=many")
        assert (response.status, json.load(response)) == (400, {"error": "count must be a number between 1 and 1000"})
        connection.close()


def test_stopping_a_service_cancels_its_builds(server: OpenAIServer) -> None:
    """Ending the server's process while a client waits leaves no call at the model, and no complaint."""
    with service(MODEL_URL=server.url) as address:
        connection, response = get(address, "/rows?topic=%5B%5Bhang%5D%5D&count=20")
        wait_for(lambda: server.statistics.in_flight > 0)
        response.close()
        connection.close()
    assert server.statistics.in_flight == 0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_two_builds_under_anyio(backend: str) -> None:
    """The same program runs on either backend and says the same."""
    with child(EXAMPLES / "anyio_two_builds.py", backend, environment={}) as process:
        shown, complaints = process.communicate()
    lines = shown.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["bread: 40 rows", "tea: 40 rows", lines[-1]]
    assert lines[-1] == "80 calls under one limit of 8"
    assert complaints == ""
