"""The scripted model: deterministic answers without network, key or cost.

Latency is waited for with `trio.sleep`, so it takes no real time under a virtual clock.

`Behaviour` and `OutcomeSource` decide, synchronously, how long a simulated call takes and how it ends; the scripted
model raises the failure, the test server sends it. A prompt can request its outcome with a marker:
`[[500]]`, `[[429 retry-after=2]]`, `[[hang]]`, `[[reset]]`, `[[malformed]]`, `[[truncated]]`, `[[empty]]`,
`[[refusal]]`, `[[filter]]`, `[[length]]`, `[[latency=0.5]]`; `x2` in it (`[[500 x2]]`) limits it to the first two
calls with this prompt.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import trio

from .. import checks
from ..errors import ConfigError, Permanent, Retryable
from .answers import count_tokens, fitting_json, hash_vector, plausible_text, small_png
from .base import NOT_IN_FINGERPRINT, ChatAnswer, ChatRequest, EmbeddingAnswer, Image, ImageAnswer, Tokens
from .distributions import check_latency, draw, is_distribution, stable_seed
from .http import HttpResponse
from .provider import Limits, failure_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

OUTCOMES = (
    "answer",
    "status",
    "hang",
    "reset",
    "malformed",
    "truncated",
    "empty",
    "refusal",
    "filter",
    "length",
)
"""The outcomes of a simulated call; `status` is an HTTP status other than 200."""

# Matches whole markers only: a wiki link in a prompt is not a marker.
_WORD = rf"(?:\d{{3}}|x\d+|{'|'.join(OUTCOMES)}|latency=\d+(?:\.\d*)?|(?:retry|reset)-after=[\w.:-]+)"
_MARKER = re.compile(rf"\[\[({_WORD}(?: {_WORD})*)\]\]")


def _seconds(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_latency(attribute.name, value)


def _tuple(value: object) -> object:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else value


def _check_outcomes(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, tuple):
        raise ConfigError(
            f"{attribute.name} must be a list such as ['429 retry-after=1', '500', 'answer'], not {value!r}"
        )
    for words in value:
        _read_marker(words)


# Not slotted, so that a spec can be this and something else too.
@attrs.frozen(kw_only=True, slots=False)
class Behaviour:
    """Latency and failures of a simulated model. Shares are of all calls, drawn by prompt and `seed`."""

    # The outcomes of the first calls, in the syntax of markers; later calls follow the other fields.
    first_outcomes: tuple[str, ...] = attrs.field(
        default=(), converter=_tuple, validator=_check_outcomes, metadata=NOT_IN_FINGERPRINT
    )
    # Seconds for an answer, constant or a distribution.
    latency: Any = attrs.field(default=0.0, validator=_seconds, metadata=NOT_IN_FINGERPRINT)
    # Seconds for a rate-limited call or an error.
    error_latency: Any = attrs.field(default=0.0, validator=_seconds, metadata=NOT_IN_FINGERPRINT)
    # Calls that are processed concurrently; further ones are rate-limited (429).
    capacity: int | None = attrs.field(
        default=None, validator=checks.optional(checks.whole(0)), metadata=NOT_IN_FINGERPRINT
    )
    rate_limit_share: float = attrs.field(default=0.0, validator=checks.share, metadata=NOT_IN_FINGERPRINT)
    # Retry-After of rate-limited calls: seconds or a date; None for no header.
    retry_after: float | str | None = attrs.field(default=None, metadata=NOT_IN_FINGERPRINT)
    # x-ratelimit-reset-requests of rate-limited calls, with x-ratelimit-remaining-requests: 0; None for no headers.
    reset_after: float | str | None = attrs.field(default=None, metadata=NOT_IN_FINGERPRINT)
    error_share: float = attrs.field(default=0.0, validator=checks.share, metadata=NOT_IN_FINGERPRINT)
    error_status: int = attrs.field(default=500, metadata=NOT_IN_FINGERPRINT)
    hang_share: float = attrs.field(default=0.0, validator=checks.share, metadata=NOT_IN_FINGERPRINT)
    reset_share: float = attrs.field(default=0.0, validator=checks.share, metadata=NOT_IN_FINGERPRINT)
    malformed_share: float = attrs.field(default=0.0, validator=checks.share, metadata=NOT_IN_FINGERPRINT)
    truncated_share: float = attrs.field(default=0.0, validator=checks.share, metadata=NOT_IN_FINGERPRINT)
    # The most random failures in a row of one prompt, so that a run with a few retries drops no row.
    max_failures: int | None = attrs.field(
        default=2, validator=checks.optional(checks.whole(0)), metadata=NOT_IN_FINGERPRINT
    )
    seed: int = attrs.field(default=0, metadata=NOT_IN_FINGERPRINT)

    def __attrs_post_init__(self) -> None:
        """Check that the shares add up to at most 1."""
        if sum(self.shares().values()) > 1:
            raise ConfigError(f"the shares of failures add up to more than 1: {self.shares()}")

    def shares(self) -> dict[str, float]:
        """The share of each random failure."""
        return {
            "rate_limit": self.rate_limit_share,
            "error": self.error_share,
            "hang": self.hang_share,
            "reset": self.reset_share,
            "malformed": self.malformed_share,
            "truncated": self.truncated_share,
        }


@attrs.frozen(kw_only=True)
class SimulatedOutcome:
    """The outcome of one simulated call."""

    outcome: str = "answer"
    status: int = 200
    latency: float = 0.0
    retry_after: float | str | None = None
    reset_after: float | str | None = None
    # The text of the answer; None for a generated one.
    text: str | None = None


class OutcomeSource:
    """Decides the outcome of each call. Counts calls by prompt; only `decide` changes it."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.seen: Counter[str] = Counter()
        self._first = deque(behaviour.first_outcomes)
        self._failed: Counter[str] = Counter()  # since the last answer
        self._shares = [(name, share) for name, share in behaviour.shares().items() if share]
        self._is_constant = not is_distribution(behaviour.latency)

    def decide(self, prompt: str, in_flight: int) -> SimulatedOutcome:
        """The outcome of a call that arrived while `in_flight` others were being processed."""
        behaviour = self.behaviour
        self.seen[prompt] += 1
        if behaviour.capacity is not None and in_flight >= behaviour.capacity:
            return self._rate_limited(None)
        if self._first:
            return self._from_words([self._first.popleft()], prompt) or SimulatedOutcome(
                latency=self._slow(self._rng(prompt))
            )
        if "[[" in prompt and (marked := self._from_words(_MARKER.findall(prompt), prompt)) is not None:
            return marked
        if not self._shares and self._is_constant:
            return SimulatedOutcome(latency=behaviour.latency)
        rng = self._rng(prompt)
        chance = rng.random()
        for name, share in self._shares:
            chance -= share
            if chance < 0:
                if behaviour.max_failures is not None and self._failed[prompt] >= behaviour.max_failures:
                    break
                self._failed[prompt] += 1
                if name == "rate_limit":
                    return self._rate_limited(rng)
                if name == "error":
                    return SimulatedOutcome(outcome="status", status=behaviour.error_status, latency=self._quick(rng))
                return SimulatedOutcome(outcome=name, latency=self._slow(rng))
        self._failed.pop(prompt, None)
        return SimulatedOutcome(latency=self._slow(rng))

    def _rate_limited(self, rng: random.Random | None) -> SimulatedOutcome:
        return SimulatedOutcome(
            outcome="status",
            status=429,
            latency=self._quick(rng),
            retry_after=self.behaviour.retry_after,
            reset_after=self.behaviour.reset_after,
        )

    def _rng(self, prompt: str) -> random.Random:
        return random.Random(stable_seed(self.behaviour.seed, prompt, self.seen[prompt]))

    def _from_words(self, markers: Iterable[str], prompt: str) -> SimulatedOutcome | None:
        fields: dict[str, Any] = {}
        for marker in markers:
            read, times = _read_marker(marker)
            if times is None or self.seen[prompt] <= times:
                fields.update(read)
        if not fields:
            return None
        if "latency" not in fields:
            rng = self._rng(prompt)
            fields["latency"] = self._quick(rng) if fields.get("outcome") == "status" else self._slow(rng)
        return SimulatedOutcome(**fields)

    def _quick(self, rng: random.Random | None) -> float:
        return max(0.0, float(draw(self.behaviour.error_latency, rng or random.Random(self.behaviour.seed))))

    def _slow(self, rng: random.Random) -> float:
        return max(0.0, float(draw(self.behaviour.latency, rng)))


def _read_marker(marker: str) -> tuple[dict[str, Any], int | None]:
    """Return the fields of the outcome that a marker describes, and for how many calls. Raises `ConfigError`."""
    fields: dict[str, Any] = {}
    times: int | None = None
    for word in marker.split():
        name, _, value = word.partition("=")
        if re.fullmatch(r"\d{3}", name):
            fields.update(outcome="status", status=int(name))
        elif re.fullmatch(r"x\d+", name):
            times = int(name[1:])
        elif name in OUTCOMES:
            fields.update(outcome=name)
        elif name == "latency" and re.fullmatch(r"\d+(\.\d*)?", value):
            fields.update(latency=float(value))
        elif name in {"retry-after", "reset-after"}:
            fields[name.replace("-", "_")] = value
        else:
            raise ConfigError(
                f"{word!r} in {marker!r} is not an outcome; use a status (429), {', '.join(OUTCOMES)}, latency=…, "
                "retry-after=…, reset-after=… or x2"
            )
    return fields, times


def behaviour_from(options: Mapping[str, Any]) -> tuple[Behaviour, dict[str, Any]]:
    """Split keyword options into a behaviour and the rest."""
    names = {field.name for field in attrs.fields(Behaviour)}
    mine = {name: value for name, value in options.items() if name in names}
    return Behaviour(**mine), {name: value for name, value in options.items() if name not in names}


AnswerFunction = Callable[[ChatRequest], "str | ChatAnswer"]
_PLACE = re.compile(r"\{(prompt|system|number|seed|after:[^{}]*|choice:[^{}]*)\}")
_FAILURES = {
    "reset": "the connection was reset",
    "malformed": "answered 200 with malformed JSON",
    "truncated": "closed the connection in the middle of its answer",
    "empty": "answered without choices",
}


def _check_answers(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is None or callable(value) or isinstance(value, str):
        return
    given = list(value.values()) if isinstance(value, Mapping) else value
    if not isinstance(given, Sequence) or not given:
        raise ConfigError(
            f"{attribute.name} must be a template, a list of them, a mapping of words to them, or a function, "
            f"not {value!r}"
        )
    for each in given:
        if not isinstance(each, str) and not (
            isinstance(value, Mapping) and isinstance(each, Sequence) and each and all(isinstance(t, str) for t in each)
        ):
            raise ConfigError(f"{attribute.name}: {each!r} is not a template")


@attrs.frozen(kw_only=True, slots=False)
class Scripted(Behaviour, Limits):
    """A scripted model.

    `answers` is a template (`{prompt}`, `{system}`, `{number}`, `{seed}`, `{choice:yes|no}`, and `{after:Topic:}` for
    what follows `Topic:` on its line of the prompt), a list of templates (the prompt decides which), a mapping of words
    to templates (the first word that the prompt contains; `*` for the rest), or a function of the `ChatRequest`. In
    answers to a request with a schema, inserted text is escaped for JSON. Without `answers`, or where no word matches,
    the answer is generated: plausible text for the prompt, or JSON that is valid for the schema.

    Latency, errors and rate limits are the fields of `Behaviour`.
    """

    type: ClassVar[str] = "scripted"

    answers: str | Sequence[str] | Mapping[str, str | Sequence[str]] | AnswerFunction | None = attrs.field(
        default=None, validator=_check_answers
    )
    model: str = attrs.field(default="scripted", validator=checks.text)
    # The reasoning of each answer, a template too.
    reasoning: str | None = None
    # Seconds after which a hanging call fails; `latency` is not limited by it.
    timeout: float = attrs.field(default=120.0, validator=checks.seconds)

    def key(self, domain: str) -> str:
        """The throttle key."""
        return f"scripted {self.model} {domain}"

    @property
    def provider_id(self) -> str:
        """Equal for equal scripts."""
        return f"scripted {self!r}"

    def problems(self) -> list[str]:
        """Return no problems: it needs nothing."""
        return []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ScriptedClient]:
        """Yield a client for one build."""
        yield ScriptedClient(self)


class ScriptedClient:
    """The client of a scripted model. Counts calls in flight for `capacity`; only its calls change it."""

    def __init__(self, spec: Scripted) -> None:
        self._spec = spec
        self._outcomes = OutcomeSource(spec)
        self._in_flight = 0

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        prompt = request.messages[-1].text
        outcome = await self._simulate(prompt)
        scripted = self._answer(request, prompt)
        answer = scripted if isinstance(scripted, ChatAnswer) else ChatAnswer(text=scripted)
        if answer.reasoning is None and self._spec.reasoning is not None:
            answer = attrs.evolve(answer, reasoning=_fill(self._spec.reasoning, request))
        if answer.tokens == Tokens():
            prompted = sum(count_tokens(message.text) for message in request.messages)
            used = Tokens(input=prompted, output=count_tokens(answer.text + (answer.reasoning or "")))
            answer = attrs.evolve(answer, tokens=used)
        reason = "length" if outcome.outcome == "length" else answer.finish_reason or "stop"
        return attrs.evolve(answer, finish_reason=reason)

    async def embed(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> EmbeddingAnswer:
        await self._simulate("\n".join(texts))
        size = int(parameters.get("dimensions") or 16)
        vectors = tuple(hash_vector(text, size) for text in texts)
        return EmbeddingAnswer(vectors=vectors, tokens=Tokens(input=sum(map(count_tokens, texts))))

    async def image(self, prompt: str, parameters: Mapping[str, Any]) -> ImageAnswer:
        await self._simulate(prompt)
        pictures = tuple(Image(data=small_png(f"{prompt} {n}")) for n in range(int(parameters.get("n") or 1)))
        return ImageAnswer(images=pictures, tokens=Tokens(input=count_tokens(prompt)))

    async def _simulate(self, prompt: str) -> SimulatedOutcome:
        """Wait for the latency of the call; raises its failure unless it ends with an answer."""
        outcome = self._outcomes.decide(prompt, self._in_flight)
        is_work = outcome.outcome != "status"
        self._in_flight += is_work
        try:
            hangs = outcome.outcome == "hang"
            await trio.sleep(self._spec.timeout if hangs else outcome.latency)
        finally:
            self._in_flight -= is_work
        name = f"model {self._spec.model!r}"
        if hangs:
            raise Retryable(f"{name}: no answer within {self._spec.timeout:g} s")
        if outcome.outcome == "status":
            response = HttpResponse(outcome.status, rate_limit_headers(outcome), b"the script says so")
            failure = failure_of(self._spec.model, response)
            if failure is not None:
                raise failure
        if outcome.outcome in _FAILURES:
            raise Retryable(f"{name}: {_FAILURES[outcome.outcome]}")
        if outcome.outcome in {"refusal", "filter"}:
            raise Permanent(f"{name} refused: the script says so")
        return outcome

    def _answer(self, request: ChatRequest, prompt: str) -> str | ChatAnswer:
        answers = self._spec.answers
        if callable(answers):
            return answers(request)
        if isinstance(answers, Mapping):
            lowered = prompt.lower()
            answers = next(
                (given for word, given in answers.items() if word != "*" and word.lower() in lowered), answers.get("*")
            )
        if answers is None:
            return fitting_json(request.schema, prompt) if request.schema else plausible_text(prompt)
        if not isinstance(answers, str):
            answers = answers[stable_seed("which", prompt) % len(answers)]
        return _fill(answers, request)


def _fill(template: str, request: ChatRequest) -> str:
    prompt = request.messages[-1].text

    def insert(found: re.Match[str]) -> str:
        name, _, given = found.group(1).partition(":")
        if name == "choice":
            return random.Random(stable_seed(found.start(), prompt)).choice(str(given).split("|"))
        if name == "after":
            text = prompt.partition(given)[2].partition("\n")[0].strip()
        elif name == "system":
            text = next((message.text for message in request.messages if message.role == "system"), "")
        elif name == "prompt":
            text = prompt
        else:
            text = str(request.seed if name == "seed" else stable_seed(prompt) % 1_000_000)
        return text if request.schema is None else json.dumps(text, ensure_ascii=False)[1:-1]

    return _PLACE.sub(insert, template)


def rate_limit_headers(outcome: SimulatedOutcome) -> dict[str, str]:
    """The headers with which a server says how long to wait."""
    headers = {}
    if outcome.retry_after is not None:
        headers["retry-after"] = str(outcome.retry_after)
    if outcome.reset_after is not None:
        reset = str(outcome.reset_after)
        if reset.replace(".", "", 1).isdigit():
            reset += "s"  # as OpenAI writes it
        headers |= {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset}
    return headers
