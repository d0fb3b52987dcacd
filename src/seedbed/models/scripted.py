"""A model out of a script: no network, no key, no cost; the same prompt gets the same answer.

It waits in trio's time, so under a virtual clock an hour of its latency takes nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import trio

from ..errors import ConfigError, Permanent, Retryable
from .answers import count_tokens, fitting_json, hash_vector, plausible_text, small_png
from .base import ChatAnswer, ChatRequest, EmbeddingAnswer, Image, ImageAnswer, Tokens
from .behaviour import Behaviour, Fates
from .distributions import stable_seed
from .http import HttpResponse
from .mapping import failure_of
from .provider import Limits, check_text, check_timeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .behaviour import Fate

AnswerFunction = Callable[[ChatRequest], "str | ChatAnswer"]
_PLACE = re.compile(r"\{(prompt|system|number|seed|choice:[^{}]*)\}")
_LOST = {
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

    `answers` is a template (`{prompt}`, `{system}`, `{number}`, `{seed}`, `{choice:yes|no}`), a list of templates (the
    prompt decides which), a mapping of words to templates (the first word that the prompt contains; `*` for the rest),
    or a function of the `ChatRequest`. Without it, or where no word fits, the answer is something plausible: text by
    what the prompt asks for, JSON that fits the schema where there is one.

    Latency, errors and refusals are the fields of `Behaviour`.
    """

    type: ClassVar[str] = "scripted"

    answers: str | Sequence[str] | Mapping[str, str | Sequence[str]] | AnswerFunction | None = attrs.field(
        default=None, validator=_check_answers
    )
    model: str = attrs.field(default="scripted", validator=check_text)
    # What it thinks aloud, a template as well.
    reasoning: str | None = None
    # Seconds after which a call that hangs is given up; latency may be longer.
    timeout: float = attrs.field(default=120.0, validator=check_timeout)

    def __attrs_post_init__(self) -> None:
        """Both parents check what their fields mean together."""
        Behaviour.__attrs_post_init__(self)
        Limits.__attrs_post_init__(self)

    def key(self, domain: str) -> str:
        """The throttle key."""
        return f"scripted {self.model} {domain}"

    @property
    def provider_id(self) -> str:
        """The same for equal scripts."""
        return f"scripted {self!r}"

    def problems(self) -> list[str]:
        """Nothing can be missing."""
        return []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ScriptedClient]:
        """A client, for as long as a build runs."""
        yield ScriptedClient(self)


class ScriptedClient:
    """The scripted model at work. Counts what is in flight, for `capacity`; changed by its calls only."""

    def __init__(self, spec: Scripted) -> None:
        self._spec = spec
        self._fates = Fates(spec)
        self._in_flight = 0

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        prompt = request.messages[-1].text
        fate = await self._meet(prompt)
        made = self._answer(request, prompt)
        answer = made if isinstance(made, ChatAnswer) else ChatAnswer(text=made)
        if answer.reasoning is None and self._spec.reasoning is not None:
            answer = attrs.evolve(answer, reasoning=_fill(self._spec.reasoning, request))
        if answer.tokens == Tokens():
            asked = sum(count_tokens(message.text) for message in request.messages)
            used = Tokens(input=asked, output=count_tokens(answer.text + (answer.reasoning or "")))
            answer = attrs.evolve(answer, tokens=used)
        reason = "length" if fate.outcome == "length" else answer.finish_reason or "stop"
        return attrs.evolve(answer, finish_reason=reason)

    async def embed(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> EmbeddingAnswer:
        await self._meet("\n".join(texts))
        size = int(parameters.get("dimensions") or 16)
        vectors = tuple(hash_vector(text, size) for text in texts)
        return EmbeddingAnswer(vectors=vectors, tokens=Tokens(input=sum(map(count_tokens, texts))))

    async def image(self, prompt: str, parameters: Mapping[str, Any]) -> ImageAnswer:
        await self._meet(prompt)
        pictures = tuple(Image(data=small_png(f"{prompt} {n}")) for n in range(int(parameters.get("n") or 1)))
        return ImageAnswer(images=pictures, tokens=Tokens(input=count_tokens(prompt)))

    async def _meet(self, prompt: str) -> Fate:
        """Wait as long as the call takes; raises what becomes of it, if that is no answer."""
        fate = self._fates.decide(prompt, self._in_flight)
        is_work = fate.outcome != "status"
        self._in_flight += is_work
        try:
            hangs = fate.outcome == "hang"
            await trio.sleep(self._spec.timeout if hangs else fate.latency)
        finally:
            self._in_flight -= is_work
        name = f"model {self._spec.model!r}"
        if hangs:
            raise Retryable(f"{name}: no answer within {self._spec.timeout:g} s")
        if fate.outcome == "status":
            failure = failure_of(self._spec.model, _response(fate))
            if failure is not None:
                raise failure
        if fate.outcome in _LOST:
            raise Retryable(f"{name}: {_LOST[fate.outcome]}")
        if fate.outcome in {"refusal", "filter"}:
            raise Permanent(f"{name} refused: the script says so")
        return fate

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

    def place(found: re.Match[str]) -> str:
        name, _, choices = found.group(1).partition(":")
        if name == "choice":
            return random.Random(stable_seed(found.start(), prompt)).choice(str(choices).split("|"))
        if name == "system":
            return next((message.text for message in request.messages if message.role == "system"), "")
        if name == "prompt":
            return prompt
        return str(request.seed if name == "seed" else stable_seed(prompt) % 1_000_000)

    return _PLACE.sub(place, template)


def _response(fate: Fate) -> HttpResponse:
    headers = {}
    if fate.retry_after is not None:
        headers["retry-after"] = str(fate.retry_after)
    if fate.reset_after is not None:
        headers |= {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": str(fate.reset_after)}
    return HttpResponse(fate.status, headers, b"the script says so")
