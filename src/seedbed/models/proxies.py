"""The proxy that a call goes through, as `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` say, in either case.

As with curl and httpx, an address of this machine goes through the proxy too unless `NO_PROXY` names it.
"""

from __future__ import annotations

import base64
import ipaddress
import os
from typing import TYPE_CHECKING
from urllib.parse import unquote

import attrs

from ..errors import ConfigError, Permanent, Retryable
from .urls import split_url

if TYPE_CHECKING:
    import trio

    from .urls import Url

_MAX_ANSWER = 65_536


@attrs.frozen(kw_only=True)
class Proxy:
    """A proxy that is spoken to over HTTP; `authorization` is what its `Proxy-Authorization` header holds."""

    host: str
    port: int
    authorization: str | None = attrs.field(repr=False)

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the proxy {self.host}:{self.port}"

    async def open_tunnel(self, stream: trio.SocketStream, host: str, port: int) -> None:
        """Have the proxy connect to a host, so that TLS can be spoken with it. Raises `Permanent` or `Retryable`."""
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"host: {target}"]
        if self.authorization:
            lines.append(f"proxy-authorization: {self.authorization}")
        await stream.send_all("\r\n".join([*lines, "", ""]).encode("ascii"))
        answer = bytearray()
        while b"\r\n\r\n" not in answer:
            received = await stream.receive_some()
            answer += received
            if not received or len(answer) > _MAX_ANSWER:
                raise Retryable(f"{self.name} did not answer CONNECT {target} in HTTP")
        version, _, rest = bytes(answer).partition(b"\r\n")[0].partition(b" ")
        status = rest[:3]
        if not version.startswith(b"HTTP/1.") or not status.isdigit():
            raise Retryable(f"{self.name} did not answer CONNECT {target} in HTTP")
        if not 200 <= int(status) < 300:
            raise self.refusal(int(status), target)

    def refusal(self, status: int, target: str) -> Permanent | Retryable:
        """The failure that a status of the proxy itself means."""
        if status == 407:
            wrong = "does not accept the user name and password" if self.authorization else "wants credentials"
            return Permanent(f"{self.name} {wrong} (407): write the proxy as http://user:password@host:port")
        said = f"{self.name} refuses the connection to {target} (status {status})"
        return Retryable(said) if status >= 500 or status in {408, 429} else Permanent(said)


def proxy_for(url: Url) -> Proxy | None:
    """The proxy that the environment asks for, if any. Raises `ConfigError` where that is no proxy."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib import request  # noqa: PLC0415  seldom needed, slow

    proxies = request.getproxies_environment()
    given = proxies.get(url.scheme) or proxies.get("all")
    # typeshed does not know it, although it is beside the other on every system.
    is_exception = request.proxy_bypass_environment(f"{url.host}:{url.port}", proxies)  # type: ignore[attr-defined]
    if not given or is_exception or _is_in_network(url.host, proxies):
        return None
    variable = f"{url.scheme.upper()}_PROXY" if proxies.get(url.scheme) else "ALL_PROXY"
    try:
        found = split_url(given if "://" in given else f"http://{given}")
    except ValueError as error:
        raise ConfigError(f"the environment variable {variable} {error}") from None
    if found.scheme != "http":
        raise ConfigError(f"the environment variable {variable} must be an http URL: proxies are spoken to over HTTP")
    authorization = None
    if found.username is not None:
        pair = f"{unquote(found.username)}:{unquote(found.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Proxy(host=found.host, port=found.port, authorization=authorization)


def _is_in_network(host: str, proxies: dict[str, str]) -> bool:
    """Whether NO_PROXY has the address, or a network such as 10.0.0.0/8 that holds it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in proxies.get("no", "").split(","):
        try:
            if address in ipaddress.ip_network(entry.strip().strip("[]"), strict=False):
                return True
        except ValueError:
            continue
    return False
