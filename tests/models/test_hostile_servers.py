"""Servers that break the rules of HTTP: each call ends with a clear error in time and leaves no socket open."""

from __future__ import annotations

import functools
import gzip
import re
import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from model_helpers import ask, open_pair

from seedbed import OpenAICompatible
from seedbed.errors import CellError, ConfigError, Permanent, Retryable
from seedbed.models import http as http_module
from seedbed.models import open_http
from seedbed.testing import Reply, serve_openai

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CERTIFICATE = Path(__file__).with_name("loopback.pem")
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"

# Without the instant, which would change the names of tests from process to process.
compress = functools.partial(gzip.compress, mtime=0)


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "MAX_BODY", 100_000)
    monkeypatch.setattr(http_module, "MAX_HEADERS", 10_000)


def open_sockets() -> int:
    """The number of file descriptors of this process that are sockets."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += str(entry.readlink()).startswith("socket:")
        except OSError:  # the descriptor of the listing itself
            continue
    return found


@asynccontextmanager
async def server_of(answer: bytes, *, then: bytes = b"", hangs: bool = False) -> AsyncIterator[str]:
    """A server that sends `answer` to each call, then `then` without end or nothing at all. No socket is left open."""

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                while await stream.receive_some():
                    await stream.send_all(answer)
                    while then:
                        await stream.send_all(then)
                    if hangs:
                        await trio.sleep_forever()
            except trio.BrokenResourceError:
                pass

    before = open_sockets()
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        nursery.cancel_scope.cancel()
    assert open_sockets() == before


def with_length(body: bytes, *headers: bytes) -> bytes:
    """A response with a body of that length."""
    return OK + b"".join(header + b"\r\n" for header in headers) + b"content-length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    ("answer", "then"),
    [
        (OK + b"content-length: 5\r\n\r\n", b""),
        (OK + b"content-le", b""),
        (OK + b"content-length: 99999999999\r\n\r\nabc", b""),
        (b"HTTP/1.1 102 Processing\r\n\r\n", b""),
        (CHUNKED + b"3;a=", b"b" * 1000),
    ],
)
async def test_a_server_that_never_ends_its_answer(answer: bytes, then: bytes) -> None:
    """A pause after the headers, an endless chunk extension and the like end with the timeout."""
    async with server_of(answer, then=then, hangs=True) as url, open_http(timeout=0.1) as client:
        with pytest.raises(Retryable, match=r"no answer from 127\.0\.0\.1:\d+ within 0.1 s"):
            await client.endpoint("POST", url, {}).send()


@pytest.mark.parametrize(
    ("answer", "then", "message"),
    [
        (CHUNKED, b"1000\r\n" + b"x" * 4096 + b"\r\n", "more than 100000 bytes of body"),
        (CHUNKED, b"1\r\nx\r\n" * 500, "more than 100000 bytes of body"),
        (OK + b"\r\n", b"x" * 1000, "more than 100000 bytes of body"),
        (OK, b"a: b\r\n" * 100, "more than 10000 bytes of headers"),
        (OK + b"a: ", b"b" * 1000, "more than 10000 bytes of headers"),
        (OK, b"b" * 1000, "more than 10000 bytes of headers"),
        (b"HTTP/1.1 200 ", b"b" * 1000, "more than 10000 bytes of headers"),
        (CHUNKED + b"0\r\n", b"a: b\r\n" * 100, "more than 10000 bytes of headers"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, "more than 10000 bytes of headers"),
    ],
)
async def test_endless_answers_end_at_a_limit(answer: bytes, then: bytes, message: str) -> None:
    """Chunks, headers, one endless header, trailers and interim responses are read up to a limit."""
    async with server_of(answer, then=then) as url, open_http(timeout=60) as client:
        with pytest.raises(Retryable, match=message):
            await client.endpoint("POST", url, {}).send()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (OK + b"content-length: 2\r\n\r\nabcdef", "more than its content-length"),
        (OK + b"content-length: -2\r\n\r\nab", r"not HTTP \(Invalid character in Content-Length\)"),
        (OK + b"content-length: 2\r\ncontent-length: 4\r\n\r\nabcd", r"not HTTP \(Duplicate Content-Length\)"),
        (OK + b"content-length: 99999999999999999999999\r\n\r\nab", r"not HTTP \(Content-Length overflow\)"),
        (OK + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "not HTTP"),
        (CHUNKED + b"-1\r\nabc\r\n0\r\n\r\n", r"not HTTP \(Invalid character in chunk size\)"),
        (CHUNKED + b"fffffffffffffffffffff\r\nabc", r"not HTTP \(Chunk size overflow\)"),
        (b"<html>hello</html>", "not HTTP"),
        (OK + b"a: b\0c\r\ncontent-length: 2\r\n\r\nok", "not HTTP"),
        (with_length(compress(bytes(10_000_000)), b"content-encoding: gzip"), "more than 100000 bytes of body"),
        (with_length(compress(compress(bytes(10_000_000))), b"content-encoding: gzip, gzip"), "more than"),
        (with_length(compress(b"x") * 200, b"content-encoding: gzip"), "more than 100 members"),
        (with_length(compress(b"x")[:-4], b"content-encoding: gzip"), "its end is missing"),
        (with_length(b"x", b"transfer-encoding: br"), "not HTTP"),
    ],
)
async def test_contradictory_answers_are_retryable(answer: bytes, message: str) -> None:
    """Wrong lengths, lengths beside chunks, and bodies that grow when decompressed name the server and the problem."""
    async with server_of(answer, hangs=True) as url, open_http(timeout=30) as client:
        with pytest.raises(Retryable, match=rf"127\.0\.0\.1:\d+ sent .*{message}"):
            await client.endpoint("POST", url, {}).send()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + with_length(b"abc"),
        b"HTTP/1.1 100 Continue\r\ncontent-length: 5\r\n\r\n" + with_length(b"abc"),
        CHUNKED + b"3\r\nabc\r\n0\r\ncontent-encoding: gzip\r\nretry-after: 99\r\n\r\n",
        with_length(compress(b"abc"), b"content-encoding: gzip", b"content-encoding: identity"),
        OK
        + b"transfer-encoding: gzip, chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(compress(b"abc")), compress(b"abc")),
        with_length(b"abc", *(b"h%d: v" % number for number in range(1_000))),
    ],
)
async def test_unusual_answers_are_read(answer: bytes) -> None:
    """Interim responses, trailers, repeated headers and a compressed transfer are as the standard has them."""
    async with server_of(answer) as url, open_http(timeout=30) as client:
        for _ in range(2):
            response = await client.endpoint("POST", url, {}).send()
            assert (response.status, response.body) == (200, b"abc")
            assert "retry-after" not in response.headers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-thing", "hidden\r\nx-other: 1"),
        ("x-thing", "hidden\x01"),
        ("x-thing", "hiddené"),
        ("x-thing\r\nx-other", "hidden"),
        ("x-thé", "hidden"),
        ("x thing", "hidden"),
        ("", "hidden"),
        ("Content-Length", "3"),
        ("host", "example.org"),
        ("transfer-encoding", "chunked"),
    ],
)
def test_headers_cannot_inject_others(name: str, value: str) -> None:
    """A header with a line break, or one that the client sets itself, is rejected and its value is not shown."""
    with pytest.raises(ConfigError, match=r"header") as caught:
        OpenAICompatible(base_url="http://127.0.0.1:9", model="m", headers={name: value})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-hidden\r\nx-other: 1", "sk-hidden…"])
async def test_a_key_that_cannot_be_sent_is_a_problem_of_the_model(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with a line break or characters outside ASCII is reported before anything runs, without its value."""
    monkeypatch.setenv("TEST_KEY", key)
    spec = OpenAICompatible(base_url="http://127.0.0.1:9", model="m", api_key_env="TEST_KEY")
    (problem,) = spec.problems()
    assert "the environment variable TEST_KEY, which must be one line of ASCII" in problem
    assert "hidden" not in problem
    monkeypatch.setenv("TEST_KEY", "sk-fine\r\n")
    assert spec.problems() == []


async def test_a_model_name_cannot_inject_a_header() -> None:
    """A line break in a model name is sent within the JSON body."""
    async with serve_openai(record=True) as server:
        async with OpenAICompatible(base_url=server.url, model="m\r\nx-other: 1").open() as client:
            await client.chat(ask("hello"))
        (request,) = server.requests
    assert request.body["model"] == "m\r\nx-other: 1"
    assert "x-other" not in request.headers


async def test_a_redirect_does_not_receive_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect to another host is reported and not followed."""
    monkeypatch.setenv("TEST_KEY", "sk-hidden-0123456789")
    async with serve_openai(record=True) as other:
        reply = Reply(status=307, body=b"", headers={"location": f"{other.url}/chat/completions?key=sk-hidden-01"})
        async with serve_openai(script=lambda _: reply) as server:
            spec = OpenAICompatible(base_url=server.url, model="m", api_key_env="TEST_KEY")
            async with spec.open() as client:
                with pytest.raises(
                    CellError, match=r"answered 307: it has moved to http.*; correct its base_url"
                ) as caught:
                    await client.chat(ask("hello"))
        assert other.statistics.requests == 0
    assert "hidden" not in str(caught.value)


def tls_server() -> ssl.SSLContext:
    """TLS with the certificate of 127.0.0.1, which has signed itself."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    return context


@pytest.mark.parametrize(
    ("host", "ca_file", "message"),
    [
        ("127.0.0.1", None, "self-signed certificate; .* ca_file of the model or in SSL_CERT_FILE"),
        ("127.1", str(CERTIFICATE), "mismatch.*; correct the host of the URL"),
    ],
)
async def test_a_certificate_that_does_not_verify(host: str, ca_file: str | None, message: str) -> None:
    """The error of an unknown CA names the options that add one; that of a wrong host does not."""
    before = open_sockets()
    async with serve_openai(ssl_context=tls_server()) as server:
        url = server.url.replace("127.0.0.1", host)
        async with OpenAICompatible(base_url=url, model="m", ca_file=ca_file).open() as client:
            with pytest.raises(Permanent, match=rf"certificate of {re.escape(host)}:\d+ does not verify: .*{message}"):
                await client.chat(ask("hello"))
    assert open_sockets() == before


async def test_a_server_without_tls_behind_an_https_url() -> None:
    """The error says that the server does not speak TLS."""
    async with server_of(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n") as url, open_http() as client:
        with pytest.raises(Permanent, match=r"does not speak TLS; .*use an http URL"):
            await client.endpoint("POST", url.replace("http:", "https:"), {}).send()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (with_length(b"<html>Please log in</html>"), "answered CONNECT example.org:443 with a page"),
        (b"HTTP/1.1 407 No\r\ncontent-length: 9\r\n\r\n<html>407", "requires credentials"),
        (b"<html>Please log in</html>\r\n\r\n", "sent something that is not HTTP"),
        (b"x" * 70_000, "sent something that is not HTTP"),
    ],
)
async def test_a_proxy_that_answers_with_a_page(answer: bytes, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login page in place of a tunnel is an error that names the proxy, and the socket is closed."""
    async with server_of(answer, hangs=True) as url:
        monkeypatch.setenv("HTTPS_PROXY", url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with open_http(timeout=30) as client:
            with pytest.raises(CellError, match=rf"the proxy 127\.0\.0\.1:\d+ .*{message}"):
                await client.endpoint("POST", "https://example.org/", {}).send()


@pytest.mark.parametrize(
    "given",
    ["-5", "1e12", "1e300", "inf", "Wed, 21 Oct 2015 07:28:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "soon", ""],
)
async def test_extreme_values_of_retry_after(given: str) -> None:
    """A call is rate-limited with any Retry-After; the throttle bounds the wait."""
    reply = Reply(status=429, body=b"", headers={"retry-after": given, "retry-after-ms": "nan"})
    async with open_pair(script=lambda _: reply) as (_, client):
        with pytest.raises(CellError, match="answered 429") as caught:
            await client.chat(ask("hello"))
    found: Any = caught.value
    assert found.retry_after == (None if given in {"inf", "soon", ""} else given)
