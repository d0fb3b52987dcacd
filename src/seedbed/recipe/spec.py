"""What all columns of a recipe have in common."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import attrs

from ..errors import ConfigError
from ..graph import name_problem
from .dtypes import read_dtype
from .templates import SkipRule, compile_condition

SKIP_POLICIES = ("run", "skip")
# The metadata of a field that says how data is made and not what it is: changing it makes no other dataset.
HOW = {"seedbed": "how"}


def _name(_: object, __: object, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"a column's name must be text, not {value!r}")
    if problem := name_problem(value):
        raise ConfigError(problem)


def _skip_when(spec: ColumnSpec, _: object, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise ConfigError(f"column {spec.name!r}: skip_when must be an expression as text, not {value!r}")
    compile_condition(value, where=f"column {spec.name!r}, skip_when")


def _skip_policy(spec: ColumnSpec, _: object, value: Any) -> None:
    if value not in SKIP_POLICIES:
        allowed = " or ".join(repr(each) for each in SKIP_POLICIES)
        raise ConfigError(f"column {spec.name!r}: skip_policy must be {allowed}, not {value!r}")


def _timeout(spec: ColumnSpec, _: object, value: Any) -> None:
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ConfigError(f"column {spec.name!r}: timeout must be a number of seconds above 0, not {value!r}")


@attrs.frozen
class ColumnSpec:
    """Base of the frozen specs that a recipe is written in; users write `Category("topic", values=[…])`.

    `type` is the name in a recipe file. `skip_when` is an expression over other columns: where it is true the cell is
    null and its generator is not called; what depends on a skipped cell runs or is skipped by its own `skip_policy`.
    `dtype` may be the name of a type, as in `"int"` or `"list[str]"`.
    """

    type: ClassVar[str]

    name: str = attrs.field(validator=_name)
    skip_when: str | None = attrs.field(default=None, kw_only=True, validator=_skip_when)
    skip_policy: str = attrs.field(default="run", kw_only=True, validator=_skip_policy)
    timeout: float | None = attrs.field(default=None, kw_only=True, validator=_timeout)
    dtype: Any = attrs.field(default=None, kw_only=True, converter=read_dtype)

    def aliases(self) -> tuple[str, ...]:
        """The aliases of the models that it calls; the field `model` if it has one."""
        alias = getattr(self, "model", None)
        return (alias,) if isinstance(alias, str) else ()

    def code(self) -> tuple[str, ...]:
        """What it names as `module:name`, to be imported only where the user allows code; its field `function`."""
        function = getattr(self, "function", None)
        return (function,) if isinstance(function, str) else ()

    def paths(self) -> tuple[str, ...]:
        """The local files that it names."""
        return ()

    def urls(self) -> tuple[str, ...]:
        """The URLs that it contacts, which are listed before a run; its field `url`."""
        url = getattr(self, "url", None)
        return (url,) if isinstance(url, str) else ()


def skip_rule(spec: ColumnSpec) -> SkipRule | None:
    """What its `skip_when` needs and how it is decided; None where it has none."""
    if spec.skip_when is None:
        return None
    condition = compile_condition(spec.skip_when, where=f"column {spec.name!r}, skip_when")
    return SkipRule(requires=condition.requires, decide=condition.decide)
