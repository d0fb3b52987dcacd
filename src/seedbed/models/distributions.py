"""Numbers that are drawn and not given: sampled temperatures, latencies of simulated models.

In a recipe file `{"uniform": [0.2, 1.0]}`, `{"normal": [mean, deviation]}`, `{"lognormal": [median, sigma]}`,
`{"exponential": mean}`, `{"integer": [low, high]}` or `{"choice": [values]}` stands where a constant could.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..errors import ConfigError
from ..graph import nearest

_PAIRS: dict[str, Callable[[random.Random, float, float], float]] = {
    "uniform": random.Random.uniform,
    "normal": random.Random.gauss,
    "lognormal": lambda rng, median, sigma: median * math.exp(rng.gauss(0.0, sigma)),
    "integer": lambda rng, low, high: rng.randint(int(low), int(high)),
}
NAMES = (*_PAIRS, "exponential", "choice")
_WRITTEN = re.compile(r"\s*([a-z]+)\s*\(([^()]*)\)\s*")


def stable_seed(*parts: object) -> int:
    """A number that depends on the parts alone: the same in every process and on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def is_distribution(value: object) -> bool:
    """Whether a value is meant to be drawn: a mapping whose only key names a distribution."""
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in NAMES


def check_distribution(name: str, value: object) -> None:
    """Raise `ConfigError` for a distribution that nothing can be drawn from; constants pass."""
    if not is_distribution(value):
        return
    assert isinstance(value, Mapping)
    ((kind, given),) = value.items()
    if kind == "choice":
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            raise ConfigError(f"{name}: choice needs a list of values, not {given!r}")
    elif kind == "exponential":
        if not _is_number(given) or given <= 0:
            raise ConfigError(f"{name}: exponential needs its mean, a number above 0, not {given!r}")
    elif not isinstance(given, Sequence) or len(given) != 2 or not all(_is_number(number) for number in given):
        raise ConfigError(f"{name}: {kind} needs two numbers, not {given!r}")
    elif kind in {"uniform", "integer"} and given[0] > given[1]:
        raise ConfigError(f"{name}: {kind} needs its lower bound first, not {given!r}")


def draw(value: Any, rng: random.Random) -> Any:
    """A value of the distribution, or the constant itself."""
    if not is_distribution(value):
        return value
    ((kind, given),) = value.items()
    if kind == "choice":
        return rng.choice(given)
    if kind == "exponential":
        return rng.expovariate(1.0 / given)
    return _PAIRS[kind](rng, *given)


def drawer(value: Any, rng: random.Random) -> Callable[[], Any]:
    """What draws again and again from a distribution, or gives the constant; quicker than `draw` for many."""
    if not is_distribution(value):
        return lambda: value
    ((kind, given),) = value.items()
    if kind == "choice":
        return partial(rng.choice, tuple(given))
    if kind == "exponential":
        return partial(rng.expovariate, 1.0 / given)
    return partial(_PAIRS[kind], rng, *given)


def mean(value: Any) -> float:
    """The mean of a distribution of numbers, or the constant itself."""
    if not is_distribution(value):
        return float(value)
    ((kind, given),) = value.items()
    if kind == "choice":
        return float(sum(given) / len(given))
    if kind == "exponential":
        return float(given)
    if kind == "lognormal":
        return float(given[0]) * math.exp(given[1] ** 2 / 2)
    return float(given[0] if kind == "normal" else (given[0] + given[1]) / 2)


def parse_distribution(text: str) -> Any:
    """A number, or a distribution as one writes it on a command line: `lognormal(0.8, 0.5)`, `choice(1, 2)`."""
    found = _WRITTEN.fullmatch(text)
    try:
        if found is None:
            return float(text)
        name, numbers = found[1], [float(each) for each in found[2].split(",")]
    except ValueError:
        raise ConfigError(f"{text!r} is neither a number nor a distribution such as lognormal(0.8, 0.5)") from None
    if name not in NAMES:
        raise ConfigError(f"{text!r}: there is no distribution {name!r}{nearest(name, NAMES)}")
    value = {name: numbers[0] if name == "exponential" and len(numbers) == 1 else numbers}
    check_distribution(repr(text), value)
    return value


def distribution_text(value: Any) -> str:
    """A distribution as one writes it; of many measured values how many they are, and their median."""
    if not is_distribution(value):
        return f"{value:g}"
    ((kind, given),) = value.items()
    if kind == "choice" and len(given) > 4:
        return f"{len(given)} measured values, median {sorted(given)[len(given) // 2]:g}"
    numbers = [given] if kind == "exponential" else given
    return f"{kind}({', '.join(f'{number:g}' for number in numbers)})"


def check_latency(name: str, value: object) -> None:
    """Raise `ConfigError` unless seconds can be drawn from it: a number, 0 or more, or a distribution."""
    if is_distribution(value):
        check_distribution(name, value)
    elif not _is_number(value) or value < 0:  # type: ignore[operator]  # it is a number by then
        raise ConfigError(f"{name} must be seconds, 0 or more, or a distribution ({', '.join(NAMES)}), not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
