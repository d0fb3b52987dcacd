"""From what a provider sent to an answer, or to one of the engine's failure classes.

Messages name the model and the status and show a short excerpt of the body; whatever looks like a key is taken out.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import CellError, Permanent, RateLimited, Retryable
from ..runtime.backoff import parse_retry_after

if TYPE_CHECKING:
    from .http import HttpResponse

RETRYABLE_STATUSES = frozenset({408, 409, 425})
"""Client errors that may go away by themselves; every 5xx may too."""

_EXCERPT = 200
# Keys as providers write them, and what stands where a key would: a key that a server echoes in part is still a secret.
_KEY_LIKE = re.compile(
    r"\b(?:sk|pk|rk|key|gsk|nvapi|hf|xai)[-_](?=[\w*.-]*[\d*])[\w*.-]{6,}|\bBearer\s+\S+", re.IGNORECASE
)
OVERLOADED_STATUSES = frozenset({503, 529})
"""Flow control like a 429 where the answer says how long to wait, a failed attempt where it does not."""

# OpenAI's and those who follow it, then Anthropic's. Each has a header of what remains beside it.
_RESET = re.compile(r"x-ratelimit-(reset)(?:-[\w-]+)?|anthropic-ratelimit-[\w-]+-(reset)")


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets and without what looks like one."""
    for secret in secrets:
        if len(secret) >= 4:  # what stands for "no key" may be shorter, and is in every text
            text = text.replace(secret, "…")
    return _KEY_LIKE.sub("…", text)


def excerpt(body: bytes, secrets: Iterable[str] = ()) -> str:
    """The error message of a body, or its beginning, on one line."""
    text = body[: 20 * _EXCERPT].decode("utf-8", "replace")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        text = _message_of(found.get("error", found)) or text
    text = " ".join(redact(text, secrets).split())
    return text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…"


def _message_of(error: object) -> str | None:
    if isinstance(error, str):
        return error
    if isinstance(error, Mapping):
        message = error.get("message") or error.get("detail")
        kind = error.get("code") or error.get("type")
        if message:
            return f"{message} ({kind})" if kind else str(message)
    return None


def failure_of(model: str, response: HttpResponse, secrets: Iterable[str] = ()) -> CellError | None:
    """The failure that a status means; None for an answer."""
    status = response.status
    if 200 <= status < 300:
        return None
    said = excerpt(response.body, secrets)
    message = f"model {model!r} answered {status}" + (f": {said}" if said else " without a word")
    if status == 429 or status in OVERLOADED_STATUSES:
        # Also where the quota is used up for good: then every call is refused, and patience ends the run.
        retry_after, reset = _retry_after(response.headers), _reset(response.headers)
        if status == 429 or retry_after is not None or reset is not None:
            return RateLimited(message, retry_after=retry_after, reset=reset)
    if status in RETRYABLE_STATUSES or status >= 500:
        return Retryable(message)
    if 300 <= status < 400:
        where = redact(response.headers.get("location", "an unknown place"), secrets)
        return Permanent(f"model {model!r} answered {status}: it has moved to {where}; correct its base_url")
    return Permanent(message)


def _retry_after(headers: Mapping[str, str]) -> float | str | None:
    """How long the call has to wait, if the provider says so in a way that can be understood."""
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None:
        try:
            seconds = float(milliseconds) / 1000
        except ValueError:
            pass
        else:
            if math.isfinite(seconds):
                return seconds
    given = headers.get("retry-after")
    return None if parse_retry_after(given, time.time()) is None else given


def _reset(headers: Mapping[str, str]) -> str | None:
    """When the key has something left again, if the provider says that it has nothing left now.

    A key may have used up its requests and its tokens: the later instant counts.
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


def parse_object(model: str, response: HttpResponse, secrets: Iterable[str] = ()) -> dict[str, Any]:
    """The JSON object of an answer. Raises the failure that the response means."""
    failure = failure_of(model, response, secrets)
    if failure is not None:
        raise failure
    try:
        found = json.loads(response.body)
    except (ValueError, RecursionError) as error:
        said = excerpt(response.body, secrets)
        raise Retryable(f"model {model!r} answered {response.status} with malformed JSON: {said!r}") from error
    if not isinstance(found, dict):
        raise Retryable(f"model {model!r} answered {response.status} with JSON that is not an object")
    told = found.get("error")
    if told:  # gateways that answer 200 and mean something else
        said = excerpt(response.body, secrets)
        code = told.get("code") if isinstance(told, dict) else None
        if code in {429, "429", "rate_limit_exceeded"}:
            raise RateLimited(f"model {model!r} answered {response.status} with an error: {said}")
        raise Retryable(f"model {model!r} answered {response.status} with an error: {said}")
    return found


def unexpected(model: str, missing: str, response: HttpResponse, secrets: Iterable[str] = ()) -> Retryable:
    """The failure for an answer that lacks what it must have."""
    return Retryable(f"model {model!r} answered without {missing}: {excerpt(response.body, secrets)!r}")


def name_model(model: str, failure: CellError, secrets: Iterable[str] = ()) -> CellError:
    """A failure of the connection, with the model's name in front."""
    return type(failure)(f"model {model!r}: {redact(str(failure), secrets)}")


def token_count(usage: object, *names: str) -> int | None:
    """The first of the numbers that the usage has; None where the provider does not say, or says no count."""
    if isinstance(usage, Mapping):
        for name in names:
            value = usage.get(name)
            # Infinity and NaN are in the JSON of some servers; a negative count would give back of a budget.
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
                return int(value)
    return None
