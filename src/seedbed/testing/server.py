"""A real HTTP server on loopback that speaks the APIs of model providers, and fails the way they do.

For tests and benchmarks, ours and those of users. `serve_openai` is for async tests, `serve_openai_sync` for plain ones
and `serve_openai_process` gives the server a core of its own.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import httptools
import trio

from ..models.behaviour import Fate, Fates, behaviour_from
from ..models.wire import SocketWire, accept
from ..runtime.timers import Timers
from .wire_format import (
    Reply,
    ServerAnswer,
    ServerRequest,
    answer_body,
    answer_text,
    error_body,
    kind_of,
    prompt_of,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Mapping

    from ..models.wire import Wire
    from .wire_format import Script

# Seconds; what takes longer is watched all the time.
_SHORT = 0.5
_REASONS = {200: b"OK", 400: b"Bad Request", 401: b"Unauthorized", 404: b"Not Found", 429: b"Too Many Requests"}


@attrs.define(eq=False)
class ServerStatistics:
    """What the server has seen so far. Changed by the server only."""

    requests: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    connections: int = 0
    """Connections that were opened, over all time."""
    disconnects: int = 0
    """Calls whose client went away before the answer."""
    statuses: Counter[int] = attrs.field(factory=Counter)
    """How often each status was sent; 0 stands for calls that were reset."""
    prompts: Counter[str] = attrs.field(factory=Counter)
    """How often each prompt came."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON."""
        return {
            **{name: getattr(self, name) for name in ("requests", "max_in_flight", "connections", "disconnects")},
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "prompts": dict(self.prompts),
        }


class OpenAIServer:
    """A running test server.

    `url` is the base URL for a model, `statistics` what came so far. With `record=True` `requests` has every call as it
    came, and `answers` what was sent to whom and when; a call without one is still worked on, or its client left.
    """

    def __init__(
        self,
        fates: Fates,
        *,
        script: Script | None,
        answer: str | None,
        usage: bool,
        api_key: str | None,
        record: bool,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self.url = ""
        self.statistics = ServerStatistics(prompts=fates.seen)
        self.requests: list[ServerRequest] = []
        self.answers: list[ServerAnswer] = []
        self._fates = fates
        self._script = script
        self._answer = answer
        self._usage = usage
        self._api_key = api_key
        self._record = record
        self._ssl_context = ssl_context
        self.timers = Timers()
        # Calls that hang, each with what it waits in.
        self._hanging: list[tuple[str, trio.CancelScope]] = []
        self._token = trio.lowlevel.current_trio_token()
        # Pulsed at each change that a test may wait for.
        self._changed = trio.Event()

    async def wait_until(self, *, requests: int = 0, disconnects: int = 0) -> None:
        """Wait until at least so much has happened."""
        while self.statistics.requests < requests or self.statistics.disconnects < disconnects:
            await self._changed.wait()

    def release(self, wanted: Callable[[str], bool] = lambda _prompt: True) -> None:
        """Answer the calls that hang now, or those of them whose prompt is wanted; from any thread."""
        self._token.run_sync_soon(self._release, wanted)

    def _release(self, wanted: Callable[[str], bool]) -> None:
        for prompt, scope in self._hanging:
            if wanted(prompt):
                scope.cancel()

    def _pulse(self) -> None:
        if self._changed.statistics().tasks_waiting:
            self._changed.set()
            self._changed = trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, until either side closes it."""
        self.statistics.connections += 1
        try:
            wire = await accept(stream, self._ssl_context)
        except OSError:  # a client that does not like the certificate
            return
        connection = _Connection(wire, self.timers)
        try:
            while (request := await connection.next_request()) is not None:
                if not await self._handle(connection, *request):
                    break
        except (OSError, httptools.HttpParserError):  # the client is gone, or speaks something else
            pass
        finally:
            wire.close()

    async def _handle(self, connection: _Connection, method: str, path: str, raw: bytes) -> bool:
        """Answer one call; whether the connection goes on."""
        statistics = self.statistics
        connection.asked = None
        if method == "GET":
            known = {"/stats": statistics.as_dict(), "/models": {"object": "list", "data": [{"id": "test"}]}}
            found = next((body for end, body in known.items() if path.endswith(end)), None)
            return await self._send(connection, 200 if found is not None else 404, json.dumps(found).encode())
        statistics.requests += 1
        kind = kind_of(path)
        try:
            body = json.loads(raw)
        except ValueError:
            kind = None
        if kind is None:
            return await self._send(connection, 404, json.dumps(error_body(404)).encode())
        if self._api_key is not None and self._api_key not in {
            connection.headers.get("authorization", "").removeprefix("Bearer "),
            connection.headers.get("x-api-key"),
        }:
            return await self._send(connection, 401, json.dumps(error_body(401)).encode())
        prompt = prompt_of(kind, body)
        connection.asked = (statistics.requests, prompt)
        fate = self._fates.decide(prompt, statistics.in_flight)
        if self._record or self._script is not None:
            request = ServerRequest(
                method=method,
                path=path,
                headers=dict(connection.headers),
                body=body,
                prompt=prompt,
                number=statistics.requests,
            )
            if self._record:
                self.requests.append(request)
            scripted = self._script(request) if self._script is not None else None
            if isinstance(scripted, Reply):
                return await self._send(connection, scripted.status, scripted.content(), scripted.headers)
            if isinstance(scripted, Fate):
                fate = scripted
            elif isinstance(scripted, str):
                fate = attrs.evolve(fate, text=scripted)
        return await self._meet(connection, kind, body, prompt, fate)

    async def _meet(self, connection: _Connection, kind: str, body: Any, prompt: str, fate: Fate) -> bool:
        statistics = self.statistics
        # What is refused is not worked on and takes no capacity.
        is_work = fate.outcome != "status"
        statistics.in_flight += is_work
        if statistics.in_flight > statistics.max_in_flight:
            statistics.max_in_flight = statistics.in_flight
        self._pulse()
        try:
            if fate.outcome == "hang":
                is_there = await self._hang(connection, prompt)
            else:
                is_there = await connection.wait(fate.latency)
        finally:
            statistics.in_flight -= is_work
        if not is_there:
            statistics.disconnects += 1
            self._pulse()
            return False
        if fate.outcome == "reset":
            statistics.statuses[0] += 1
            self._note(connection, 0)
            if isinstance(connection.wire, SocketWire):
                connection.wire.reset()
            return False
        if fate.outcome == "status":
            return await self._send(connection, fate.status, _dumps(error_body(fate.status)), _refusal_headers(fate))
        text = fate.text if fate.text is not None else self._answer
        if text is None:
            text = answer_text(kind, body, prompt)
        content = _dumps(answer_body(kind, body, prompt, text, fate, usage=self._usage))
        if fate.outcome == "malformed":
            content = b'{"choices": [{"message": ' + content[: len(content) // 4]
        if fate.outcome == "truncated":
            statistics.statuses[200] += 1
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(content)
            await connection.wire.send(head + content[: len(content) // 2])
            self._note(connection, 0)
            return False
        return await self._send(connection, 200, content)

    async def _hang(self, connection: _Connection, prompt: str) -> bool:
        """Wait until the call is released; whether the client is still there then."""
        with trio.CancelScope() as scope:
            self._hanging.append((prompt, scope))
            try:
                await connection.wire.wait_readable()
            finally:
                self._hanging.remove((prompt, scope))
        return scope.cancelled_caught

    async def _send(
        self, connection: _Connection, status: int, content: bytes, headers: Mapping[str, str] | None = None
    ) -> bool:
        self.statistics.statuses[status] += 1
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()).encode("latin-1")
        await connection.wire.send(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
            % (status, _REASONS.get(status, b"Error"), more, len(content), content)
        )
        self._note(connection, status)
        return connection.keeps_alive

    def _note(self, connection: _Connection, status: int) -> None:
        if self._record and connection.asked is not None:
            number, prompt = connection.asked
            self.answers.append(ServerAnswer(number=number, prompt=prompt, status=status, time=time.monotonic()))


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _refusal_headers(fate: Fate) -> dict[str, str]:
    headers = {}
    if fate.retry_after is not None:
        headers["retry-after"] = str(fate.retry_after)
    if fate.reset_after is not None:
        headers["x-ratelimit-remaining-requests"] = "0"
        headers["x-ratelimit-reset-requests"] = f"{fate.reset_after}s"
    return headers


class _Connection:
    """A wire and the parser's callbacks; one task reads from it."""

    def __init__(self, wire: Wire, timers: Timers) -> None:
        self.wire = wire
        self._timers = timers
        self.headers: dict[str, str] = {}
        self.keeps_alive = True
        # Number and prompt of the call that is being answered, if it is one to a model.
        self.asked: tuple[int, str] | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._chunks: list[bytes] = []
        self._is_complete = False

    async def next_request(self) -> tuple[str, str, bytes] | None:
        """Method, path and body of the next call; None when the client has closed."""
        self._is_complete = False
        while not self._is_complete:
            data = await self.wire.receive()
            if not data:
                return None
            self._parser.feed_data(data)
        return self._parser.get_method().decode(), self._url.decode(), b"".join(self._chunks)

    async def wait(self, seconds: float) -> bool:
        """Let time pass; whether the client is still there after it."""
        if seconds <= 0:
            return True
        if seconds <= _SHORT:
            # Half the cost of a scope with a deadline; that the client left is then noticed after the wait.
            over = trio.Event()
            self._timers.call_at(trio.current_time() + seconds, over.set)
            await over.wait()
            return self.wire.is_quiet()
        with trio.move_on_after(seconds):
            # A client says nothing while it waits for an answer: what can be read is that it left.
            await self.wire.wait_readable()
            return False
        return True

    # What httptools calls.

    def on_message_begin(self) -> None:
        self.headers = {}
        self._chunks = []
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)

    def on_message_complete(self) -> None:
        self._is_complete = True
        self.keeps_alive = self._parser.should_keep_alive()  # the parser forgets it after this


@asynccontextmanager
async def serve_openai(
    *,
    port: int = 0,
    script: Script | None = None,
    answer: str | None = None,
    usage: bool = True,
    api_key: str | None = None,
    record: bool = False,
    ssl_context: ssl.SSLContext | None = None,
    **behaviour: Any,
) -> AsyncIterator[OpenAIServer]:
    """Serve on a free port of loopback until the block is left.

    `behaviour` are the fields of `Behaviour`: latency, capacity, shares of failures. `script` decides call by call;
    markers such as `[[500 x2]]` in a prompt do so without code. `answer` is said instead of something plausible.
    """
    decided, unknown = behaviour_from(behaviour)
    if unknown:
        raise TypeError(f"serve_openai has no option {', '.join(map(repr, unknown))}")
    server = OpenAIServer(
        Fates(decided),
        script=script,
        answer=answer,
        usage=usage,
        api_key=api_key,
        record=record,
        ssl_context=ssl_context,
    )
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1", backlog=1024)
        number = listeners[0].socket.getsockname()[1]
        server.url = f"{'http' if ssl_context is None else 'https'}://127.0.0.1:{number}/v1"
        nursery.start_soon(server.timers.run)
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        try:
            yield server
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: BLE001  raised below: a test's failure is not a group of one
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
