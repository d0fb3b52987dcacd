"""What every model behind HTTP has in common: where it is, whose key it takes, what it may be asked for."""

from __future__ import annotations

import hashlib
import math
import os
import re
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from ..errors import CellError, ConfigError
from ..runtime.throttle import KeyLimits
from .base import HOW
from .distributions import check_distribution
from .http import check_headers
from .mapping import name_model
from .proxies import proxy_for
from .urls import split_url

if TYPE_CHECKING:
    import trio

    from .http import Endpoint, HttpClient, HttpResponse

_VARIABLE = re.compile(r"\$\{(\w+)\}")
# A recipe is kept beside its dataset, so what these headers carry must not be written in it.
_SECRET_HEADER = re.compile(r"authorization|cookie|secret|token|password|(?:^|[-_&])key(?:$|=)", re.IGNORECASE)


def check_url(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is not a plain http or https URL; a password in it would end up in messages."""
    try:
        url = split_url(value)
    except ValueError as error:
        raise ConfigError(f"{attribute.name} {error}") from None
    if _SECRET_HEADER.search(url.target.partition("?")[2]):
        raise ConfigError(f"{attribute.name} must not contain a key; use api_key_env or headers")
    if url.username or url.password:
        raise ConfigError(f"{attribute.name} must not contain a user name or password; use api_key_env or headers")


def check_text(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is not a text of at least one character."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{attribute.name} must be a text, not {value!r}")


def check_price(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is no price."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{attribute.name} must be money per million tokens, 0 or more, not {value!r}")


def check_timeout(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is no time to wait."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{attribute.name} must be seconds, above 0, not {value!r}")


def check_parameters(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse parameters that nothing can be drawn from."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{attribute.name} must be a mapping of names to values, not {value!r}")
    for name, given in value.items():
        check_distribution(f"{attribute.name}.{name}", given)


def check_env(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse what cannot be the name of an environment variable."""
    # The message shows the value only if it can be a name: somebody may have put the key itself there.
    if value is not None and not (isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*", value)):
        raise ConfigError(f"{attribute.name} must be the name of an environment variable (it is not one)")


def _check_header_map(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise ConfigError(f"{attribute.name} must be a mapping of texts to texts")
    check_headers(value)
    for name, text in value.items():
        if _SECRET_HEADER.search(name) and not _VARIABLE.search(text):
            raise ConfigError(
                f"{attribute.name}: {name!r} looks like a secret; take it from the environment: ${{NAME}}"
            )


def strip_slash(value: object) -> object:
    """A base URL is followed by a path that begins with a slash."""
    return value.rstrip("/") if isinstance(value, str) else value


# Without slots: a spec with several parents can have them in none, or it would be pickled by halves.
@attrs.frozen(kw_only=True, slots=False)
class Limits:
    """The part of a spec that says what a model may be asked for and what it costs."""

    parameters: Mapping[str, Any] = attrs.field(factory=dict, validator=check_parameters)
    max_parallel_requests: int = 32
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    # Rising latency counts as congestion: for a server that queues where others refuse.
    latency_congestion: bool = attrs.field(default=False, metadata=HOW)
    # Money per million tokens.
    input_price: float = attrs.field(default=0.0, validator=check_price)
    output_price: float = attrs.field(default=0.0, validator=check_price)

    def __attrs_post_init__(self) -> None:
        """Limits are checked where they are defined."""
        self.limits()

    def limits(self) -> KeyLimits:
        """What its keys may be asked for."""
        return KeyLimits(
            max_parallel_requests=self.max_parallel_requests,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            latency_congestion=self.latency_congestion,
        )


@attrs.frozen(kw_only=True)
class HttpModel(Limits):
    """Fields of a model behind HTTP.

    `api_key_env` names the environment variable that holds the key. `headers` are sent with each call; `${NAME}` in one
    stands for the environment variable, so that no key needs to be in a recipe.
    """

    type: ClassVar[str]

    base_url: str = attrs.field(validator=check_url, converter=strip_slash)
    model: str = attrs.field(validator=check_text)
    api_key_env: str | None = attrs.field(default=None, validator=check_env)
    headers: Mapping[str, str] = attrs.field(factory=dict, validator=_check_header_map, repr=False, metadata=HOW)
    # Seconds for a whole call, and for connecting.
    timeout: float = attrs.field(default=120.0, validator=check_timeout)
    connect_timeout: float = attrs.field(default=10.0, validator=check_timeout, metadata=HOW)
    # A file of certificates (PEM) that are trusted besides those of the system.
    ca_file: str | None = attrs.field(default=None, validator=attrs.validators.optional(check_text), metadata=HOW)

    def key(self, domain: str) -> str:
        """The throttle key: where it is, whose quota it uses, the model and the domain."""
        quota = f" ({self.api_key_env})" if self.api_key_env else ""
        return f"{self.base_url}{quota} {self.model} {domain}"

    @property
    def provider_id(self) -> str:
        """The same for specs that can share a client."""
        headers = hashlib.blake2b(repr(sorted(self.headers.items())).encode(), digest_size=8).hexdigest()
        options = (
            self.type,
            self.base_url,
            self.api_key_env,
            headers,
            self.timeout,
            self.connect_timeout,
            self.ca_file,
        )
        return " ".join(map(str, options))

    @property
    def header_env(self) -> tuple[str, ...]:
        """The environment variables that its headers name."""
        return tuple(name for value in self.headers.values() for name in _VARIABLE.findall(value))

    def urls(self) -> tuple[str, ...]:
        """Where it is, to be listed before a run."""
        return (self.base_url,)

    def paths(self) -> tuple[str, ...]:
        """The local file that it reads, if one is given."""
        return () if self.ca_file is None else (self.ca_file,)

    def problems(self) -> list[str]:
        """Environment variables that are missing or name no proxy, and certificates that cannot be read."""
        names = [*([self.api_key_env] if self.api_key_env else []), *self.header_env]
        problems = []
        try:
            self.ssl_context()
            proxy_for(split_url(self.base_url))
        except ConfigError as error:
            problems.append(f"model {self.model!r}: {error}")
        return problems + [
            f"model {self.model!r} at {self.base_url} needs the environment variable {name}, which is not set"
            for name in dict.fromkeys(names)
            if not os.environ.get(name)
        ]

    def ssl_context(self) -> ssl.SSLContext | None:
        """What decides which certificates are trusted; None where the default does."""
        if not self.base_url.lower().startswith("https:"):
            return None
        trusted = os.environ.get("SSL_CERT_FILE")
        # OpenSSL reads that file, and says nothing where there is none.
        if trusted and not Path(trusted).is_file():
            raise ConfigError(f"the environment variable SSL_CERT_FILE names {trusted!r}, which is not a file")
        if self.ca_file is None:
            return None
        context = ssl.create_default_context()
        try:
            # Opening a pipe would wait for ever.
            if not stat.S_ISREG(Path(self.ca_file).stat().st_mode):
                raise OSError("it is not a regular file")
            context.load_verify_locations(self.ca_file)
        except OSError as error:  # ssl.SSLError is one: no certificate in it
            raise ConfigError(f"ca_file {self.ca_file!r} cannot be used: {error.strerror or error}") from None
        return context

    def credentials(self) -> Credentials:
        """The key and the headers, from the environment as it is now."""
        missing = self.problems()
        if missing:
            raise ConfigError("; ".join(missing))
        secrets: list[str] = []

        def fill(found: re.Match[str]) -> str:
            secrets.append(os.environ[found.group(1)].strip())
            return secrets[-1]

        headers = {name.lower(): _VARIABLE.sub(fill, value) for name, value in self.headers.items()}
        key = os.environ[self.api_key_env].strip() if self.api_key_env else None
        if key:
            secrets.append(key)
        # Literal headers may be keys as well, whatever the documentation says.
        secrets += [value for value in headers.values() if len(value) >= 8]
        return Credentials(key, headers, tuple(secrets))


@attrs.frozen(repr=False)
class Credentials:
    """What nobody may see; it has no repr."""

    key: str | None
    headers: Mapping[str, str]
    secrets: tuple[str, ...]


class Caller:
    """Calls of one model: the endpoints of its provider, and failures that carry its name."""

    def __init__(self, http: HttpClient, spec: HttpModel, headers: Mapping[str, str], secrets: tuple[str, ...]) -> None:
        self.model = spec.model
        self.secrets = secrets
        self.http = http
        self._base_url, _, query = spec.base_url.partition("?")
        self._query = f"?{query}" if query else ""
        self._headers = headers
        # Made at the first call of each path; shared by the models of a provider.
        self._endpoints: dict[str, Endpoint] = {}

    def for_model(self, model: str) -> Caller:
        """The same provider, another model of it."""
        other = object.__new__(Caller)
        other.__dict__.update(self.__dict__, model=model)
        return other

    async def post(self, path: str, body: bytes, scope: trio.CancelScope | None = None) -> HttpResponse:
        """One call; a failure of the connection names the model. `scope` is as in `Endpoint.send`."""
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            endpoint = self._endpoints[path] = self.http.endpoint(
                "POST", f"{self._base_url}{path}{self._query}", self._headers
            )
        try:
            return await endpoint.send(body, scope)
        except CellError as error:
            raise name_model(self.model, error, self.secrets) from error

    async def send(self, endpoint: Endpoint) -> HttpResponse:
        """One call of another endpoint, without a body."""
        try:
            return await endpoint.send()
        except CellError as error:
            raise name_model(self.model, error, self.secrets) from error
