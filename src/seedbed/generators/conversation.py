"""A chat that goes on until its answer fits: ask, read, say what is wrong, ask again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl

from ..errors import BadOutput, Permanent, Retryable
from ..models.base import Message
from ..models.dedupe import Dedupe
from ..models.distributions import is_distribution
from ..runtime.offload import finish_in_thread
from .binding import alias_of, bind_model, model_options
from .column import Column
from .parse import split_thoughts
from .pictures import load_pictures

if TYPE_CHECKING:
    from pathlib import Path

    from ..models.base import Image
    from ..recipe.access import Access
    from ..recipe.llm import ChatSpec
    from ..recipe.templates import Template
    from .context import CellContext
    from .registry import Environment

Read = Callable[[str], Any]
"""From the text of an answer to the value of the cell; raises `BadOutput` with what is wrong."""
Ask = Callable[[Mapping[str, Any]], "str | None"]
"""From the values of a row to the prompt; None where there is nothing to ask, and the cell is null."""

TRACE = pl.List(pl.Struct({"role": pl.String, "text": pl.String}))
# An answer longer than this is read in a thread: validating one of 100 kB may take the loop 50 ms.
_LONG = 20_000
_SHOWN = 1_000


def chat_column(
    spec: ChatSpec,
    environment: Environment,
    *,
    requires: tuple[str, ...],
    ask: Ask,
    read: Read,
    wanted: str,
    dtype: Any,
    schema: Mapping[str, Any] | None = None,
) -> Column:
    """A column whose cells are conversations; `wanted` says in words what a fitting answer is."""
    parameters = {**alias_of(spec, environment).parameters, **spec.parameters}
    system = spec.template("system")
    needed = (*requires, *(system.requires if system else ()), *spec.images)
    limits = (parameters.get(name) for name in ("max_tokens", "max_completion_tokens"))
    if spec.images:
        environment.path("", f"column {spec.name!r}, images")  # where relative paths of pictures begin
    places = tuple(place for place in (environment.artifacts, environment.base) if place is not None)
    dtypes = {} if dtype is None else {spec.name: dtype}
    if spec.trace:
        dtypes[spec.trace_name] = TRACE
    if spec.reasoning:
        dtypes[spec.reasoning_name] = pl.String
    conversation = _Conversation(
        spec=spec,
        environment=environment,
        ask=ask,
        system=system,
        read=read,
        wanted=wanted,
        schema=schema,
        side_effects=spec.side_effects,
        dedupe=Dedupe() if spec.dedupe and not _asks_for_variety(parameters) else None,
        places=places,
        access=environment.access and environment.access.granting(places[:-1]),
    )
    return Column(
        spec.name,
        conversation.agenerate,
        requires=tuple(dict.fromkeys(needed)),
        tokens=next((limit for limit in limits if isinstance(limit, int)), 0),
        side_effects=spec.side_effects,
        dtype=dtypes or None,
        **model_options(spec, environment, "chat"),
    )


def _asks_for_variety(parameters: Mapping[str, Any]) -> bool:
    """Whether equal prompts should have different answers: a temperature that is drawn, or is not 0."""
    temperature = parameters.get("temperature")
    return is_distribution(temperature) or bool(temperature)


@attrs.frozen(kw_only=True, eq=False)
class _Conversation:
    """One column's way of asking; nothing of a cell is kept in it."""

    spec: ChatSpec
    environment: Environment
    ask: Ask
    system: Template | None
    read: Read
    wanted: str
    schema: Mapping[str, Any] | None
    dedupe: Dedupe | None
    side_effects: tuple[str, ...]
    # Where relative paths of pictures begin.
    places: tuple[Path, ...]
    # What of them a recipe from a file may read; a model that writes paths is no more trusted.
    access: Access | None

    async def agenerate(self, context_: CellContext, /, **values: Any) -> Any:
        """Fill one cell."""
        spec = self.spec
        prompt = self.ask(values)
        if prompt is None:
            return {spec.name: None} if self.side_effects else None
        if not prompt.strip() and not spec.images:
            raise Permanent(f"column {spec.name!r}: its prompt came out empty, so there is nothing to ask")
        images = await self._images(values) if spec.images else ()
        messages = [Message(role="user", text=prompt, images=images)]
        if self.system is not None:
            messages.insert(0, Message(role="system", text=self.system.render(values)))
        model = bind_model(spec, self.environment, context_, self.dedupe)
        for repairs in range(spec.max_repairs + 1):
            answer = await model.complete(messages, schema=self.schema, **spec.parameters)
            thoughts, text = split_thoughts(answer.text)
            if not text.strip():
                raise Retryable(f"column {spec.name!r}: model {spec.model!r} answered with nothing")
            messages.append(Message(role="assistant", text=text))
            try:
                value = self.read(text) if len(text) <= _LONG else await finish_in_thread(partial(self.read, text))
            except BadOutput as misfit:
                problem = str(misfit)
                if answer.finish_reason == "length":
                    problem = f"it was cut off at its token limit ({problem})"
                if repairs == spec.max_repairs:
                    raise BadOutput(self._failure(problem, text)) from None
                messages.append(Message(role="user", text=self._correction(problem)))
                # Only the first question is asked once for all: a cell that waits for another's repair would still
                # hold the permit of the call that it did not need, and the other may be waiting for that permit.
                if self.dedupe is not None and repairs == 0:
                    model = bind_model(spec, self.environment, context_)
            else:
                break
        if not self.side_effects:
            return value
        cell: dict[str, Any] = {spec.name: value}
        if spec.trace:
            cell[spec.trace_name] = [{"role": message.role, "text": message.text} for message in messages]
        if spec.reasoning:
            cell[spec.reasoning_name] = answer.reasoning or thoughts
        return cell

    async def _images(self, values: Mapping[str, Any]) -> tuple[Image, ...]:
        images: list[Image] = []
        for name in self.spec.images:
            where = f"column {self.spec.name!r}, images: {name!r}"
            images += await load_pictures(values[name], places=self.places, where=where, access=self.access)
        return tuple(images)

    def _correction(self, problem: str) -> str:
        return f"That answer cannot be used: {problem}\nAnswer again with {self.wanted}, and with nothing else."

    def _failure(self, problem: str, text: str) -> str:
        spec = self.spec
        count = spec.max_repairs
        after = f" after {count} repair{'' if count == 1 else 's'}" if count else ""
        shown = text if len(text) <= 200 else f"{text[:200]}…"
        return f"column {spec.name!r}: the answer does not fit{after}: {problem[:_SHOWN]}; it was {shown!r}"
