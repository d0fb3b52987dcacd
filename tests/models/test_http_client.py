from __future__ import annotations

import functools
import gzip
import re
import ssl
import zlib
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from seedbed import OpenAICompatible, Validation
from seedbed.errors import ConfigError, Permanent, Retryable
from seedbed.models import http as http_module
from seedbed.models import open_http
from seedbed.models.urls import split_url
from seedbed.testing import Reply, serve_openai

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

CERTIFICATE = Path(__file__).with_name("loopback.pem")
BODY = b'{"messages": [{"role": "user", "content": "hello"}]}'

# Without the instant, which would change the names of tests from process to process.
compress = functools.partial(gzip.compress, mtime=0)


def chat(client: Any, server: Any) -> Any:
    """The chat endpoint of a server."""
    return client.endpoint("POST", f"{server.url}/chat/completions", {"content-type": "application/json"})


@asynccontextmanager
async def raw_server(talk: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that runs `talk` on each connection."""

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            await talk(stream)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        nursery.cancel_scope.cancel()


async def test_connections_are_kept_alive() -> None:
    """Calls one after the other use one connection."""
    async with serve_openai() as server, open_http() as client:
        endpoint = chat(client, server)
        for _ in range(5):
            assert (await endpoint.send(BODY)).status == 200
        assert server.statistics.connections == 1


async def test_concurrent_calls_have_a_connection_each() -> None:
    """Calls at once open one connection each, and calls after them reuse these."""
    async with serve_openai(latency=0.02) as server, open_http() as client:
        endpoint = chat(client, server)
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(endpoint.send, BODY)
        assert server.statistics.requests == 9
        assert server.statistics.max_in_flight == 3
        assert server.statistics.connections == 3


async def test_cancelling_closes_the_connection() -> None:
    """The server sees the disconnect of a cancelled call, and the next call opens a new connection."""
    async with serve_openai() as server, open_http() as client:
        endpoint = chat(client, server)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(endpoint.send, b'{"messages": [{"role": "user", "content": "[[hang]]"}]}')
            await server.wait_until(requests=1)
            nursery.cancel_scope.cancel()
        await server.wait_until(disconnects=1)
        assert (await endpoint.send(BODY)).status == 200
        assert server.statistics.connections == 2


async def test_a_call_in_a_cancelled_scope_is_not_sent() -> None:
    """A call that is cancelled before it starts does not reach the server."""
    async with serve_openai() as server, open_http() as client:
        endpoint = chat(client, server)
        with trio.CancelScope() as scope:
            scope.cancel()
            await endpoint.send(BODY)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert server.statistics.requests == 0
        await endpoint.send(BODY)
        with trio.CancelScope() as scope:
            scope.cancel()
            await endpoint.send(BODY)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert server.statistics.requests == 1


async def test_an_idle_connection_that_was_closed_is_replaced() -> None:
    """If the server closes after each answer, the next call uses a new connection, without an error."""
    connections = 0

    async def talk(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with raw_server(talk) as url, open_http() as client:
        endpoint = client.endpoint("POST", url, {})
        for _ in range(3):
            assert (await endpoint.send(BODY)).body == b"ok"
        assert connections == 3


async def test_a_stale_connection_is_retried_once_and_a_new_one_is_not() -> None:
    """A close without a byte is retried on a reused connection only; on a new one it is an error."""
    heard: list[bytes] = []

    async def talk(stream: trio.SocketStream) -> None:
        # Answers its first call and closes at the second, after having taken it: what a race with a timeout looks like.
        heard.append(bytes(await stream.receive_some()))
        if len(heard) == 4:
            return
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        heard.append(bytes(await stream.receive_some()))

    async with raw_server(talk) as url, open_http() as client:
        endpoint = client.endpoint("POST", url, {})
        assert (await endpoint.send(b"1")).body == b"ok"
        assert (await endpoint.send(b"2")).body == b"ok"
        assert [message[-1:] for message in heard] == [b"1", b"2", b"2"]
        with pytest.raises(Retryable, match="closed the connection without an answer"):
            await client.endpoint("POST", url.replace("127.0.0.1", "localhost"), {}).send(b"3")


async def test_a_call_is_not_sent_again_after_its_answer_began() -> None:
    """A reused connection that breaks after the first byte is an error: the server processed the call."""
    calls = 0

    async def talk(stream: trio.SocketStream) -> None:
        nonlocal calls
        while await stream.receive_some():
            calls += 1
            if calls == 2:
                await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nhalf")
                return
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with raw_server(talk) as url, open_http() as client:
        endpoint = client.endpoint("POST", url, {})
        await endpoint.send(b"1")
        with pytest.raises(Retryable, match=r"in the middle of its answer \(4 bytes of body came\)"):
            await endpoint.send(b"2")
        assert calls == 2


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"], b"abcde"),
        ([b"HTTP/1.1 200 OK\r\ncontent-le", b"ngth: 5\r\n\r\nab", b"cde"], b"abcde"),
        ([b"HTTP/1.0 200 OK\r\n\r\nabcde"], b"abcde"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde"], b"abcde"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
    ],
)
async def test_every_kind_of_body_is_read(pieces: list[bytes], body: bytes) -> None:
    """Bodies with a length, in chunks, until the connection closes, after a 100, and empty ones are read whole."""

    async def talk(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        for piece in pieces:
            await stream.send_all(piece)
            await trio.testing.wait_all_tasks_blocked(0.001)

    async with raw_server(talk) as url, open_http() as client:
        assert (await client.endpoint("POST", url, {}).send()).body == body


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"garbage\r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nab", "in the middle of its answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2000, "more than 1000 bytes of body"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2000 + b"\r\n\r\n", "more than 1000 bytes of headers"),
        (2 * b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", "more than one answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5", "in the middle of its answer"),
        (b"", "without an answer"),
    ],
)
async def test_bad_answers_are_retryable(answer: bytes, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncated, too large and malformed answers are errors that name the server and the problem."""
    monkeypatch.setattr(http_module, "MAX_BODY", 1000)
    monkeypatch.setattr(http_module, "MAX_HEADERS", 1000)

    async def talk(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)

    async with raw_server(talk) as url, open_http() as client:
        with pytest.raises(Retryable, match=rf"127\.0\.0\.1:\d+ .*{message}"):
            await client.endpoint("POST", url, {}).send()


async def test_a_reset_is_retryable() -> None:
    """A connection reset is a retryable error."""
    async with serve_openai() as server, open_http() as client:
        with pytest.raises(Retryable, match="reset"):
            await chat(client, server).send(b'{"messages": [{"role": "user", "content": "[[reset]]"}]}')


async def test_a_refused_connection_is_retryable() -> None:
    """The error names host and port."""
    async with serve_openai() as server:
        url = server.url
    async with open_http() as client:
        with pytest.raises(Retryable, match=r"no connection to 127\.0\.0\.1:\d+"):
            await client.endpoint("POST", url, {}).send()


def test_timeouts_are_retryable() -> None:
    """A call to a server that hangs ends after the timeout."""

    async def main() -> None:
        async with serve_openai() as server, open_http(timeout=7) as client:
            begun = trio.current_time()
            with pytest.raises(Retryable, match=r"no answer from 127\.0\.0\.1:\d+ within 7 s"):
                await chat(client, server).send(b'{"messages": [{"role": "user", "content": "[[hang]]"}]}')
            assert trio.current_time() - begun == pytest.approx(7, abs=0.1)
            await server.wait_until(disconnects=1)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05))


HANG = b'{"messages": [{"role": "user", "content": "[[hang]]"}]}'


def test_a_scope_of_the_caller_carries_the_deadline_of_the_call() -> None:
    """A deadline of the caller's scope counts as that of the call, unless it is later."""

    async def main() -> None:
        async with serve_openai() as server, open_http(timeout=7) as client:
            for deadline in (7, 100):
                begun = trio.current_time()
                with trio.CancelScope(deadline=begun + deadline) as scope:
                    assert (await chat(client, server).send(BODY, scope)).status == 200
                    with pytest.raises(Retryable, match=r"no answer from 127\.0\.0\.1:\d+ within 7 s"):
                        await chat(client, server).send(HANG, scope)
                    assert scope.deadline == begun + deadline
                assert not scope.cancelled_caught
                assert trio.current_time() - begun == pytest.approx(7, abs=0.1)
            await server.wait_until(disconnects=1)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05))


def test_a_scope_of_the_caller_can_end_before_the_call() -> None:
    """An earlier deadline of an outer scope, or a cancellation, is not turned into a failure."""

    async def main() -> None:
        async with serve_openai() as server, open_http(timeout=7) as client:
            with trio.move_on_after(3) as outer, trio.CancelScope() as inner:
                await chat(client, server).send(HANG, inner)
            assert outer.cancelled_caught
            assert not inner.cancelled_caught
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as cancelled:
                    nursery.start_soon(cancel_later, cancelled)
                    await chat(client, server).send(HANG, cancelled)
            assert cancelled.cancelled_caught

    async def cancel_later(scope: trio.CancelScope) -> None:
        await trio.sleep(2)
        scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05))


async def test_a_connection_that_takes_too_long_is_retryable(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    """Connecting has its own timeout."""

    async def never(*_: object) -> Any:
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", never)
    async with open_http(connect_timeout=3) as client:
        with pytest.raises(Retryable, match=r"no connection to example\.org:443 within 3 s"):
            await client.endpoint("POST", "https://example.org/", {}).send()
    assert trio.current_time() == pytest.approx(3)


async def test_tls_with_a_certificate_that_verifies() -> None:
    """Calls over TLS reuse their connection."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    trusting = ssl.create_default_context(cafile=CERTIFICATE)
    async with serve_openai(ssl_context=context) as server, open_http(ssl_context=trusting) as client:
        assert server.url.startswith("https://")
        endpoint = chat(client, server)
        for _ in range(3):
            assert (await endpoint.send(BODY)).status == 200
        assert server.statistics.connections == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(endpoint.send, b'{"messages": [{"role": "user", "content": "[[hang]]"}]}')
            await server.wait_until(requests=4)
            nursery.cancel_scope.cancel()
        await server.wait_until(disconnects=1)


async def test_a_certificate_that_does_not_verify_is_permanent() -> None:
    """A certificate of an unknown CA is rejected before anything is sent."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    async with serve_openai(ssl_context=context) as server, open_http() as client:
        with pytest.raises(Permanent, match=r"certificate of 127\.0\.0\.1:\d+ does not verify: self-signed"):
            await chat(client, server).send(BODY)
        assert server.statistics.requests == 0


async def test_large_bodies_are_sent_and_received() -> None:
    """Bodies of megabytes arrive whole in both directions."""
    echo = 3_000_000 * b"x"
    async with serve_openai(script=lambda request: Reply(body=request.body["text"])) as server, open_http() as client:
        body = b'{"messages": [{"content": "m"}], "text": "' + echo + b'"}'
        assert (await chat(client, server).send(body)).body == b'"' + echo + b'"'


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://me:hidden@example.org", "must be an http or https URL, not 'example.org'"),
        ("example.org", "must be an http or https URL, not 'example.org'"),
        ("http://", "must be an http or https URL with a host"),
        ("http:///v1", "must be an http or https URL with a host"),
        ("http://:8000", "must be an http or https URL with a host"),
        ("http://example.org:0/v1", "has the port '0'; a port is a whole number from 1 to 65535"),
        ("http://example.org:70000/v1", "has the port '70000'"),
        ("http://example.org:http/v1", "has the port 'http'"),
        ("http://exa mple.org/v1", "has the host 'exa mple.org', which contains whitespace"),
        ("http://exa\nmple.org/v1", "which contains whitespace"),
        ("http://me:hidden@exa mple.org/v1", "has the host 'exa mple.org'"),
        ("http://example..org", "has the host 'example..org', which is neither"),
        ("http://exa%20mple.org", "which is neither a host name nor an address"),
        (f"http://{64 * 'a'}.org", "which is neither a host name nor an address"),
        ("http://300.1.1.1", "has the host '300.1.1.1', which is neither"),
        ("http://[::1", "has the invalid host '[::1'"),
        ("http://[::zz]", "has the invalid host"),
    ],
)
def test_invalid_hosts_and_ports_are_rejected_before_a_run(url: str, message: str) -> None:
    """The spec of a model rejects an invalid URL; the message names the problem and shows no password."""
    with pytest.raises(ConfigError, match=f"base_url .*{re.escape(message)}") as caught:
        OpenAICompatible(base_url=url, model="small")
    assert "hidden" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"url (has|must)"):
        Validation("v", of="a", kind="remote", url=url)


@pytest.mark.parametrize(
    ("url", "host", "authority"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", "127.0.0.1:8000"),
        ("HTTPS://Example.org:443/v1", "example.org", "example.org"),
        ("http://model_server:80/v1", "model_server", "model_server"),
        ("http://[::1]:8000/v1", "::1", "[::1]:8000"),
        ("http://bücher.example/v1", "xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("http://example.org.:8/", "example.org.", "example.org.:8"),
        ("http://127.1/", "127.1", "127.1"),
    ],
)
def test_valid_hosts_are_accepted(url: str, host: str, authority: str) -> None:
    """Names, addresses and internationalised names are valid; the Host header omits the default port."""
    found = split_url(url)
    assert (found.host, found.authority) == (host, authority)


async def test_an_endpoint_validates_its_url() -> None:
    """A URL of another scheme is rejected when the endpoint is created."""
    async with open_http() as client:
        with pytest.raises(ConfigError, match="must be an http or https URL"):
            client.endpoint("POST", "ftp://example.org", {})


def deflate(data: bytes) -> bytes:
    """Raw deflate without the zlib header, as some servers send it."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", compress(b"hello" * 99)),
        ("X-Gzip", compress(b"hello" * 90) + compress(b"hello" * 9)),
        ("deflate", zlib.compress(b"hello" * 99)),
        ("deflate", deflate(b"hello" * 99)),
        ("deflate, gzip", compress(zlib.compress(b"hello" * 99))),
        ("identity", b"hello" * 99),
    ],
)
async def test_compressed_answers_are_decoded(encoding: str, body: bytes) -> None:
    """Bodies in gzip or deflate are decompressed, whether requested or not."""
    reply = Reply(body=body, headers={"content-encoding": encoding})
    async with serve_openai(script=lambda _: reply) as server, open_http() as client:
        assert (await chat(client, server).send(BODY)).body == b"hello" * 99


@pytest.mark.parametrize(
    ("encoding", "body", "error", "message"),
    [
        ("br", b"?", Permanent, "unsupported content-encoding 'br'"),
        ("gzip", b"plain text", Retryable, "sent a body that is not valid gzip"),
        ("gzip", compress(b"hello")[:-9], Retryable, r"not valid gzip \(its end is missing\)"),
        ("gzip", compress(b"x" * 2_000), Retryable, "more than 1000 bytes of body"),
    ],
)
async def test_bodies_that_cannot_be_decompressed_are_errors(
    encoding: str, body: bytes, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the encoding; with an error status the response is returned all the same."""
    monkeypatch.setattr(http_module, "MAX_BODY", 1_000)
    status = 200
    headers = {"content-encoding": encoding, "retry-after": "3"}
    async with (
        serve_openai(script=lambda _: Reply(status=status, body=body, headers=headers)) as server,
        open_http() as client,
    ):
        with pytest.raises(error, match=message):
            await chat(client, server).send(BODY)
        status = 429
        response = await chat(client, server).send(BODY)
        assert (response.status, response.headers["retry-after"]) == (429, "3")
        assert re.search(message, response.body.decode())


async def test_nothing_shows_the_head_of_a_call() -> None:
    """Neither a client nor an endpoint has a repr with the key in it."""
    async with open_http() as client:
        endpoint = client.endpoint("POST", "http://127.0.0.1/", {"authorization": "Bearer hidden-key"})
        assert "hidden" not in repr(endpoint) + repr(client)


async def test_closing_a_client_closes_idle_connections() -> None:
    """No connection stays open after the block."""
    async with serve_openai() as server:
        async with open_http() as client:
            await chat(client, server).send(BODY)
            (pool,) = client._pools.values()  # type: ignore[attr-defined]
            (connection,) = pool._idle
        assert not connection.wire.is_quiet()


async def test_an_unrequested_upgrade_is_an_error() -> None:
    """A server that switches protocols is a retryable error."""

    async def talk(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nmore")

    async with raw_server(talk) as url, open_http() as client:
        with pytest.raises(Retryable, match="another protocol"):
            await client.endpoint("POST", url, {}).send()
