"""Calls over HTTP/2, through pyqwest."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyqwest
import trio

from ..errors import ConfigError, Permanent, Retryable
from .http import MAX_BODY, HttpResponse, check_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from .http import Endpoint

# How long an aborted call may still touch the interpreter from pyqwest's threads: leaving the run earlier can crash it.
_SETTLE = 0.05


@asynccontextmanager
async def open_http2(
    *,
    timeout: float,  # noqa: ASYNC109  of each call, not of opening
    connect_timeout: float,
) -> AsyncIterator[Http2Client]:
    """A client that asks for HTTP/2, and gets HTTP/1.1 from servers that have nothing else over TLS."""
    client = Http2Client(timeout, connect_timeout)
    try:
        yield client
    finally:
        await client.aclose()


class Http2Client:
    """One transport of pyqwest; `cancelled_at` is when a call was last given up, changed by the calls."""

    def __init__(self, timeout: float, connect_timeout: float) -> None:
        # Over TLS the two sides agree on a version; in the clear there is nothing to agree with but to begin with it.
        self._negotiated, self._assumed = (
            pyqwest.HTTPTransport(
                connect_timeout=connect_timeout,
                http_version=version,
                tls_include_system_certs=True,
                follow_redirects=False,
                enable_otel=False,
            )
            for version in (None, pyqwest.HTTPVersion.HTTP2)
        )
        self.timeout = timeout
        self.cancelled_at: float | None = None

    def endpoint(self, method: str, url: str, headers: Mapping[str, str]) -> Endpoint:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"{url!r} is not an http or https URL")
        check_headers(headers)
        transport = self._negotiated if parts.scheme == "https" else self._assumed
        return _Http2Endpoint(self, pyqwest.Client(transport), method, url, headers)

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1.0):
            await self._negotiated.aclose()
            await self._assumed.aclose()
            if self.cancelled_at is not None:
                await trio.sleep(max(0.0, self.cancelled_at + _SETTLE - trio.current_time()))


class _Http2Endpoint:
    """The headers hold the key, so they are in no repr."""

    __slots__ = ("_client", "_headers", "_method", "_name", "_owner", "_url")

    def __init__(
        self,
        owner: Http2Client,
        client: pyqwest.Client,
        method: str,
        url: str,
        headers: Mapping[str, str],
    ) -> None:
        self._owner = owner
        self._client = client
        self._method = method
        self._url = url
        self._headers = dict(headers)
        self._name = urlsplit(url).netloc.rpartition("@")[2]

    async def send(self, body: bytes = b"") -> HttpResponse:
        # pyqwest begins a call before it is awaited, so one of a cancelled scope would still reach the server.
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.move_on_after(self._owner.timeout):
            try:
                answer = await self._client.execute(self._method, self._url, self._headers, body)
            except trio.Cancelled:
                self._owner.cancelled_at = trio.current_time()
                raise
            except (OSError, TimeoutError, pyqwest.RemoteProtocolError, pyqwest.ReadError, pyqwest.WriteError) as error:
                if "certificate" in str(error).lower():
                    raise Permanent(f"the certificate of {self._name} does not verify: {error}") from error
                raise Retryable(f"no answer from {self._name}: {error}") from error
            if len(answer.content) > MAX_BODY:
                raise Retryable(f"{self._name} sent more than {MAX_BODY} bytes of body")
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return HttpResponse(answer.status, headers, answer.content)
        raise Retryable(f"no answer from {self._name} within {self._owner.timeout:g} s")
