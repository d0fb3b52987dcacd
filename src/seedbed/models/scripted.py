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
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import attrs
import trio

from .. import checks
from ..errors import ConfigError, Permanent, Retryable
from .answers import (
    CALLS,
    count_tokens,
    fitting_call,
    fitting_json,
    hash_vector,
    plausible_text,
    small_png,
    split_calls,
)
from .base import NOT_IN_FINGERPRINT, ChatAnswer, ChatRequest, EmbeddingAnswer, Image, ImageAnswer, Tokens
from .distributions import check_amount, draw, is_distribution, stable_seed
from .http import HttpResponse
from .provider import Limits, failure_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

# `status` is an HTTP status other than 200.
OUTCOMES = ("answer", "status", "hang", "reset", "malformed", "truncated", "empty", "refusal", "filter", "length")

# Matches whole markers only: a wiki link in a prompt is not a marker.
_WORD = rf"(?:\d{{3}}|x\d+|{'|'.join(OUTCOMES)}|latency=\d+(?:\.\d*)?|(?:retry|reset)-after=[\w.:-]+)"
_MARKER = re.compile(rf"\[\[({_WORD}(?: {_WORD})*)\]\]")


def _seconds(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_amount(attribute.name, value, "seconds")


def _tuple(value: object) -> object:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else value


def _check_outcomes(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, tuple):
        raise ConfigError(
            f"{attribute.name} must be a list such as ['429 retry-after=1', '500', 'answer'], not {value!r}"
        )
    for words in value:
        _read_marker(words)


def _operational(_: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    return [field.evolve(metadata=NOT_IN_FINGERPRINT) for field in fields]


_count_or_none = checks.optional(checks.whole(0))
_RANDOM_FAILURES = ("rate_limit", "error", "hang", "reset", "malformed", "truncated")


# Not slotted, so that a spec can be this and something else too.
@attrs.frozen(kw_only=True, slots=False, field_transformer=_operational)
class Behaviour:
    """Latency and failures of a simulated model. Shares are of all calls, drawn by prompt and `seed`."""

    first_outcomes: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_check_outcomes)
    """The outcomes of the first calls, such as `429 retry-after=1`, `500` and `answer`; later calls follow the other
    fields."""
    latency: Annotated[Any, "seconds, or a distribution"] = attrs.field(default=0.0, validator=_seconds)
    """How long an answer takes, constant or drawn: `{uniform: [0.1, 0.4]}`."""
    error_latency: Annotated[Any, "seconds, or a distribution"] = attrs.field(default=0.0, validator=_seconds)
    """How long a rate-limited call or an error takes."""
    capacity: int | None = attrs.field(default=None, validator=_count_or_none)
    """How many calls are processed at once; further ones are rate-limited (429)."""
    rate_limit_share: float = attrs.field(default=0.0, validator=checks.share)
    """The share of calls that are rate-limited."""
    retry_after: float | str | None = None
    """The `Retry-After` of rate-limited calls: seconds or a date."""
    reset_after: float | str | None = None
    """Their `x-ratelimit-reset-requests`, with `x-ratelimit-remaining-requests: 0`."""
    error_share: float = attrs.field(default=0.0, validator=checks.share)
    """The share of calls that fail with `error_status`."""
    error_status: int = 500
    """The HTTP status of these failures."""
    hang_share: float = attrs.field(default=0.0, validator=checks.share)
    """The share of calls that are never answered."""
    reset_share: float = attrs.field(default=0.0, validator=checks.share)
    """The share of calls whose connection is reset."""
    malformed_share: float = attrs.field(default=0.0, validator=checks.share)
    """The share of answers that are not JSON."""
    truncated_share: float = attrs.field(default=0.0, validator=checks.share)
    """The share of answers that end in the middle."""
    max_failures: int | None = attrs.field(default=2, validator=_count_or_none)
    """The most random failures in a row of one prompt, so that a run with a few retries drops no row."""
    seed: int = 0
    """Failures, latencies and answers are drawn by it and the prompt."""

    def __attrs_post_init__(self) -> None:
        """Check that the shares add up to at most 1."""
        if sum(self.shares().values()) > 1:
            raise ConfigError(f"the shares of failures add up to more than 1: {self.shares()}")

    def shares(self) -> dict[str, float]:
        """The share of each kind of failure."""
        return {name: getattr(self, f"{name}_share") for name in _RANDOM_FAILURES}


@attrs.frozen(kw_only=True)
class SimulatedOutcome:
    """The outcome of one simulated call."""

    outcome: str = "answer"
    """`answer`, `status`, `hang`, `reset`, `malformed`, `truncated`, `empty`, `refusal`, `filter` or `length`."""
    status: int = 200
    """The HTTP status."""
    latency: float = 0.0
    """Seconds until the answer."""
    retry_after: float | str | None = None
    """The `Retry-After` header."""
    reset_after: float | str | None = None
    """The `x-ratelimit-reset-requests` header."""
    text: str | None = None
    """The text of the answer; None for a generated one."""


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
            return self._rate_limited(random.Random(behaviour.seed))
        if self._first:
            return self._marked([self._first.popleft()], prompt) or self._ended("answer", self._rng(prompt))
        if "[[" in prompt and (marked := self._marked(_MARKER.findall(prompt), prompt)) is not None:
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
                    return self._ended("status", rng, status=behaviour.error_status)
                return self._ended(name, rng)
        self._failed.pop(prompt, None)
        return self._ended("answer", rng)

    def _rng(self, prompt: str) -> random.Random:
        return random.Random(stable_seed(self.behaviour.seed, prompt, self.seen[prompt]))

    def _rate_limited(self, rng: random.Random) -> SimulatedOutcome:
        behaviour = self.behaviour
        return self._ended(
            "status", rng, status=429, retry_after=behaviour.retry_after, reset_after=behaviour.reset_after
        )

    def _marked(self, markers: Iterable[str], prompt: str) -> SimulatedOutcome | None:
        fields: dict[str, Any] = {}
        for marker in markers:
            read, times = _read_marker(marker)
            if times is None or self.seen[prompt] <= times:
                fields |= read
        if not fields:
            return None
        outcome = fields.pop("outcome", "answer")
        return self._ended(outcome, self._rng(prompt), **fields)

    def _ended(self, outcome: str, rng: random.Random, **fields: Any) -> SimulatedOutcome:
        if "latency" not in fields:
            latency = self.behaviour.error_latency if outcome == "status" else self.behaviour.latency
            fields["latency"] = max(0.0, float(draw(latency, rng)))
        return SimulatedOutcome(outcome=outcome, **fields)


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


AnswerFunction = Callable[[ChatRequest], "str | ChatAnswer"]
_PLACE = re.compile(r"\{(prompt|system|number|seed|after:[^{}]*|choice:[^{}]*|drawn:[^{}]*)\}")
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
        templates = each if isinstance(value, Mapping) and isinstance(each, list | tuple) and each else [each]
        if not all(isinstance(template, str) for template in templates):
            raise ConfigError(f"{attribute.name}: {each!r} is not a template")


@attrs.frozen(kw_only=True, slots=False)
class Scripted(Behaviour, Limits):
    """A model that answers out of a script: without a key, a network or a cost.

    `answers` is a template (`{prompt}`, `{system}`, `{number}`, `{seed}`, `{choice:yes|no}`, and `{after:Topic:}` for
    what follows `Topic:` on its line of the prompt; `{drawn:yes|no}` is a choice that differs for equal prompts), a
    list of templates (the prompt decides which), a mapping of words to templates (the first word that the prompt
    contains; `*` for the rest), or a function of the `ChatRequest`. In answers to a request with a schema, inserted
    text is escaped for JSON. Where the column has tools, an answer such as
    `{"tool_calls": [{"name": "add", "arguments": {"a": 1}}]}` calls them; the next prompt is the result of the tool.
    Without `answers`, or where no word matches, the answer is generated: plausible text for the prompt, JSON that is
    valid for the schema, or first a call of a tool.
    """

    type: ClassVar[str] = "scripted"

    answers: str | Sequence[str] | Mapping[str, str | Sequence[str]] | AnswerFunction | None = attrs.field(
        default=None, validator=_check_answers
    )
    """What it answers; see above."""
    model: str = attrs.field(default="scripted", validator=checks.text)
    """A name for reports."""
    reasoning: str | None = None
    """The reasoning of each answer, a template as in `answers`."""
    timeout: float = attrs.field(default=120.0, validator=checks.seconds)
    """After how many seconds a call that is never answered fails."""

    def key(self, domain: str) -> str:
        return f"scripted {self.model} {domain}"

    @property
    def provider_id(self) -> str:
        """Equal for equal scripts, which share their counts."""
        return f"scripted {self!r}"

    def problems(self) -> list[str]:
        return []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ScriptedClient]:
        yield ScriptedClient(self)


class ScriptedClient:
    """The client of a scripted model. Counts calls in flight for `capacity`; only its calls change it."""

    def __init__(self, spec: Scripted) -> None:
        self._spec = spec
        self._outcomes = OutcomeSource(spec)
        self._in_flight = 0

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        prompt = request.messages[-1].content
        outcome = await self._simulate(prompt)
        scripted = self._answer(request, prompt)
        if isinstance(scripted, ChatAnswer):
            answer = scripted
        else:
            text, calls = split_calls(scripted, len(request.messages)) if request.tools else (scripted, ())
            answer = ChatAnswer(text=text, tool_calls=calls)
        reasoning, tokens = answer.reasoning, answer.tokens
        if reasoning is None and self._spec.reasoning is not None:
            reasoning = _fill(self._spec.reasoning, request)
        if tokens == Tokens():
            prompted = sum(count_tokens(message.content) for message in request.messages)
            written = "".join(call.name + call.arguments for call in answer.tool_calls)
            tokens = Tokens(input=prompted, output=count_tokens(answer.text + (reasoning or "") + written))
        reason = "length" if outcome.outcome == "length" else answer.finish_reason or "stop"
        return attrs.evolve(answer, reasoning=reasoning, finish_reason=reason, tokens=tokens)

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
            raise Retryable(f"{name}: no answer within {self._spec.timeout:g} s", code="timeout")
        if outcome.outcome == "status":
            response = HttpResponse(outcome.status, rate_limit_headers(outcome), b"the script says so")
            failure = failure_of(self._spec.model, response)
            if failure is not None:
                raise failure
        if outcome.outcome in _FAILURES:
            raise Retryable(f"{name}: {_FAILURES[outcome.outcome]}")
        if outcome.outcome in {"refusal", "filter"}:
            raise Permanent(f"{name} refused: the script says so", code="refused")
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
            if request.tools and request.messages[-1].role != "tool":
                tool = request.tools[stable_seed("tool", prompt) % len(request.tools)]
                return fitting_call(tool.name, tool.parameters, prompt)
            return fitting_json(request.schema, prompt) if request.schema else plausible_text(prompt)
        if not isinstance(answers, str):
            answers = answers[stable_seed("which", prompt) % len(answers)]
        return _fill(answers, request)


def _fill(template: str, request: ChatRequest) -> str:
    prompt = request.messages[-1].content
    is_json = request.schema is not None or template.lstrip().startswith(CALLS)

    def insert(found: re.Match[str]) -> str:
        name, _, given = found.group(1).partition(":")
        if name == "choice":
            return random.Random(stable_seed(found.start(), prompt)).choice(str(given).split("|"))
        if name == "drawn":
            return random.Random(stable_seed(found.start(), request.seed)).choice(str(given).split("|"))
        if name == "after":
            text = prompt.partition(given)[2].partition("\n")[0].strip()
        elif name == "system":
            text = next((message.content for message in request.messages if message.role == "system"), "")
        elif name == "prompt":
            text = prompt
        else:
            text = str(request.seed if name == "seed" else stable_seed(prompt) % 1_000_000)
        return json.dumps(text, ensure_ascii=False)[1:-1] if is_json else text

    return _PLACE.sub(insert, template)


def rate_limit_headers(outcome: SimulatedOutcome) -> dict[str, str]:
    """The headers that state how long to wait."""
    headers = {}
    if outcome.retry_after is not None:
        headers["retry-after"] = str(outcome.retry_after)
    if outcome.reset_after is not None:
        reset = str(outcome.reset_after)
        if reset.replace(".", "", 1).isdigit():
            reset += "s"  # as OpenAI writes it
        headers |= {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset}
    return headers
