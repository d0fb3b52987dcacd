"""Conversations between speakers, each a model with a part of its own, turn by turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import attrs
import polars as pl

from .. import checks
from ..errors import ConfigError, Permanent, Retryable
from ..graph import nearest
from ..models.base import NOT_IN_FINGERPRINT, ChatAnswer, Message
from .base import CellContext, Column
from .chat import as_text, check_own_parameters, throttle_options
from .fields import Shape
from .parse import split_thoughts
from .spec import ColumnSpec, Environment
from .templates import compile_condition, compile_template
from .tool_sources import ToolSource, as_tools, check_tools_field
from .tools import ToolBox, chat_format, messages_dtype

if TYPE_CHECKING:
    from .base import Model
    from .fields import Text
    from .templates import Condition, Template

# The name of the turns so far in templates and in `until`.
_TURNS = "turns"
_ROLES = ("user", "assistant")
# How often a model is asked again for a turn that is empty.
_ASKED_AGAIN = 2
_METADATA = pl.Struct(
    {
        "speaker": pl.String,
        "model": pl.String,
        "finish_reason": pl.String,
        "reasoning": pl.String,
        "input_tokens": pl.Int64,
        "output_tokens": pl.Int64,
    }
)
_TURN = Shape(
    fields={
        "number": Shape(kind=int),
        "speaker": Shape(kind=str),
        "role": Shape(kind=str),
        "content": Shape(kind=str),
    }
)


@attrs.frozen(kw_only=True)
class Speaker:
    """One side of a conversation."""

    name: str = attrs.field(
        validator=checks.expect("a word", lambda value: isinstance(value, str) and value.isidentifier())
    )
    """Its name, in `turns` and in the metadata."""
    model: str = attrs.field(validator=checks.text)
    """The alias of its model."""
    system: str | None = attrs.field(default=None, validator=checks.optional(checks.text))
    """Its system prompt, a template over other columns and `turns`; other speakers do not see it."""
    prompt: str | None = attrs.field(default=None, validator=checks.optional(checks.text))
    """What it is asked for each of its turns: a template over other columns and `turns`. By default it gets the turns
    so far as a chat, its own as those of the assistant; the first speaker needs one."""
    role: str | None = attrs.field(default=None, validator=checks.optional(checks.one_of(*_ROLES)))
    """Its role in the messages: by default `user` for the first of several speakers and `assistant` for the others."""
    parameters: Mapping[str, Any] = attrs.field(factory=dict, validator=check_own_parameters)
    """Inference parameters that override those of the model."""
    tools: Annotated[tuple[ToolSource, ...], "a list of functions and MCP servers"] = attrs.field(
        default=(), converter=as_tools, validator=check_tools_field
    )
    """Functions and MCP servers that its model may call before it answers."""

    @property
    def error_prefix(self) -> str:
        """The start of messages about one of its fields; its name comes before."""
        return ""


def _speakers(value: Any, spec: Any) -> Any:
    """Speakers from mappings of their fields."""
    if not isinstance(value, list | tuple):
        return value
    known = [field.name for field in attrs.fields(Speaker)]
    found: list[Any] = []
    for index, given in enumerate(value):
        try:
            if isinstance(given, Mapping):
                for field in given:
                    if field not in known:
                        raise ConfigError(f"unknown field {field!r}{nearest(str(field), known)}")
                for field in ("name", "model"):
                    if field not in given:
                        raise ConfigError(f"{field} is missing")
                given = Speaker(**given)  # noqa: PLW2901  what it describes
            found.append(given)
        except ConfigError as error:
            raise ConfigError(f"{spec.error_prefix}speakers[{index}]: {error}", field="speakers") from None
    return tuple(found)


_check_speakers = checks.expect(
    "a list of speakers, such as [{'name': 'assistant', 'model': 'writer'}]",
    lambda value: isinstance(value, tuple) and bool(value) and all(isinstance(each, Speaker) for each in value),
)


@attrs.frozen(kw_only=True)
class Conversation(ColumnSpec):
    """A conversation between models, as a list of messages in the chat format.

    The speakers take turns, in the order in which they are listed, until the expression `until` is true or `max_turns`
    are written. The column `NAME__turns` has a record for each turn that a model wrote: its speaker, model, reasoning,
    finish reason and tokens.
    """

    type: ClassVar[str] = "conversation"

    speakers: Annotated[tuple[Speaker, ...], "a list of speakers"] = attrs.field(
        # mypy does not know converters that get their instance.
        converter=attrs.Converter(_speakers, takes_self=True),  # type: ignore[misc]
        validator=_check_speakers,
    )
    """Who speaks, in this order; the fields of a speaker are below."""
    max_turns: int | None = attrs.field(default=None, validator=checks.optional(checks.whole(1)))
    """How many turns are written at most; required unless `given` has the user's."""
    until: str | None = attrs.field(default=None, validator=checks.optional(checks.text))
    """An expression over other columns and `turns`, evaluated after each turn: true ends the conversation. A turn has
    `number`, `speaker`, `role` and `content`: `"goodbye" in turns[-1].content`."""
    given: str | None = attrs.field(default=None, validator=checks.optional(checks.name))
    """A column of messages: those of the system and the user are taken from there, and the only speaker writes each
    turn of the assistant."""
    max_tool_turns: int = attrs.field(default=8, validator=checks.whole(1), metadata=NOT_IN_FINGERPRINT)
    """How often a model may call tools for one turn."""

    def __attrs_post_init__(self) -> None:
        first, names, problem = self.speakers[0], [each.name for each in self.speakers], ""
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            problem = f"duplicate speaker {twice[0]!r}; give each a name of its own"
        elif taken := {"system", *(("user",) if self.given is not None else ())}.intersection(names):
            problem = f"{taken.pop()!r} is whom given messages come from; give the speaker another name"
        elif self.given is not None and (len(names) > 1 or first.role == "user"):
            problem = f"with given there is one speaker, the assistant, not {', '.join(names)}"
        elif self.given is None and first.prompt is None:
            problem = f"the prompt of {first.name!r} is missing: the first speaker has nothing to answer"
        if problem:
            raise ConfigError(f"{self.error_prefix}speakers: {problem}", field="speakers")
        if self.given is None and self.max_turns is None:
            raise ConfigError(f"{self.error_prefix}max_turns is missing")
        self.texts()

    def role(self, speaker: Speaker) -> str:
        """The role of a speaker in the messages."""
        is_user = len(self.speakers) > 1 and speaker is self.speakers[0]
        return speaker.role or ("user" if is_user else "assistant")

    def aliases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.model for each in self.speakers))

    def tool_sources(self) -> Mapping[str, tuple[ToolSource, ...]]:
        return {f"tools of {each.name}": each.tools for each in self.speakers}

    def texts(self) -> dict[str, Text]:
        found: dict[str, Text] = dict(super().texts())
        if (until := self._until()) is not None:
            found["until"] = until
        for index, speaker in enumerate(self.speakers):
            for field in ("system", "prompt"):
                if (template := self._template(speaker, field)) is not None:
                    found[f"speakers[{index}].{field}"] = template
        return found

    def local_shapes(self) -> Mapping[str, Shape]:
        return {_TURNS: Shape(items=_TURN)}

    def _until(self) -> Condition | None:
        return None if self.until is None else compile_condition(self.until, where=f"column {self.name!r}, until")

    def _template(self, speaker: Speaker, field: str) -> Template | None:
        text = getattr(speaker, field)
        return None if text is None else compile_template(text, where=f"column {self.name!r}, {speaker.name}, {field}")

    def to_column(self, environment: Environment) -> Column:
        if _TURNS in environment.columns:
            raise ConfigError(
                f"{self.error_prefix}the column {_TURNS!r} cannot be read here, where that is the name of the turns so "
                "far; rename the column"
            )
        sides = [
            _Side(
                role=self.role(each),
                speaker=each,
                system=self._template(each, "system"),
                prompt=self._template(each, "prompt"),
                box=ToolBox(each.tools, environment, f"column {self.name!r}, tools of {each.name}"),
                max_tool_turns=self.max_tool_turns,
            )
            for each in self.speakers
        ]
        with_tools = any(side.box for side in sides)
        until = self._until()
        metadata = f"{self.name}__{_TURNS}"
        where = f"column {self.name!r}"

        async def fill(context_: CellContext, /, **values: Any) -> dict[str, Any]:
            given = None if self.given is None else values[self.given]
            if self.given is not None and given is None:
                return {self.name: None}
            talk = _Talk(values=values)
            script = [None] * (self.max_turns or 0) if given is None else _script(given, where)
            models = {alias: environment.bind(context_, alias) for alias in self.aliases()}
            for prepared in script:
                if prepared is None:
                    side = sides[len(talk.written) % len(sides)]
                    await side.speak(context_, models[side.speaker.model], talk, where)
                else:
                    talk.add(prepared.role, prepared.role, [prepared])
                is_full = self.max_turns is not None and len(talk.written) >= self.max_turns
                if is_full or (until is not None and talk.turns and until.decide(talk.row)):
                    break
            return {self.name: chat_format(talk.messages, with_tools=with_tools), metadata: talk.written}

        texts = self.texts()
        texts.pop("skip_when", None)
        read = [name for text in texts.values() for name in getattr(text, "requires", ()) if name != _TURNS]
        parameters = [{**environment.model(each.model).parameters, **each.parameters} for each in self.speakers]
        limits = [each.get(name) for each in parameters for name in ("max_tokens", "max_completion_tokens")]
        keys = [environment.model(alias, self.error_prefix).key("chat") for alias in self.aliases()]
        return Column(
            self.name,
            fill,
            requires=(*((self.given,) if self.given else ()), *read),
            other_keys=tuple(keys[1:]),
            tokens=max((limit for limit in limits if isinstance(limit, int)), default=0),
            side_effects=(metadata,),
            dtype={self.name: messages_dtype(with_tools=with_tools), metadata: pl.List(_METADATA)},
            **throttle_options(environment, self.aliases()[0], "chat"),
        )


@attrs.define(eq=False)
class _Talk:
    """A conversation as far as it has come; `speak` of its sides adds to it."""

    values: Mapping[str, Any]
    # For templates and `until`: number, speaker, role and content of each turn.
    turns: list[dict[str, Any]] = attrs.field(factory=list)
    # The messages of each turn with its speaker: one, or the calls of tools and their results before it.
    said: list[tuple[str, list[Message]]] = attrs.field(factory=list)
    # The records of the turns that models wrote.
    written: list[dict[str, Any]] = attrs.field(factory=list)
    # How often each call of a tool was made.
    counts: Counter[tuple[str, str]] = attrs.field(factory=Counter)

    @property
    def row(self) -> dict[str, Any]:
        """What templates see."""
        return {**self.values, _TURNS: self.turns}

    @property
    def messages(self) -> list[Message]:
        """All messages of the conversation, in the chat format's roles."""
        return [message for _, messages in self.said for message in messages]

    def add(self, speaker: str, role: str, messages: list[Message]) -> None:
        """Add a turn; messages of the system are no turns."""
        self.said.append((speaker, messages))
        if role != "system":
            content, number = messages[-1].content, len(self.turns) + 1
            self.turns.append({"number": number, "speaker": speaker, "role": role, "content": content})


@attrs.frozen(kw_only=True)
class _Side:
    """A speaker that is ready to speak."""

    role: str
    speaker: Speaker
    system: Template | None
    prompt: Template | None
    box: ToolBox
    max_tool_turns: int

    async def speak(self, context: CellContext, model: Model, talk: _Talk, where: str) -> None:
        """Have the model write its next turn."""
        name = self.speaker.name
        messages = [] if self.system is None else [Message(role="system", content=self.system.render(talk.row))]
        if self.prompt is None:
            for speaker, said in talk.said:
                messages += said[:-1] if speaker == name else ()
                role = "assistant" if speaker == name else "system" if speaker == "system" else "user"
                messages.append(Message(role=role, content=said[-1].content))
        else:
            messages.append(Message(role="user", content=self.prompt.render(talk.row)))
        before = len(messages)
        for _ in range(_ASKED_AGAIN + 1):
            # With the results of tools that were called before an answer that is empty.
            answer = await self._ask(context, model, messages, talk)
            thoughts, text = split_thoughts(answer.text)
            if text.strip():
                break
        else:
            raise Retryable(
                f"{where}: model {self.speaker.model!r} returned an empty answer as {name}", code="empty_answer"
            )
        said = [*messages[before:], Message(role=self.role, content=text.strip())]
        # Only an assistant calls tools.
        talk.add(name, self.role, said if self.role == "assistant" else said[-1:])
        talk.written.append(
            {
                "speaker": name,
                "model": self.speaker.model,
                "finish_reason": answer.finish_reason,
                "reasoning": answer.reasoning or thoughts,
                "input_tokens": answer.tokens.input,
                "output_tokens": answer.tokens.output,
            }
        )

    async def _ask(self, context: CellContext, model: Model, messages: list[Message], talk: _Talk) -> ChatAnswer:
        parameters = self.speaker.parameters
        if not self.box:
            return await model.complete(messages, **parameters)
        return await self.box.complete(
            context, model, messages, parameters=parameters, counts=talk.counts, max_turns=self.max_tool_turns
        )


def _script(value: Any, where: str) -> list[Message | None]:
    """The messages that are given, and None where the assistant speaks: after each message of the user."""
    script: list[Message | None] = []
    for each in value if isinstance(value, list) else [value]:
        role = each.get("role") if isinstance(each, Mapping) else None
        if role not in ("system", "user", "assistant", "tool"):
            raise Permanent(f"{where}: given is no list of messages with a role and content: {as_text(each)[:100]}")
        if role in ("system", "user"):
            script.append(Message(role=role, content=as_text(each.get("content") or "")))
        if role == "user":
            script.append(None)
    return script
