"""A real HTTP server on loopback that speaks the APIs of model providers, and fails the way they do.

For tests and benchmarks, ours and those of users. `serve_openai` is for async tests, `serve_openai_sync` for
synchronous ones, and `serve_openai_process` runs the server in a process of its own. The server answers OpenAI's chat,
embedding and image calls and Anthropic's messages; the functions at the end of the file build the bodies.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs
import httptools
import trio

from ..models.answers import (
    count_tokens,
    fitting_call,
    fitting_json,
    hash_vector,
    plausible_text,
    small_png,
    split_calls,
)
from ..models.distributions import stable_seed
from ..models.openai import call_body
from ..models.scripted import Behaviour, OutcomeSource, SimulatedOutcome, rate_limit_headers
from ..runtime.sockets import SocketWire, open_wire
from ..runtime.tasks import Timers, open_hidden_nursery

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterator


# Seconds; during longer waits the socket is watched, so that a client that disconnects is noticed at once.
_SHORT = 0.5
_START_TIMEOUT = 30.0
_REASONS = {200: b"OK", 400: b"Bad Request", 401: b"Unauthorized", 404: b"Not Found", 429: b"Too Many Requests"}
# The APIs by the last part of their paths, whatever the prefix.
_KINDS = {"completions": "chat", "embeddings": "embeddings", "generations": "images", "messages": "messages"}


@attrs.frozen(kw_only=True)
class ServerRequest:
    """A call as received; `prompt` is the text of the last turn (the input of an embedding, the prompt of an image)."""

    method: str
    """The HTTP method."""
    path: str
    """The path of the URL."""
    headers: Mapping[str, str] = attrs.field(repr=False)
    """The headers."""
    body: Mapping[str, Any]
    """The JSON."""
    prompt: str
    """The text of the last turn, the input of an embedding, or the prompt of an image."""
    number: int
    """Counts from 1 over all calls."""


@attrs.frozen(kw_only=True)
class ServerAnswer:
    """The answer to a call: which status was sent, and when."""

    number: int
    """The number of the call."""
    prompt: str
    """Its prompt."""
    status: int
    """0 stands for a call that was reset or whose answer was truncated."""
    time: float
    """An instant of `time.monotonic`: all of the answer has been handed to the operating system."""


@attrs.frozen(kw_only=True)
class Reply:
    """An HTTP answer written by a script."""

    status: int = 200
    """The HTTP status."""
    body: Any = None
    """Bytes as they are, anything else as JSON."""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    """Further headers."""


Script = Callable[[ServerRequest], Reply | SimulatedOutcome | str | None]
"""Decides on a call: a whole answer, a simulated outcome, the text to answer with, or None for the default."""


@attrs.define(eq=False)
class ServerStatistics:
    """Counts of what the server received and sent. Changed by the server only."""

    requests: int = 0
    """Calls that were received."""
    in_flight: int = 0
    """Calls that are not answered yet."""
    max_in_flight: int = 0
    """The most of them at once."""
    connections: int = 0
    """Connections that were accepted."""
    disconnects: int = 0
    """Calls whose client disconnected before the answer."""
    statuses: Counter[int] = attrs.field(factory=Counter)
    """How often each status was sent; 0 stands for calls that were reset."""
    prompts: Counter[str] = attrs.field(factory=Counter)
    """How often each prompt was received."""


@attrs.define(eq=False, kw_only=True)
class OpenAIServer:
    """A running test server.

    `url` is the base URL for a model. With `record=True`, `requests` lists every call and `answers` every answer; a
    call without an answer is still in progress, or its client disconnected.
    """

    _outcomes: OutcomeSource
    _script: Script | None
    _answer: str | None
    _usage: bool
    _api_key: str | None
    _record: bool
    _ssl_context: ssl.SSLContext | None
    url: str = ""
    """The base URL for a model."""
    requests: list[ServerRequest] = attrs.field(init=False, factory=list)
    answers: list[ServerAnswer] = attrs.field(init=False, factory=list)
    timers: Timers = attrs.field(init=False, factory=Timers)
    statistics: ServerStatistics = attrs.field(init=False)
    # Prompts of calls that hang, each with the scope that it waits in.
    _hanging: list[tuple[str, trio.CancelScope]] = attrs.field(init=False, factory=list)
    _token: trio.lowlevel.TrioToken = attrs.field(init=False, factory=trio.lowlevel.current_trio_token)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(init=False, factory=trio.lowlevel.ParkingLot)  # in `wait_until`

    def __attrs_post_init__(self) -> None:
        self.statistics = ServerStatistics(prompts=self._outcomes.seen)

    async def wait_until(self, *, requests: int = 0, disconnects: int = 0) -> None:
        """Wait until at least these numbers of calls have arrived and of clients have disconnected."""
        while self.statistics.requests < requests or self.statistics.disconnects < disconnects:
            await self._waiting.park()

    def release(self, wanted: Callable[[str], bool] = lambda _prompt: True) -> None:
        """Answer the calls that hang now, or those whose prompt is `wanted`; may be called from any thread."""
        self._token.run_sync_soon(self._release, wanted)

    def _release(self, wanted: Callable[[str], bool]) -> None:
        for prompt, scope in self._hanging:
            if wanted(prompt):
                scope.cancel()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection until either side closes it."""
        self.statistics.connections += 1
        try:
            wire = await open_wire(stream, self._ssl_context, server_side=True)
        except OSError:  # the client rejects the certificate
            return
        connection = _Connection(wire, self.timers)
        try:
            while (request := await connection.next_request()) is not None:
                if not await self._handle(connection, *request):
                    break
        except (OSError, httptools.HttpParserError):  # the client disconnected, or does not speak HTTP
            pass
        finally:
            wire.close()

    async def _handle(self, connection: _Connection, method: str, path: str, raw: bytes) -> bool:
        """Answer one call; returns whether the connection stays open."""
        statistics = self.statistics
        last = path.partition("?")[0].rpartition("/")[2]
        if method == "GET":
            known = {"stats": attrs.asdict(statistics), "models": {"object": "list", "data": [{"id": "test"}]}}
            return await self._send(connection, None, 200 if last in known else 404, _dumps(known.get(last)))
        statistics.requests += 1
        kind = _KINDS.get(last)
        try:
            body = json.loads(raw)
        except ValueError:
            kind = None
        if kind is None:
            return await self._send(connection, None, 404, _error_body(404))
        headers = connection.headers
        keys = headers.get("authorization", "").removeprefix("Bearer "), headers.get("x-api-key")
        if self._api_key is not None and self._api_key not in keys:
            return await self._send(connection, None, 401, _error_body(401))
        prompt, number = _prompt_of(kind, body), statistics.requests
        request = ServerRequest(method=method, path=path, headers=headers, body=body, prompt=prompt, number=number)
        outcome = self._outcomes.decide(prompt, statistics.in_flight)
        if self._record:
            self.requests.append(request)
        scripted = None if self._script is None else self._script(request)
        if isinstance(scripted, Reply):
            content = scripted.body if isinstance(scripted.body, bytes) else _dumps(scripted.body)
            return await self._send(connection, request, scripted.status, content, scripted.headers)
        if isinstance(scripted, SimulatedOutcome):
            outcome = scripted
        elif isinstance(scripted, str):
            outcome = attrs.evolve(outcome, text=scripted)
        return await self._simulate(connection, kind, request, outcome)

    async def _simulate(
        self, connection: _Connection, kind: str, request: ServerRequest, outcome: SimulatedOutcome
    ) -> bool:
        statistics = self.statistics
        # A rejected call does no work and takes no capacity.
        is_work = outcome.outcome != "status"
        statistics.in_flight += is_work
        if statistics.in_flight > statistics.max_in_flight:
            statistics.max_in_flight = statistics.in_flight
        self._waiting.unpark_all()
        try:
            if outcome.outcome == "hang":
                is_connected = await self._hang(connection, request.prompt)
            else:
                is_connected = await connection.wait(outcome.latency)
        finally:
            statistics.in_flight -= is_work
        if not is_connected:
            statistics.disconnects += 1
            self._waiting.unpark_all()
            return False
        if outcome.outcome == "reset":
            statistics.statuses[0] += 1
            self._note(request, 0)
            connection.wire.reset()
            return False
        if outcome.outcome == "status":
            status, headers = outcome.status, rate_limit_headers(outcome)
            return await self._send(connection, request, status, _error_body(status), headers)
        text = outcome.text if outcome.text is not None else self._answer
        if text is None:
            text = _answer_text(kind, request)
        build = _anthropic_body if kind == "messages" else _openai_body
        content = _dumps(build(kind, request, text, outcome.outcome, usage=self._usage))
        if outcome.outcome == "malformed":
            content = b'{"choices": [{"message": ' + content[: len(content) // 4]
        return await self._send(connection, request, 200, content, is_whole=outcome.outcome != "truncated")

    async def _hang(self, connection: _Connection, prompt: str) -> bool:
        """Wait until the call is released; returns whether the client is still connected."""
        with trio.CancelScope() as scope:
            self._hanging.append((prompt, scope))
            try:
                await connection.wire.wait_readable()
            finally:
                self._hanging.remove((prompt, scope))
        return scope.cancelled_caught

    async def _send(
        self,
        connection: _Connection,
        request: ServerRequest | None,
        status: int,
        content: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        is_whole: bool = True,
    ) -> bool:
        self.statistics.statuses[status] += 1
        reason = _REASONS.get(status, b"Error")
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()).encode("latin-1")
        sent = content if is_whole else content[: len(content) // 2]
        await connection.wire.send(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
            % (status, reason, more, len(content), sent)
        )
        self._note(request, status if is_whole else 0)
        return is_whole and connection.keeps_alive

    def _note(self, request: ServerRequest | None, status: int) -> None:
        if self._record and request is not None:
            self.answers.append(
                ServerAnswer(number=request.number, prompt=request.prompt, status=status, time=time.monotonic())
            )


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class _Connection:
    """A socket and the parser's callbacks; one task reads from it."""

    def __init__(self, wire: SocketWire, timers: Timers) -> None:
        self.wire = wire
        self._timers = timers
        self.headers: dict[str, str] = {}
        self.keeps_alive = True
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
        """Wait; returns whether the client is still connected afterwards."""
        if seconds <= 0:
            return True
        if seconds <= _SHORT:
            # Half the cost of a scope with a deadline; a disconnect is noticed after the wait.
            elapsed = trio.Event()
            self._timers.call_at(trio.current_time() + seconds, elapsed.set)
            await elapsed.wait()
            return self.wire.is_quiet()
        with trio.move_on_after(seconds):
            # A client sends nothing while it waits for an answer: readable means disconnected.
            await self.wire.wait_readable()
            return False
        return True

    # Callbacks of httptools.

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
        self.keeps_alive = self._parser.should_keep_alive()  # the parser resets it afterwards


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
    markers such as `[[500 x2]]` in a prompt do so without code. `answer` replaces the generated text of answers.
    """
    server = OpenAIServer(
        outcomes=OutcomeSource(Behaviour(**behaviour)),
        script=script,
        answer=answer,
        usage=usage,
        api_key=api_key,
        record=record,
        ssl_context=ssl_context,
    )
    async with open_hidden_nursery("the block of serve_openai was left") as nursery:
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1", backlog=1024)
        number = listeners[0].socket.getsockname()[1]
        server.url = f"{'http' if ssl_context is None else 'https'}://127.0.0.1:{number}/v1"
        nursery.start_soon(server.timers.run)
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        yield server


@contextmanager
def serve_openai_sync(**options: Any) -> Iterator[OpenAIServer]:
    """`serve_openai` for synchronous tests: the server runs in a thread until the block is left."""
    started: Future[tuple[OpenAIServer, trio.lowlevel.TrioToken, trio.CancelScope]] = Future()

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with serve_openai(**options) as server:
                started.set_result((server, trio.lowlevel.current_trio_token(), scope))
                await trio.sleep_forever()

    with ThreadPoolExecutor(1, "seedbed-test-server") as pool:
        ended = pool.submit(trio.run, main)
        either: list[Future[Any]] = [started, ended]
        wait(either, _START_TIMEOUT, FIRST_COMPLETED)
        if not started.done():
            ended.result(0)  # raises the error
        server, token, scope = started.result(0)
        try:
            yield server
        finally:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(scope.cancel)
            ended.result(_START_TIMEOUT)


@attrs.frozen
class ServerProcess:
    """A test server in a process of its own; `url` is the base URL for a model."""

    url: str
    """The base URL for a model."""
    pid: int
    """The process."""

    def statistics(self) -> dict[str, Any]:
        """The fields of `ServerStatistics` as JSON, fetched over HTTP."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@contextmanager
def serve_openai_process(**options: Any) -> Iterator[ServerProcess]:
    """`serve_openai` in a process of its own until the block is left; options must be plain JSON, so no `script`."""
    command = [sys.executable, "-c", f"from {__name__} import main; main()", json.dumps(options)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            url = child.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"the test server did not start (exit code {child.wait(_START_TIMEOUT)})")
            yield ServerProcess(url, child.pid)
        finally:
            child.terminate()


def main() -> None:
    """Serve with the options of the command line, print the base URL, and end when standard input does."""
    with serve_openai_sync(**json.loads(sys.argv[1])) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        sys.stdin.read()  # the parent holds the other end, which is closed when it ends


def _prompt_of(kind: str, body: Mapping[str, Any]) -> str:
    """The text that identifies a call in the statistics and seeds its answer."""
    if kind == "images":
        return str(body.get("prompt", ""))
    if kind == "embeddings":
        given = body.get("input", "")
        return given if isinstance(given, str) else "\n".join(map(str, given))
    messages = body.get("messages") or [{}]
    content = messages[-1].get("content") or ""
    if isinstance(content, str):
        return content
    # Anthropic's results of tools have their text in `content`.
    texts = (part.get("text") if part.get("type") == "text" else part.get("content") for part in content)
    return "\n".join(text for text in texts if isinstance(text, str))


def _answer_text(kind: str, request: ServerRequest) -> str:
    """The default answer: a call of a tool first, then JSON for a schema, or plausible text."""
    schema, body, prompt = None, request.body, request.prompt
    tools = [tool.get("function", tool) for tool in body.get("tools") or ()]
    if kind == "chat":
        schema = (body.get("response_format") or {}).get("json_schema", {}).get("schema")
    elif kind == "messages" and _has_answer_tool(body):
        schema = tools.pop()["input_schema"]
    if tools and not _answers_tool(body["messages"][-1]):
        tool = tools[stable_seed("tool", prompt) % len(tools)]
        return fitting_call(tool["name"], tool.get("parameters") or tool.get("input_schema"), prompt)
    return fitting_json(schema, prompt) if schema else plausible_text(prompt)


def _has_answer_tool(body: Mapping[str, Any]) -> bool:
    """True if the last tool is the schema of the answer, as Anthropic's API has it: the model must use a tool."""
    return bool(body.get("tools")) and body.get("tool_choice", {}).get("type") in ("tool", "any")


def _answers_tool(message: Mapping[str, Any]) -> bool:
    """True if a message has the result of a tool."""
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return message.get("role") == "tool" or any(part.get("type") == "tool_result" for part in parts)


def _openai_body(kind: str, request: ServerRequest, text: str, outcome: str, *, usage: bool) -> Any:
    """The JSON body of an answer of OpenAI's API."""
    body, prompt = request.body, request.prompt
    answer: dict[str, Any] = {"model": body.get("model", "test")}
    items: list[Any]
    if kind == "embeddings":
        given, size = body.get("input", ""), body.get("dimensions") or 16
        texts = [given] if isinstance(given, str) else given
        vectors = (hash_vector(each, size) for each in texts)
        items = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
        answer |= {"object": "list"}
    elif kind == "images":
        pictures = (small_png(f"{prompt} {number}") for number in range(body.get("n") or 1))
        items = [{"b64_json": base64.b64encode(picture).decode()} for picture in pictures]
        answer |= {"created": 0}
    else:
        written, calls = split_calls(text, len(body.get("messages", ()))) if body.get("tools") else (text, ())
        message: dict[str, Any] = {"role": "assistant", "content": written}
        if calls:
            message |= {"content": written or None, "tool_calls": [call_body(call) for call in calls]}
        if outcome == "refusal":
            message = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
        reason = {"length": "length", "filter": "content_filter"}.get(outcome, "tool_calls" if calls else "stop")
        items = [{"index": 0, "message": message, "finish_reason": reason}]
        answer |= {"id": "chatcmpl-test", "object": "chat.completion"}
    answer["choices" if kind == "chat" else "data"] = [] if outcome == "empty" else items
    if usage:
        sent, received = count_tokens(prompt), count_tokens(text)
        answer["usage"] = {"prompt_tokens": sent, "completion_tokens": received, "total_tokens": sent + received}
    return answer


def _anthropic_body(_kind: str, request: ServerRequest, text: str, outcome: str, *, usage: bool) -> Any:
    """The JSON body of an answer of Anthropic's API."""
    body, prompt = request.body, request.prompt
    content: list[dict[str, Any]] = []
    reason = {"length": "max_tokens", "refusal": "refusal"}.get(outcome, "end_turn")
    if (body.get("thinking") or {}).get("type") == "enabled":
        content.append({"type": "thinking", "thinking": f"The prompt: {prompt[:60]}", "signature": "test"})
    written, calls = split_calls(text, len(body.get("messages", ()))) if body.get("tools") else (text, ())
    if calls:
        content += [{"type": "text", "text": written}] if written else []
        used = [{"id": call.id, "name": call.name, "input": json.loads(call.arguments)} for call in calls]
        content += [{"type": "tool_use", **each} for each in used]
        reason = "tool_use"
    elif _has_answer_tool(body) and reason == "end_turn":
        name = body["tools"][-1]["name"]
        content.append({"type": "tool_use", "id": "toolu_test", "name": name, "input": json.loads(text)})
        reason = "tool_use"
    else:
        content.append({"type": "text", "text": text})
    answer = {"id": "msg_test", "type": "message", "role": "assistant", "model": body.get("model", "test")}
    answer |= {"content": [] if outcome == "empty" else content, "stop_reason": reason}
    if usage:
        answer["usage"] = {"input_tokens": count_tokens(prompt), "output_tokens": count_tokens(text)}
    return answer


def _error_body(status: int) -> bytes:
    """The JSON body of an answer with a status other than 200."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_exceeded"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return _dumps({"error": {"message": f"simulated answer with status {status}", "type": kind, "code": kind}})
