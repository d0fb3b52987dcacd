from __future__ import annotations

import base64
import gzip
import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from model_helpers import ask

from seedbed import OpenAICompatible
from seedbed.errors import CellError, ConfigError, Permanent, Retryable
from seedbed.models import open_http
from seedbed.models.urls import proxy_for, split_url
from seedbed.testing import Reply, serve_openai

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from seedbed.testing import ServerRequest

# Certificate and key of 127.0.0.1; it has signed itself.
CERTIFICATE = Path(__file__).with_name("loopback.pem")
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@attrs.define(eq=False)
class LoopbackProxy:
    """A proxy that forwards requests, or answers with `status`; `heads` are the heads that it received."""

    status: int = 200
    credentials: str | None = None
    port: int = 0
    heads: list[str] = attrs.field(factory=list)

    async def serve(self, client: trio.SocketStream) -> None:
        """One connection."""
        async with client:
            data = b""
            while b"\r\n\r\n" not in data:
                received = await client.receive_some()
                if not received:
                    return
                data += received
            head, _, body = data.partition(b"\r\n\r\n")
            self.heads.append(head.decode())
            status = self.status
            if self.credentials is not None:
                wanted = base64.b64encode(self.credentials.encode()).decode()
                status = status if f"proxy-authorization: Basic {wanted}" in head.decode() else 407
            if status != 200:
                await client.send_all(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % status)
                return
            method, target, _ = head.split(b"\r\n")[0].split(b" ")
            authority = target if method == b"CONNECT" else target.split(b"/")[2]
            host, _, port = authority.decode().rpartition(":")
            async with await trio.open_tcp_stream(host, int(port)) as server:
                if method == b"CONNECT":
                    await client.send_all(b"HTTP/1.1 200 Connection established\r\nvia: test\r\n\r\n")
                else:
                    path = b"/" + target.split(b"/", 3)[3]
                    await server.send_all(head.replace(target, path, 1) + b"\r\n\r\n" + body)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._forward, client, server, nursery.cancel_scope)
                    nursery.start_soon(self._forward, server, client, nursery.cancel_scope)

    async def _forward(self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            while data := await source.receive_some():
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


@asynccontextmanager
async def open_proxy(status: int = 200, credentials: str | None = None) -> AsyncIterator[LoopbackProxy]:
    """A proxy on loopback."""
    proxy = LoopbackProxy(status=status, credentials=credentials)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, proxy.serve, [listener])
        yield proxy
        nursery.cancel_scope.cancel()


def server_context() -> ssl.SSLContext:
    """TLS with the certificate of loopback."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    return context


async def say_hello(spec: OpenAICompatible) -> str:
    """One call of a model."""
    async with spec.open() as client:
        return (await client.chat(ask("hello"))).text


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_plain_calls_go_through_the_proxy(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy receives the whole http URL and the credentials, and its connection is reused."""
    async with open_proxy(credentials="me:p@ss") as proxy, serve_openai(answer="hi") as server:
        monkeypatch.setenv(variable, f"http://me:p%40ss@127.0.0.1:{proxy.port}")
        async with OpenAICompatible(base_url=server.url, model="m").open() as client:
            for _ in range(2):
                assert (await client.chat(ask("hello"))).text == "hi"
        (head,) = proxy.heads
        assert head.startswith(f"POST {server.url}/chat/completions HTTP/1.1\r\n")
        assert server.statistics.connections == 1


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "all_proxy"])
async def test_tls_calls_go_through_a_tunnel(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An https URL is reached by CONNECT; the certificate is the server's, and the proxy sees no key."""
    monkeypatch.setenv("TEST_KEY", "sk-hidden-0123456789")
    async with (
        open_proxy(credentials="me:pass") as proxy,
        serve_openai(answer="hi", api_key="sk-hidden-0123456789", ssl_context=server_context()) as server,
    ):
        monkeypatch.setenv(variable, f"me:pass@127.0.0.1:{proxy.port}")
        spec = OpenAICompatible(base_url=server.url, model="m", api_key_env="TEST_KEY", ca_file=str(CERTIFICATE))
        assert await say_hello(spec) == "hi"
        (head,) = proxy.heads
        assert head.startswith(f"CONNECT {split_url(server.url).authority} HTTP/1.1\r\n")
        assert "hidden" not in head


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    ("status", "credentials", "user", "error", "message"),
    [
        (407, None, "", Permanent, r"the proxy 127\.0\.0\.1:\d+ requires credentials \(407\)"),
        (200, "me:right", "me:wrong@", Permanent, r"does not accept the user name and password \(407\)"),
        (403, None, "", Permanent, r"403"),
        (502, None, "", Retryable, r"502"),
    ],
)
async def test_an_error_of_the_proxy_names_it(
    *,
    tls: bool,
    status: int,
    credentials: str | None,
    user: str,
    error: type[CellError],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the proxy and shows no password; nothing reaches the server."""
    async with (
        open_proxy(status, credentials) as proxy,
        serve_openai(ssl_context=server_context() if tls else None) as server,
    ):
        monkeypatch.setenv("ALL_PROXY", f"http://{user}127.0.0.1:{proxy.port}")
        with pytest.raises(error, match=message) as caught:
            await say_hello(OpenAICompatible(base_url=server.url, model="m", ca_file=str(CERTIFICATE)))
        assert "wrong" not in str(caught.value)
        assert server.statistics.requests == 0


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_cannot_be_reached_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the connection to the proxy is refused, the error names the proxy."""
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with pytest.raises(Retryable, match=r"no connection to example\.org:\d+ through the proxy 127\.0\.0\.1:9: "):
        await say_hello(OpenAICompatible(base_url=f"{scheme}://example.org/v1", model="m"))


async def test_a_proxy_that_does_not_speak_http_is_retryable(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer to CONNECT that is not HTTP is a retryable error."""

    async def talk(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"220 mail ready\r\n\r\n")

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, talk, [listener])
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listener.socket.getsockname()[1]}")
        with pytest.raises(Retryable, match=r"the proxy 127\.0\.0\.1:\d+ sent something that is not HTTP"):
            await say_hello(OpenAICompatible(base_url="https://example.org/v1", model="m"))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("url", "exceptions", "is_proxied"),
    [
        ("http://example.org/", "", True),
        ("http://127.0.0.1:8000/", "", True),
        ("http://127.0.0.1:8000/", "localhost,127.0.0.1", False),
        ("http://example.org/", "example.org", False),
        ("http://api.example.org/", "other.net, .example.org", False),
        ("http://badexample.org/", "example.org", True),
        ("http://example.org:8000/", "example.org:8000", False),
        ("http://example.org:8001/", "example.org:8000", True),
        ("http://10.1.2.3/", "10.0.0.0/8", False),
        ("http://11.1.2.3/", "10.0.0.0/8", True),
        ("http://[::1]:8000/", "::1", False),
        ("http://example.org/", "*", False),
    ],
)
def test_no_proxy(url: str, exceptions: str, is_proxied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_PROXY lists hosts with their subdomains, hosts with a port, addresses and networks; * is everything."""
    monkeypatch.setenv("HTTP_PROXY", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", exceptions)
    assert (proxy_for(split_url(url)) is not None) is is_proxied


@pytest.mark.parametrize("value", ["socks5://127.0.0.1:1", "https://127.0.0.1:1", "http://me:hidden@proxy:99999"])
def test_an_invalid_proxy_is_a_problem_of_the_model(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid proxy URL is reported before a run, without its password."""
    monkeypatch.setenv("HTTPS_PROXY", value)
    (problem,) = OpenAICompatible(base_url="https://example.org/v1", model="m").problems()
    assert "the environment variable HTTPS_PROXY" in problem
    assert "hidden" not in problem


async def test_ssl_cert_file_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates of SSL_CERT_FILE are trusted by every model."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    async with serve_openai(answer="hi", ssl_context=server_context()) as server:
        assert await say_hello(OpenAICompatible(base_url=server.url, model="m")) == "hi"


@pytest.mark.parametrize(
    ("ca_file", "variable", "message"),
    [
        ("missing.pem", None, "ca_file 'missing.pem' cannot be used: No such file"),
        (__file__, None, "cannot be used"),
        (None, "missing.pem", "SSL_CERT_FILE names 'missing.pem', which is not a file"),
    ],
)
async def test_certificates_that_cannot_be_read_are_problems(
    ca_file: str | None, variable: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing file, or one without certificates, is reported before a run."""
    if variable is not None:
        monkeypatch.setenv("SSL_CERT_FILE", variable)
    spec = OpenAICompatible(base_url="https://example.org/v1", model="m", ca_file=ca_file)
    (problem,) = spec.problems()
    assert message in problem
    with pytest.raises(ConfigError, match=r"cannot be used|is not a file"):
        async with spec.open():
            pass


async def test_compressed_answers_are_requested() -> None:
    """Calls send accept-encoding: gzip unless their headers set another value."""
    accepted: list[str] = []

    def script(request: ServerRequest) -> Reply:
        accepted.append(request.headers["accept-encoding"])
        return Reply(body=gzip.compress(b"hello"), headers={"content-encoding": "gzip"})

    async with serve_openai(script=script) as server, open_http() as client:
        for headers in ({}, {"Accept-Encoding": "identity"}):
            endpoint = client.endpoint("POST", f"{server.url}/chat/completions", headers)
            assert (await endpoint.send(b'{"messages": []}')).body == b"hello"
    assert accepted == ["gzip", "identity"]
