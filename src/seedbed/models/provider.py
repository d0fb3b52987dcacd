"""Shared by models behind HTTP: the fields of their specs, sending calls, and reading responses.

A response becomes an answer or one of the engine's failure classes. Messages name the model and the status and show a
short excerpt of the body; anything that looks like a key is removed.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import math
import os
import re
import ssl
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import attrs

from .. import checks
from ..errors import CellError, ConfigError, ModelMisconfigured, Permanent, RateLimited, Retryable
from ..runtime.policy import parse_retry_after
from ..runtime.throttle import KeyLimits
from .base import NOT_IN_FINGERPRINT
from .distributions import check_parameters
from .http import check_headers, open_http
from .urls import proxy_for, split_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import trio

    from .http import Endpoint, HttpClient, HttpResponse

S = TypeVar("S", bound="HttpModel")
C = TypeVar("C")

_VARIABLE = re.compile(r"\$\{(\w+)\}")
# A recipe is stored beside its dataset, so it must not contain the values of these headers.
_SECRET_HEADER = re.compile(r"authorization|cookie|secret|token|password|(?:^|[-_&])key(?:$|=)", re.IGNORECASE)


def check_url(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Require a plain http or https URL; a password in it would appear in messages."""
    try:
        url = split_url(value)
    except ValueError as error:
        raise ConfigError(f"{attribute.name} {error}") from None
    if _SECRET_HEADER.search(url.target.partition("?")[2]):
        raise ConfigError(f"{attribute.name} must not contain a key; use api_key_env or headers")
    if url.username or url.password:
        raise ConfigError(f"{attribute.name} must not contain a user name or password; use api_key_env or headers")


def check_header_map(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Require texts by name; a header that may hold a secret takes it from the environment."""
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise ConfigError(f"{attribute.name} must be a mapping of texts to texts")
    check_headers(value)
    for name, text in value.items():
        if _SECRET_HEADER.search(name) and not _VARIABLE.search(text):
            raise ConfigError(
                f"{attribute.name}: {name!r} looks like a secret; take it from the environment: ${{NAME}}"
            )


def variables_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The environment variables that headers name, as `${NAME}`."""
    return tuple(name for value in headers.values() for name in _VARIABLE.findall(value))


def fill_variables(headers: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Headers with the values of the variables that they name, and the values that nothing may show."""
    secrets = _Secrets()

    def fill(found: re.Match[str]) -> str:
        secrets.append(os.environ[found.group(1)].strip())
        return secrets[-1]

    filled = {name.lower(): _VARIABLE.sub(fill, value) for name, value in headers.items()}
    # Literal headers may be keys as well, although the documentation advises against it.
    secrets += [value for value in filled.values() if len(value) >= 8]
    return filled, secrets


def missing_variables(names: Iterable[str]) -> list[str]:
    """What is wrong with the values of environment variables that are sent, a phrase each."""
    problems: list[str] = []
    for name in dict.fromkeys(names):
        value = os.environ.get(name, "").strip()
        if not value:
            problems.append(f"needs the environment variable {name}, which is not set")
        elif not (value.isascii() and value.isprintable()):
            problems.append(f"sends the environment variable {name}, which must be one line of ASCII")
    return problems


def strip_slash(value: object) -> object:
    """Remove the slash at the end of a base URL: paths begin with one."""
    return value.rstrip("/") if isinstance(value, str) else value


@attrs.frozen(kw_only=True, slots=False)
class Limits(KeyLimits):
    """The fields of a spec for inference parameters, limits and prices."""

    type: ClassVar[str]

    parameters: Mapping[str, Any] = attrs.field(factory=dict, validator=check_parameters)
    """Inference parameters of each call, such as `temperature` and `max_tokens`. A number may be drawn for each call:
    `{uniform: [0.2, 1.0]}`."""
    input_price: float = attrs.field(default=0.0, validator=checks.at_least(0, "money per million tokens"))
    """The price of a million tokens of prompts, to know and to limit the cost."""
    output_price: float = attrs.field(default=0.0, validator=checks.at_least(0, "money per million tokens"))
    """The price of a million tokens of answers."""
    cached_price: float | None = attrs.field(
        default=None, validator=checks.optional(checks.at_least(0, "money per million tokens"))
    )
    """The price of a million tokens of prompts that the provider read from its cache; by default `input_price`."""
    cache_write_price: float | None = attrs.field(
        default=None, validator=checks.optional(checks.at_least(0, "money per million tokens"))
    )
    """The price of a million tokens of prompts that the provider stored in its cache, where it reports these; by
    default `input_price`."""

    def limits(self) -> KeyLimits:
        return KeyLimits(**{field.name: getattr(self, field.name) for field in attrs.fields(KeyLimits)})

    @property
    def provider_id(self) -> str:
        """Specs with the same id share a client: they differ at most in model, parameters, limits and prices."""
        differing = {"model", *(field.name for field in attrs.fields(Limits))}
        shared = [getattr(self, field.name) for field in attrs.fields(type(self)) if field.name not in differing]
        return f"{self.type} {hashlib.blake2b(repr(shared).encode(), digest_size=16).hexdigest()}"


@attrs.frozen(kw_only=True)
class HttpModel(Limits):
    """Fields of a model behind HTTP."""

    base_url: str = attrs.field(validator=check_url, converter=strip_slash)
    """The URL of the API, up to what comes before `/chat/completions` or `/messages`."""
    model: str = attrs.field(validator=checks.text)
    """The name of the model, as the server knows it."""
    api_key_env: str | None = attrs.field(default=None, validator=checks.optional(checks.variable))
    """The environment variable that holds the key; a recipe never holds the key itself."""
    headers: Mapping[str, str] = attrs.field(
        factory=dict, validator=check_header_map, repr=False, metadata=NOT_IN_FINGERPRINT
    )
    """Headers to send with each call; `${NAME}` in one stands for an environment variable."""
    timeout: float = attrs.field(default=120.0, validator=checks.seconds)
    """How long a whole call may take."""
    connect_timeout: float = attrs.field(default=10.0, validator=checks.seconds, metadata=NOT_IN_FINGERPRINT)
    """How long connecting may take."""
    ca_file: str | None = attrs.field(default=None, validator=checks.optional(checks.text), metadata=NOT_IN_FINGERPRINT)
    """A file of certificates (PEM) that are trusted besides those of the system; outside of the recipe's folder it
    needs `--allow-path`."""

    def key(self, domain: str) -> str:
        """The throttle key: base URL, API key, model and domain."""
        quota = f" ({self.api_key_env})" if self.api_key_env else ""
        return f"{self.base_url}{quota} {self.model} {domain}"

    @property
    def header_env(self) -> tuple[str, ...]:
        """The environment variables that its headers name."""
        return variables_in(self.headers)

    def urls(self) -> tuple[str, ...]:
        """The URLs that it calls, to be listed before a run."""
        return (self.base_url,)

    def paths(self) -> tuple[str, ...]:
        """The local file that it reads, if any."""
        return () if self.ca_file is None else (self.ca_file,)

    def problems(self) -> list[str]:
        """Report missing environment variables, invalid proxies and unreadable certificates."""
        problems = []
        try:
            self.ssl_context()
            proxy_for(split_url(self.base_url))
        except ConfigError as error:
            problems.append(f"model {self.model!r}: {error}")
        missing = missing_variables([*filter(None, [self.api_key_env]), *self.header_env])
        problems += [f"model {self.model!r} at {self.base_url} {each}" for each in missing]
        return problems

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context that trusts `ca_file`; None for the default."""
        if not self.base_url.lower().startswith("https:"):
            return None
        trusted = os.environ.get("SSL_CERT_FILE")
        # OpenSSL ignores a missing file silently.
        if trusted and not Path(trusted).is_file():
            raise ConfigError(f"the environment variable SSL_CERT_FILE names {trusted!r}, which is not a file")
        if self.ca_file is None:
            return None
        context = ssl.create_default_context()
        try:
            # Opening a pipe would block.
            if not stat.S_ISREG(Path(self.ca_file).stat().st_mode):
                raise OSError("it is not a regular file")
            context.load_verify_locations(self.ca_file)
        except OSError as error:  # ssl.SSLError is one: no certificate in it
            raise ConfigError(f"ca_file {self.ca_file!r} cannot be used: {error.strerror or error}") from None
        return context

    @asynccontextmanager
    async def open_client(
        self, client: Callable[..., C], headers: Mapping[str, str], key_header: str, key_prefix: str = ""
    ) -> AsyncIterator[C]:
        """Yield a client that sends these headers, those of the spec and the API key, which the spec may override."""
        problems = self.problems()
        if problems:
            raise ConfigError("; ".join(problems))
        own, secrets = fill_variables(self.headers)
        sent = {"content-type": "application/json", **headers, **own}
        key = os.environ[self.api_key_env].strip() if self.api_key_env else None
        if key:
            secrets.append(key)
            sent.setdefault(key_header, f"{key_prefix}{key}")
        base_url, mark, query = self.base_url.partition("?")
        async with open_http(
            timeout=self.timeout, connect_timeout=self.connect_timeout, ssl_context=self.ssl_context()
        ) as http:

            @functools.cache
            def endpoint(path: str) -> Endpoint:
                return http.endpoint("POST", base_url + path + mark + query, sent)

            yield client(self, http, secrets, endpoint)


class _Secrets(list[str]):
    """Values that nothing may show."""

    def __repr__(self) -> str:
        return "…"


class HttpModelClient(Generic[S]):
    """A client for one model behind HTTP; its failures name the model and show none of the secrets."""

    def __init__(self, spec: S, http: HttpClient, secrets: list[str], endpoint: Callable[[str], Endpoint]) -> None:
        self.spec = spec
        self.model = spec.model
        self.http = http
        self._secrets = secrets
        self.endpoint = endpoint  # that of a path; shared by the models of a provider

    def for_model(self, model: str) -> Self:
        """Return a client for another model of the provider that shares the connections."""
        other = copy.copy(self)
        other.model = model
        return other

    async def send(self, endpoint: Endpoint, body: bytes = b"", scope: trio.CancelScope | None = None) -> HttpResponse:
        """Send one call; `scope` is as in `Endpoint.send`. Failures of the connection name the model."""
        try:
            return await endpoint.send(body, scope)
        except CellError as error:
            raise self.named(error) from error

    def named(self, failure: CellError) -> CellError:
        """Return a failure of the connection with the model's name in front."""
        if isinstance(failure, ModelMisconfigured):
            cause = f"model {self.model!r}: {redact(failure.cause, self._secrets)}"
            return ModelMisconfigured(cause, fix=failure.fix)
        named = type(failure)(f"model {self.model!r}: {redact(str(failure), self._secrets)}")
        named.code = failure.code
        return named

    def excerpt(self, body: bytes) -> str:
        """What a body says, without secrets."""
        return excerpt(body, self._secrets)

    def parse_object(self, response: HttpResponse) -> dict[str, Any]:
        """Return the JSON object of a response. Raises the failure that the response means."""
        failure = failure_of(self.model, response, self._secrets, key_env=self.spec.api_key_env)
        if failure is not None:
            raise failure
        answered = f"model {self.model!r} answered {response.status}"
        try:
            found = json.loads(response.body)
        except (ValueError, RecursionError) as error:
            shown = self.excerpt(response.body)
            if response.body.lstrip()[:1] == b"<":  # the beginning of an answer cut short is still JSON
                raise ModelMisconfigured(
                    f"{answered} with a page in place of JSON",
                    fix="check its base_url, which ends where the path of the API begins (often in /v1), and any proxy",
                    answer=shown,
                ) from error
            raise Retryable(f"{answered} with malformed JSON: {shown!r}", code="bad_response") from error
        if not isinstance(found, dict):
            raise Retryable(f"{answered} with JSON that is not an object", code="bad_response")
        if found.get("error"):  # some gateways report errors with status 200
            shown, codes = self.excerpt(response.body), _codes_of(found["error"])
            if codes & _QUOTA_CODES:
                raise _quota_used_up(answered, shown)
            kind = RateLimited if codes & {"429", "rate_limit_exceeded"} else Retryable
            raise kind(f"{answered} with an error: {shown}")
        return found

    def unexpected(self, missing: str, response: HttpResponse) -> Retryable:
        """The failure for a response without a required part."""
        shown = self.excerpt(response.body)
        return Retryable(f"model {self.model!r} answered without {missing}: {shown!r}", code="bad_response")


_RETRYABLE_STATUSES = frozenset({408, 409, 425})
"""Client errors that may succeed on retry, as every 5xx may."""
_OVERLOADED_STATUSES = frozenset({503, 529})
"""Rate limiting like a 429 if the response says how long to wait, otherwise a failed attempt."""
# Of OpenAI and of servers that follow it: payment is due, which waiting does not change.
_QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "credit_exhausted"})
_UNKNOWN_MODEL_CODES = frozenset({"model_not_found", "invalid_model", "unknown_model"})

_EXCERPT = 200
# The key formats of providers, also masked in part: a key that a server echoes in part is still a secret.
_KEY_LIKE = re.compile(
    r"\b(?:sk|pk|rk|key|gsk|nvapi|hf|xai)[-_](?=[\w*.-]*[\d*])[\w*.-]{6,}|\bBearer\s+\S+", re.IGNORECASE
)
# Of OpenAI-compatible APIs, and of Anthropic; each has a counterpart with the remaining quota.
_RESET = re.compile(r"x-ratelimit-(reset)(?:-[\w-]+)?|anthropic-ratelimit-[\w-]+-(reset)")


def redact(text: str, secrets: Iterable[str]) -> str:
    """Replace the secrets in a text, and anything that looks like a key."""
    for secret in secrets:
        if len(secret) >= 4:  # a shorter value is a placeholder for "no key" and may occur in any text
            text = text.replace(secret, "…")
    return _KEY_LIKE.sub("…", text)


def excerpt(body: bytes, secrets: Iterable[str] = ()) -> str:
    """Return the error message of a body, or its beginning, on one line."""
    error = _error_in(body)
    text = body[: 20 * _EXCERPT].decode("utf-8", "replace")
    if isinstance(error, str):
        text = error or text
    elif isinstance(error, Mapping):
        message, kind = error.get("message") or error.get("detail"), error.get("code") or error.get("type")
        if message:
            text = f"{message} ({kind})" if kind else str(message)
    text = " ".join(redact(text, secrets).split())
    return text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…"


def _error_in(body: bytes) -> object:
    """The error in a JSON body, or the whole object if it has none; None if the body is no JSON object."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found.get("error", found) if isinstance(found, dict) else None


def _codes_of(error: object) -> set[str]:
    return {str(error.get("code")), str(error.get("type"))} if isinstance(error, Mapping) else set()


def failure_of(
    model: str, response: HttpResponse, secrets: Iterable[str] = (), *, key_env: str | None = None
) -> CellError | None:
    """Return the failure that a status means; None for a success. `key_env` is named where the key may be wrong."""
    status = response.status
    if 200 <= status < 300:
        return None
    shown = excerpt(response.body, secrets)
    answered = f"model {model!r} answered {status}"
    message = answered + (f": {shown}" if shown else " with an empty body")
    codes = _codes_of(_error_in(response.body))
    if status == 402 or (status in {403, 429} and codes & _QUOTA_CODES):
        return _quota_used_up(answered, shown)
    if status == 429 or status in _OVERLOADED_STATUSES:
        retry_after, reset = _retry_after(response.headers), _reset(response.headers)
        if status == 429 or retry_after is not None or reset is not None:
            return RateLimited(message, retry_after=retry_after, reset=reset)
    if status in _RETRYABLE_STATUSES or status >= 500:
        return Retryable(message)
    if 300 <= status < 400:
        where = redact(response.headers.get("location", "an unknown URL"), secrets)
        return ModelMisconfigured(f"{answered}: it has moved to {where}", fix="correct its base_url")
    key = f"the key in the environment variable {key_env}" if key_env else "its key (api_key_env names its variable)"
    fix = {
        401: f"check {key}",
        403: f"check {key}, and whether it may use this model",
        404: "check the name of the model and its base_url",
    }.get(status)
    if status == 400 and codes & _UNKNOWN_MODEL_CODES:
        fix = "check the name of the model"
    return (
        Permanent(message, code="request_rejected")
        if fix is None
        else ModelMisconfigured(answered, fix=fix, answer=shown)
    )


def _quota_used_up(answered: str, shown: str) -> ModelMisconfigured:
    return ModelMisconfigured(
        f"{answered}, the quota of its key is used up",
        fix="raise the limit or pay the bill at the provider, then resume",
        answer=shown,
        blames_no_row=True,
    )


def _retry_after(headers: Mapping[str, str]) -> float | str | None:
    """Return the Retry-After of a response if it is valid, in seconds or as sent."""
    with suppress(KeyError, ValueError):
        seconds = float(headers["retry-after-ms"]) / 1000
        if math.isfinite(seconds):
            return seconds
    given = headers.get("retry-after")
    return None if parse_retry_after(given, time.time()) is None else given


def _reset(headers: Mapping[str, str]) -> str | None:
    """Return when the exhausted quota of the key is reset; None if it is not exhausted.

    Requests and tokens may both be exhausted: the later reset counts.
    """
    latest, longest = None, -1.0
    for name, value in headers.items():
        found = _RESET.fullmatch(name)
        if found is None:
            continue
        start, end = found.span(1 if found.group(1) else 2)
        remaining = headers.get(f"{name[:start]}remaining{name[end:]}", "0")
        seconds = parse_retry_after(value, time.time())
        if remaining.strip() == "0" and seconds is not None and seconds > longest:
            latest, longest = value, seconds
    return latest


def token_count(usage: object, *names: str) -> int | None:
    """Return the first of these fields that is a valid count; None if there is none."""
    if isinstance(usage, dict):
        for name in names:
            value: Any = usage.get(name)
            # Some servers send Infinity and NaN; a negative count would refund a budget.
            if type(value) in (int, float) and 0 <= value < math.inf:
                return int(value)
    return None
