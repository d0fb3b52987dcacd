"""How a simulated model behaves: how long it takes, what it refuses and how it fails.

Decided here and nowhere else, synchronously, for the scripted model (which raises) and for the test server (which
sends). A prompt may ask for its own fate with a marker: `[[500]]`, `[[429 retry-after=2]]`, `[[hang]]`, `[[reset]]`,
`[[malformed]]`, `[[truncated]]`, `[[empty]]`, `[[refusal]]`, `[[filter]]`, `[[length]]`, `[[latency=0.5]]`; `x2` in it
(`[[500 x2]]`) means only the first two times that this prompt comes.
"""

from __future__ import annotations

import random
import re
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import ConfigError
from .base import HOW
from .distributions import check_latency, draw, is_distribution, stable_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
"""What can become of a call; `status` is an HTTP status other than 200."""

# Only what is a marker as a whole: a wiki link in a prompt is not one.
_WORD = rf"(?:\d{{3}}|x\d+|{'|'.join(OUTCOMES)}|latency=\d+(?:\.\d*)?|(?:retry|reset)-after=[\w.:-]+)"
_MARKER = re.compile(rf"\[\[({_WORD}(?: {_WORD})*)\]\]")


def _share(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"{attribute.name} must be between 0 and 1, not {value!r}")


def _seconds(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_latency(attribute.name, value)


def _capacity(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ConfigError(f"{attribute.name} must be a whole number, 0 or more, or None for no limit, not {value!r}")


def _tuple(value: object) -> object:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else value


def _check_fates(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, tuple):
        raise ConfigError(
            f"{attribute.name} must be a list such as ['429 retry-after=1', '500', 'answer'], not {value!r}"
        )
    for words in value:
        _read_marker(words)


# Not slotted, so that a spec can be this and something else too.
@attrs.frozen(kw_only=True, slots=False)
class Behaviour:
    """What a simulated model does besides answering. Shares are of all calls, drawn by prompt and `seed`."""

    # What becomes of the first calls, one by one, in the words of markers; later calls go as the rest says.
    fates: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_check_fates, metadata=HOW)
    # Seconds for an answer, constant or a distribution.
    latency: Any = attrs.field(default=0.0, validator=_seconds, metadata=HOW)
    # Seconds for a refusal or an error; real servers are quick about them.
    refusal_latency: Any = attrs.field(default=0.0, validator=_seconds, metadata=HOW)
    # Calls that are worked on at once; what comes above is refused (429).
    capacity: int | None = attrs.field(default=None, validator=_capacity, metadata=HOW)
    rate_limit_share: float = attrs.field(default=0.0, validator=_share, metadata=HOW)
    # What refusals say: seconds or a date in Retry-After, None for no header.
    retry_after: float | str | None = attrs.field(default=None, metadata=HOW)
    # Seconds for x-ratelimit-reset-requests beside x-ratelimit-remaining-requests: 0; None for no such headers.
    reset_after: float | str | None = attrs.field(default=None, metadata=HOW)
    error_share: float = attrs.field(default=0.0, validator=_share, metadata=HOW)
    error_status: int = attrs.field(default=500, metadata=HOW)
    hang_share: float = attrs.field(default=0.0, validator=_share, metadata=HOW)
    reset_share: float = attrs.field(default=0.0, validator=_share, metadata=HOW)
    malformed_share: float = attrs.field(default=0.0, validator=_share, metadata=HOW)
    truncated_share: float = attrs.field(default=0.0, validator=_share, metadata=HOW)
    # One prompt fails by chance at most so often in a row, so that a run with a few retries loses no row.
    max_failures: int | None = attrs.field(default=2, validator=_capacity, metadata=HOW)
    seed: int = attrs.field(default=0, metadata=HOW)

    def __attrs_post_init__(self) -> None:
        """Shares are of the same whole."""
        if sum(self.shares().values()) > 1:
            raise ConfigError(f"the shares of failures add up to more than 1: {self.shares()}")

    def shares(self) -> dict[str, float]:
        """The share of each failure by chance."""
        return {
            "rate_limit": self.rate_limit_share,
            "error": self.error_share,
            "hang": self.hang_share,
            "reset": self.reset_share,
            "malformed": self.malformed_share,
            "truncated": self.truncated_share,
        }


@attrs.frozen(kw_only=True)
class Fate:
    """What becomes of one call."""

    outcome: str = "answer"
    status: int = 200
    latency: float = 0.0
    retry_after: float | str | None = None
    reset_after: float | str | None = None
    # The text of the answer, where the caller's own way of making one is not wanted.
    text: str | None = None


class Fates:
    """Decides what becomes of each call. Counts what came by prompt; changed by `decide` only."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.seen: Counter[str] = Counter()
        self._first = deque(behaviour.fates)
        self._failed: Counter[str] = Counter()  # since the last answer
        self._shares = [(name, share) for name, share in behaviour.shares().items() if share]
        self._is_constant = not is_distribution(behaviour.latency)

    def decide(self, prompt: str, in_flight: int) -> Fate:
        """The fate of a call that came while `in_flight` others were worked on."""
        behaviour = self.behaviour
        self.seen[prompt] += 1
        if behaviour.capacity is not None and in_flight >= behaviour.capacity:
            return self._refusal(None)
        if self._first:
            return self._from_words([self._first.popleft()], prompt) or Fate(latency=self._slow(self._rng(prompt)))
        if "[[" in prompt and (marked := self._from_words(_MARKER.findall(prompt), prompt)) is not None:
            return marked
        if not self._shares and self._is_constant:
            return Fate(latency=behaviour.latency)
        rng = self._rng(prompt)
        chance = rng.random()
        for name, share in self._shares:
            chance -= share
            if chance < 0:
                if behaviour.max_failures is not None and self._failed[prompt] >= behaviour.max_failures:
                    break
                self._failed[prompt] += 1
                if name == "rate_limit":
                    return self._refusal(rng)
                if name == "error":
                    return Fate(outcome="status", status=behaviour.error_status, latency=self._quick(rng))
                return Fate(outcome=name, latency=self._slow(rng))
        self._failed.pop(prompt, None)
        return Fate(latency=self._slow(rng))

    def _refusal(self, rng: random.Random | None) -> Fate:
        return Fate(
            outcome="status",
            status=429,
            latency=self._quick(rng),
            retry_after=self.behaviour.retry_after,
            reset_after=self.behaviour.reset_after,
        )

    def _rng(self, prompt: str) -> random.Random:
        return random.Random(stable_seed(self.behaviour.seed, prompt, self.seen[prompt]))

    def _from_words(self, markers: Iterable[str], prompt: str) -> Fate | None:
        fate: dict[str, Any] = {}
        for marker in markers:
            said, times = _read_marker(marker)
            if times is None or self.seen[prompt] <= times:
                fate.update(said)
        if not fate:
            return None
        if "latency" not in fate:
            rng = self._rng(prompt)
            fate["latency"] = self._quick(rng) if fate.get("outcome") == "status" else self._slow(rng)
        return Fate(**fate)

    def _quick(self, rng: random.Random | None) -> float:
        return max(0.0, float(draw(self.behaviour.refusal_latency, rng or random.Random(self.behaviour.seed))))

    def _slow(self, rng: random.Random) -> float:
        return max(0.0, float(draw(self.behaviour.latency, rng)))


def _read_marker(marker: str) -> tuple[dict[str, Any], int | None]:
    """What a marker says of a fate, and for how many times; raises `ConfigError` for a word that says nothing."""
    said: dict[str, Any] = {}
    times: int | None = None
    for word in marker.split():
        name, _, value = word.partition("=")
        if re.fullmatch(r"\d{3}", name):
            said.update(outcome="status", status=int(name))
        elif re.fullmatch(r"x\d+", name):
            times = int(name[1:])
        elif name in OUTCOMES:
            said.update(outcome=name)
        elif name == "latency" and re.fullmatch(r"\d+(\.\d*)?", value):
            said.update(latency=float(value))
        elif name in {"retry-after", "reset-after"}:
            said[name.replace("-", "_")] = value
        else:
            raise ConfigError(
                f"{word!r} in {marker!r} is not a fate; there are statuses (429), {', '.join(OUTCOMES)}, latency=…, "
                "retry-after=…, reset-after=… and x2"
            )
    return said, times


def behaviour_from(options: Mapping[str, Any]) -> tuple[Behaviour, dict[str, Any]]:
    """Split keyword options into a behaviour and the rest."""
    names = {field.name for field in attrs.fields(Behaviour)}
    mine = {name: value for name, value in options.items() if name in names}
    return Behaviour(**mine), {name: value for name, value in options.items() if name not in names}
