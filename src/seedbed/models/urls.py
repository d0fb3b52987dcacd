"""Parsing of http and https URLs, and the proxies that the environment configures for them.

`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` are read in upper and lower case. As with curl and httpx, calls
to loopback addresses use the proxy too unless `NO_PROXY` lists them.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import socket
from urllib.parse import quote, unquote, urlsplit

import attrs

from ..errors import ConfigError, ModelMisconfigured, Permanent, Retryable

_AUTHORITY = re.compile(r"\w+://([^/?#]*)")
_LABEL = re.compile(r"[a-z0-9_-]{1,63}", re.IGNORECASE)
# Characters that are not percent-encoded; all others are, including those outside of ASCII.
_PATH_SAFE = "/%:@!$&'()*+,;=~?"


@attrs.frozen(kw_only=True)
class Url:
    """The parts of a URL in the form in which they are sent; `host` is ASCII, without brackets."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query."""
    username: str | None = attrs.field(repr=False)
    password: str | None = attrs.field(repr=False)

    @property
    def authority(self) -> str:
        """Host and port as in a Host header, without the default port of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _default_port(self.scheme) else f"{host}:{self.port}"


def server_of(url: str | None) -> str | None:
    """Host and port of a valid URL."""
    return None if url is None else split_url(url).authority


def split_url(url: object) -> Url:
    """Split an http or https URL. Raises `ValueError` with the problem, without showing a password."""
    if not isinstance(url, str):
        raise ValueError(f"must be an http or https URL, not {url!r}")  # noqa: TRY004  one kind of error for a value
    found = _AUTHORITY.match(url)
    authority = found.group(1).rpartition("@")[2] if found else ""
    if re.search(r"[\s\0-\x1f\x7f]", authority):  # urlsplit silently removes line breaks
        raise ValueError(f"has the host {authority!r}, which contains whitespace")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise ValueError(f"has the invalid host {authority!r}: {error}") from error
    if parts.scheme not in {"http", "https"}:
        raise ValueError(f"must be an http or https URL, not {url.rpartition('@')[2]!r}")
    if not host:
        raise ValueError("must be an http or https URL with a host")
    try:
        port = _default_port(parts.scheme) if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not port:
        shown = authority.rpartition(":")[2]
        raise ValueError(f"has the port {shown!r}; a port is a whole number from 1 to 65535")
    target = quote(parts.path, safe=_PATH_SAFE) or "/"
    if parts.query:
        target += f"?{quote(parts.query, safe=_PATH_SAFE)}"
    return Url(
        scheme=parts.scheme,
        host=_check_host(host, is_bracketed="[" in authority),
        port=port,
        target=target,
        username=parts.username,
        password=parts.password,
    )


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _check_host(host: str, *, is_bracketed: bool) -> str:
    """Return the host in ASCII; raises `ValueError` if it is invalid."""
    try:
        if is_bracketed:
            return str(ipaddress.IPv6Address(host))
        name = host if host.isascii() else host.encode("idna").decode("ascii")
        labels = name.removesuffix(".").split(".")
        if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
            raise ValueError("not a host name")
        if labels[-1].isdigit():  # no top-level domain is a number: this is an address
            socket.inet_aton(name)
    except (ValueError, OSError) as error:  # UnicodeError is a ValueError
        raise ValueError(f"has the host {host!r}, which is neither a host name nor an address") from error
    return name


@attrs.frozen(kw_only=True)
class Proxy:
    """An HTTP proxy; `authorization` is the value of the `Proxy-Authorization` header."""

    host: str
    port: int
    authorization: str | None = attrs.field(repr=False)

    @property
    def name(self) -> str:
        return f"the proxy {self.host}:{self.port}"

    @property
    def headers(self) -> list[str]:
        return [f"proxy-authorization: {self.authorization}"] if self.authorization else []

    def rejection(self, status: int, target: str) -> Permanent | Retryable:
        """The failure for an error status of the proxy itself."""
        if status == 407:
            wrong = "does not accept the user name and password" if self.authorization else "requires credentials"
            return ModelMisconfigured(
                f"{self.name} {wrong} (407)", fix="write the proxy as http://user:password@host:port"
            )
        message = f"{self.name} rejects the connection to {target} (status {status})"
        return Retryable(message) if status >= 500 or status in {408, 429} else Permanent(message)


def proxy_for(url: Url) -> Proxy | None:
    """Return the proxy that the environment configures, if any. Raises `ConfigError` if its URL is invalid."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib import request  # noqa: PLC0415  seldom needed, slow

    proxies = request.getproxies_environment()
    given = proxies.get(url.scheme) or proxies.get("all")
    # Missing in typeshed, but available on all platforms.
    is_exception = request.proxy_bypass_environment(f"{url.host}:{url.port}", proxies)  # type: ignore[attr-defined]
    if not given or is_exception or _is_in_network(url.host, proxies):
        return None
    variable = f"{url.scheme.upper()}_PROXY" if proxies.get(url.scheme) else "ALL_PROXY"
    try:
        found = split_url(given if "://" in given else f"http://{given}")
    except ValueError as error:
        raise ConfigError(f"the environment variable {variable} {error}") from None
    if found.scheme != "http":
        raise ConfigError(f"the environment variable {variable} must be an http URL: only HTTP proxies are supported")
    authorization = None
    if found.username is not None:
        pair = f"{unquote(found.username)}:{unquote(found.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Proxy(host=found.host, port=found.port, authorization=authorization)


def _is_in_network(host: str, proxies: dict[str, str]) -> bool:
    """True if NO_PROXY lists the address or a network such as 10.0.0.0/8 that contains it."""
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
