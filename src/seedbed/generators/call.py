"""How a column's generator is called: found out once, at start-up, from its signature."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import attrs

from ..graph import Kind
from .context import CellContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class UncallableError(TypeError):
    """The generator cannot be called for its column; the message is the rest of the sentence "column 'x' …"."""


@attrs.frozen(kw_only=True)
class Call:
    """A generator's function and what it wants.

    `positional` and `keywords` are requirement names; None among the positional ones stands for the context. A function
    for whole columns or row groups takes its frame or its rows first and has neither.
    """

    function: Callable[..., Any]
    is_async: bool
    positional: tuple[str | None, ...]
    keywords: tuple[str, ...]
    context_keyword: str | None

    @property
    def wants_context(self) -> bool:
        return self.context_keyword is not None or None in self.positional


def generator_function(generator: object) -> tuple[Callable[..., Any], bool]:
    """The function that fills a column, and whether it is async; `agenerate` is preferred to `generate`."""
    if isinstance(generator, type):
        # Its methods would want a `self` that no column makes.
        raise UncallableError(f"has the class {generator.__name__} as its generator; give it an instance")
    agenerate = getattr(generator, "agenerate", None)
    if callable(agenerate):
        return agenerate, True
    generate = getattr(generator, "generate", None)
    if callable(generate):
        return generate, False
    if not callable(generator):
        raise UncallableError(
            f"has {generator!r} as its generator, which is no function and has neither generate nor agenerate"
        )
    is_async = inspect.iscoroutinefunction(generator) or inspect.iscoroutinefunction(generator.__call__)
    return generator, is_async


def bind_call(generator: object, kind: Kind, requires: Sequence[str] | None) -> tuple[Call, tuple[str, ...]]:
    """Find out how to call a generator; returns that and the columns it requires.

    With `requires=None` a cell function's parameters without a default are its requirements.
    """
    function, is_async = generator_function(generator)
    parameters = _parameters(function)
    contexts = [parameter.name for parameter in parameters if _is_context(parameter.annotation)]
    if len(contexts) > 1:
        raise UncallableError(f"has {len(contexts)} parameters for the context; one is enough")
    if kind is Kind.CELL:
        return _bind_cell(function, is_async, parameters, contexts, requires)
    takes = [p for p in parameters if p.name not in contexts and p.default is p.empty and p.kind not in _VARIADIC]
    if len(takes) != 1:
        what = "its rows (a range)" if kind is Kind.FROM_SCRATCH else "its frame"
        names = ", ".join(p.name for p in takes) or "nothing"
        raise UncallableError(f"is called with one argument, {what}, but its function wants {names}")
    keyword = contexts[0] if contexts else None
    call = Call(function=function, is_async=is_async, positional=(), keywords=(), context_keyword=keyword)
    return call, tuple(requires or ())


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _bind_cell(
    function: Callable[..., Any],
    is_async: bool,
    parameters: Sequence[inspect.Parameter],
    contexts: Sequence[str],
    requires: Sequence[str] | None,
) -> tuple[Call, tuple[str, ...]]:
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    named = [parameter for parameter in parameters if parameter.kind not in _VARIADIC]
    wanted = [p.name for p in named if p.default is p.empty and p.name not in contexts]
    if requires is None:
        requires = wanted
    unmet = [name for name in wanted if name not in requires]
    if unmet:
        raise UncallableError(f"wants {_names(unmet)}, which it does not require")
    known = {parameter.name for parameter in named}
    surplus = [name for name in requires if name not in known]
    if surplus and not takes_any:
        raise UncallableError(f"requires {_names(surplus)}, which its function does not take")
    positional: list[str | None] = []
    keywords: list[str] = []
    context_keyword: str | None = None
    in_front = True  # as long as every parameter so far is given, it can be given by position
    for parameter in named:
        given = parameter.name in contexts or parameter.name in requires
        in_front = in_front and given and parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        if in_front:
            positional.append(None if parameter.name in contexts else parameter.name)
        elif parameter.name in contexts:
            context_keyword = parameter.name
        elif given:
            keywords.append(parameter.name)
    keywords.extend(surplus)
    call = Call(
        function=function,
        is_async=is_async,
        positional=tuple(positional),
        keywords=tuple(keywords),
        context_keyword=context_keyword,
    )
    return call, tuple(requires)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    for evaluate in (True, False):
        try:
            return list(inspect.signature(function, eval_str=evaluate).parameters.values())
        except ValueError as unknown:
            raise UncallableError(f"has a function whose parameters cannot be read: {unknown}") from unknown
        except Exception:  # noqa: BLE001  annotations can raise anything; their text is enough then
            continue
    raise UncallableError("has a function whose parameters cannot be read")


def _is_context(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == CellContext.__name__
    return annotation is CellContext


def _names(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
