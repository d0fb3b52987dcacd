"""Where a call goes: an http or https URL, checked so far as that can be done without asking the network."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import quote, urlsplit

import attrs

_AUTHORITY = re.compile(r"\w+://([^/?#]*)")
_LABEL = re.compile(r"[a-z0-9_-]{1,63}", re.IGNORECASE)
# What may stand in a URL as it is; the rest is written as %xx, and so is what is not ASCII.
_PATH_SAFE = "/%:@!$&'()*+,;=~?"


@attrs.frozen(kw_only=True)
class Url:
    """The parts of a URL as they are sent; `host` is ASCII and without brackets."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query."""
    username: str | None = attrs.field(repr=False)
    password: str | None = attrs.field(repr=False)

    @property
    def authority(self) -> str:
        """Host and port as a Host header has them, without the port that the scheme implies."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _default_port(self.scheme) else f"{host}:{self.port}"


def split_url(url: object) -> Url:
    """The parts of an http or https URL. Raises `ValueError` with what is wrong; a password in it is not shown."""
    if not isinstance(url, str):
        raise ValueError(f"must be an http or https URL, not {url!r}")  # noqa: TRY004  one kind of error for a value
    found = _AUTHORITY.match(url)
    authority = found.group(1).rpartition("@")[2] if found else ""
    if re.search(r"[\s\0-\x1f\x7f]", authority):  # urlsplit takes line breaks out without a word
        raise ValueError(f"has the host {authority!r}, in which no space may be")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise ValueError(f"has the host {authority!r}, which is not one: {error}") from error
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
    """The host in ASCII."""
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
