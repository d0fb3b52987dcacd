"""Random numbers by distribution: sampled temperatures, latencies of simulated models.

In a recipe file `{"uniform": [0.2, 1.0]}`, `{"normal": [mean, deviation]}`, `{"lognormal": [median, sigma]}`,
`{"exponential": mean}`, `{"integer": [low, high]}` or `{"choice": [values]}` can replace a constant.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import checks
from ..checks import is_number
from ..errors import ConfigError
from ..graph import nearest

if TYPE_CHECKING:
    import attrs

_PAIRS: dict[str, Callable[[random.Random, float, float], float]] = {
    "uniform": random.Random.uniform,
    "normal": random.Random.gauss,
    "lognormal": lambda rng, median, sigma: median * math.exp(rng.gauss(0.0, sigma)),
    "integer": lambda rng, low, high: rng.randint(int(low), int(high)),
}
NAMES = (*_PAIRS, "exponential", "choice")
_WRITTEN = re.compile(r"\s*([a-z]+)\s*\(([^()]*)\)\s*")


def stable_seed(*parts: object) -> int:
    """A number that depends only on the parts, the same in every process and on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def is_distribution(value: object) -> bool:
    """True if a value is a distribution: a mapping whose only key is the name of one."""
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in NAMES


def check_distribution(name: str, value: object) -> None:
    """Raise `ConfigError` for an invalid distribution; constants are accepted."""
    if not is_distribution(value):
        return
    assert isinstance(value, Mapping)
    ((kind, given),) = value.items()
    if kind == "choice":
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            raise ConfigError(f"{name}: choice needs a list of values, not {given!r}")
    elif kind == "exponential":
        if not is_number(given) or given <= 0:
            raise ConfigError(f"{name}: exponential needs its mean, a number above 0, not {given!r}")
    elif not isinstance(given, Sequence) or len(given) != 2 or not all(is_number(number) for number in given):
        raise ConfigError(f"{name}: {kind} needs two numbers, not {given!r}")
    elif kind in {"uniform", "integer"} and given[0] > given[1]:
        raise ConfigError(f"{name}: {kind} needs its lower bound first, not {given!r}")


def check_parameters(instance: object, attribute: attrs.Attribute[Any], value: Mapping[str, Any]) -> None:
    """Validate inference parameters: a mapping whose distributions are valid."""
    checks.mapping(instance, attribute, value)
    prefix = getattr(instance, "error_prefix", "")
    for name, given in value.items():
        check_distribution(f"{prefix}{attribute.name}.{name}", given)


def draw(value: Any, rng: random.Random) -> Any:
    """Draw a value of the distribution, or return the constant."""
    return drawer(value, rng)()


def drawer(value: Any, rng: random.Random) -> Callable[[], Any]:
    """Return a function that draws from the distribution (or returns the constant); faster than repeated `draw`."""
    if not is_distribution(value):
        return lambda: value
    ((kind, given),) = value.items()
    if kind == "choice":
        return partial(rng.choice, tuple(given))
    if kind == "exponential":
        return partial(rng.expovariate, 1.0 / given)
    return partial(_PAIRS[kind], rng, *given)


def mean(value: Any) -> float:
    """The mean of a distribution of numbers, or the constant."""
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
    """Parse a number or the command-line form of a distribution: `lognormal(0.8, 0.5)`, `choice(1, 2)`."""
    found = _WRITTEN.fullmatch(text)
    try:
        if found is None:
            return float(text)
        name, numbers = found[1], [float(each) for each in found[2].split(",")]
    except ValueError:
        raise ConfigError(f"{text!r} is neither a number nor a distribution such as lognormal(0.8, 0.5)") from None
    if name not in NAMES:
        raise ConfigError(f"{text!r}: unknown distribution {name!r}{nearest(name, NAMES)}")
    value = {name: numbers[0] if name == "exponential" and len(numbers) == 1 else numbers}
    check_distribution(repr(text), value)
    return value


def distribution_text(value: Any) -> str:
    """The command-line form of a distribution; many measured values are summarised by count and median."""
    if not is_distribution(value):
        return f"{value:g}"
    ((kind, given),) = value.items()
    if kind == "choice" and len(given) > 4:
        return f"{len(given)} measured values, median {sorted(given)[len(given) // 2]:g}"
    numbers = [given] if kind == "exponential" else given
    return f"{kind}({', '.join(f'{number:g}' for number in numbers)})"


def check_amount(name: str, value: object, noun: str = "a number") -> None:
    """Raise `ConfigError` unless the value is a number, 0 or more, or a distribution; `noun` names its unit."""
    amounts: Sequence[object] = [value]
    if is_distribution(value):
        assert isinstance(value, Mapping)
        check_distribution(name, value)
        amounts = value.get("choice", ())
    if not all(is_number(each) and each >= 0 for each in amounts):
        raise ConfigError(f"{name} must be {noun}, 0 or more, or a distribution ({', '.join(NAMES)}), not {value!r}")
