"""Shared by all columns of a model: fields, calls, the conversation until an answer fits, pictures, parsing."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import attrs
import polars as pl

from .. import checks
from ..errors import BadOutput, ConfigError, Permanent, Retryable
from ..graph import nearest
from ..models.base import NOT_IN_FINGERPRINT, Dedupe, Image, Message
from ..models.distributions import check_parameters, is_distribution
from ..models.openai import media_type_of
from ..models.provider import HttpModel
from ..runtime.threads import finish_in_thread
from ..store.values import is_json
from .base import Column
from .parse import split_thoughts
from .spec import ColumnSpec, Environment, Verifier, spec_types
from .templates import Template, compile_template
from .tool_sources import ToolSource, as_tools, check_tools_field
from .tools import ToolBox, chat_format, messages_dtype

if TYPE_CHECKING:
    from .base import CellContext, Model
    from .fields import Text


T = TypeVar("T")

# Arguments of a call that are fields of the column.
_RESERVED = frozenset({"images", "input", "messages", "model", "n", "prompt", "schema", "stream", "system", "tools"})
_check_text = checks.expect("text", lambda value: isinstance(value, str) and bool(value.strip()))


@checks.field_check
def check_prompt(spec: ModelColumnSpec, attribute: attrs.Attribute[Any], value: Any) -> None:
    """A template."""
    _check_text(spec, attribute, value)
    spec.template(attribute.name)


@checks.field_check
def check_own_parameters(spec: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Inference parameters that are no fields of the column."""
    check_parameters(spec, attribute, value)
    if reserved := [name for name in value if name in _RESERVED]:
        raise ConfigError(
            f"{spec.error_prefix}{attribute.name} cannot have {reserved[0]!r}, which is a field of the column"
        )


# The kinds of validation that a mapping in `repair_with` may have. Others contact servers or run code of the user,
# which is listed by column.
_INLINE = ("python", "sql")


@checks.field_check
def _check_repair_with(spec: RepairedSpec, _: object, value: Any) -> None:
    if not isinstance(value, Mapping):
        if not (isinstance(value, str) and value):
            raise ConfigError(
                f"{spec.error_prefix}repair_with must be the name of a validation column, or a mapping such as "
                f'{{"kind": "python"}}, not {value!r}'
            )
        return
    if value.get("kind") not in _INLINE:
        raise ConfigError(
            f"{spec.error_prefix}repair_with is a mapping with kind {' or '.join(_INLINE)}, not {value.get('kind')!r}; "
            "for other kinds write a validation column and give its name"
        )
    known = ("kind", "lint", "rules", "dialect", "ddl")
    for field in value:
        if field not in known:
            raise ConfigError(f"{spec.error_prefix}repair_with: unknown field {field!r}{nearest(str(field), known)}")
    _inline_validation(spec, value)


def _inline_validation(spec: RepairedSpec, fields: Mapping[str, Any]) -> ColumnSpec:
    """The validation that a mapping in `repair_with` describes."""
    try:
        return spec_types()["validation"](spec.name, of=spec.name, **fields)  # type: ignore[call-arg]
    except ConfigError as error:
        problem = str(error).removeprefix(spec.error_prefix)
        raise ConfigError(f"{spec.error_prefix}repair_with: {problem}") from None


_check_alias = checks.expect("the alias of a model", lambda value: isinstance(value, str) and bool(value))


@checks.field_check
def _check_models(spec: ModelColumnSpec, attribute: attrs.Attribute[Any], value: Any) -> None:
    checks.names(spec, attribute, value)
    if spec.model is None and not value:
        raise ConfigError(f"{spec.error_prefix}give the alias of a model in model, or several in models", field="model")
    if spec.model is not None and value:
        raise ConfigError(f"{spec.error_prefix}model and models exclude each other: list all of them in models")
    if len(set(value)) < len(value):
        raise ConfigError(f"{spec.error_prefix}models lists an alias twice: {', '.join(map(repr, value))}")


@attrs.frozen(kw_only=True)
class ModelColumnSpec(ColumnSpec):
    """The fields of all columns of models."""

    model: str | None = attrs.field(default=None, validator=checks.optional(_check_alias))
    """The alias of the model; required, unless `models` lists several."""
    models: tuple[str, ...] = attrs.field(default=(), converter=checks.as_names, validator=_check_models)
    """Aliases of several models in place of `model`: the next one is called where a model cannot be reached, fails
    twice or is rate-limited for long, and where its answers do not fit after `max_repairs`."""
    parameters: Mapping[str, Any] = attrs.field(factory=dict, validator=check_own_parameters)
    """Inference parameters that override those of the model."""

    def aliases(self) -> tuple[str, ...]:
        """The aliases of its models, in the order in which they are called."""
        return self.models or (() if self.model is None else (self.model,))

    async def ask_models(
        self, environment: Environment, context: CellContext, domain: str, ask: Callable[[str], Awaitable[T]]
    ) -> T:
        """The result of `ask(alias)` for the first of its models that is available and gives one."""
        aliases = self.aliases()
        if len(aliases) == 1:
            return await ask(aliases[0])
        tries = [(environment.model(alias).key(domain), partial(ask, alias)) for alias in aliases]
        return await context.first_available(tries)

    def texts(self) -> dict[str, Text]:
        written = [field for field in ("prompt", "system") if getattr(self, field, None) is not None]
        return {**super().texts(), **{field: self.template(field) for field in written}}

    def template(self, field: str) -> Template:
        """The compiled template of a field that is set."""
        return compile_template(getattr(self, field), where=f"column {self.name!r}, {field}")

    def throttle_options(self, environment: Environment, domain: str) -> dict[str, Any]:
        """The throttle keys of its calls, and the limit of its alias if aliases with other limits share the key."""
        keys = [environment.model(alias, self.error_prefix).key(domain) for alias in self.aliases()]
        options = throttle_options(environment, self.aliases()[0], domain)
        if others := tuple(dict.fromkeys(key for key in keys if key != keys[0])):
            options |= {"fallback_keys": others, "other_keys": others}
        return options


def throttle_options(environment: Environment, alias: str, domain: str) -> dict[str, Any]:
    """The throttle key of the calls of an alias, and its limit if aliases with other limits share the key."""
    model = environment.model(alias)
    key = model.key(domain)
    limits = {other.max_parallel_requests for other in environment.models.values() if other.key(domain) == key}
    if len(limits) == 1:
        return {"key": key}
    # The limit of the throttle is the largest of them.
    return {"key": key, "lane": f"{alias} {domain}", "lane_limit": model.max_parallel_requests}


@attrs.frozen(kw_only=True)
class ChatSpec(ModelColumnSpec):
    """The fields of all columns of a chat model; prompts are Jinja2 templates over other columns."""

    system: str | None = attrs.field(default=None, validator=checks.optional(check_prompt))
    """The system prompt, a template."""
    images: tuple[str, ...] = attrs.field(default=(), converter=checks.as_names, validator=checks.names)
    """Columns that hold pictures to send with the prompt: bytes, a data URL, or the path of a file."""
    max_repairs: int = attrs.field(default=2, validator=checks.whole(0), metadata=NOT_IN_FINGERPRINT)
    """How often the model is asked to correct an answer that does not fit, before the cell fails."""
    trace: bool = attrs.field(default=False, validator=checks.flag)
    """Also store the conversation, in the column `NAME__trace`."""
    reasoning: bool = attrs.field(default=False, validator=checks.flag)
    """Also store the reasoning of the model, in the column `NAME__reasoning_content`."""
    dedupe: bool = attrs.field(default=False, validator=checks.flag)
    """Send equal requests once, unless the temperature is above 0."""
    n: int = attrs.field(default=1, validator=checks.whole(1))
    """How many answers a cell has, one call after the other; from 2 on the column is a list of them."""
    tools: Annotated[tuple[ToolSource, ...], "a list of functions and MCP servers"] = attrs.field(
        default=(), converter=as_tools, validator=check_tools_field
    )
    """Functions and MCP servers that the model may call before it answers."""
    max_tool_turns: int = attrs.field(default=8, validator=checks.whole(1), metadata=NOT_IN_FINGERPRINT)
    """How often the model may call tools for one answer; each time it may call several."""

    def __attrs_post_init__(self) -> None:
        if self.dedupe and (self.n > 1 or self.tools):
            other = "tools, whose results may differ" if self.tools else "n, which asks for different answers"
            raise ConfigError(f"{self.error_prefix}dedupe cannot be combined with {other}", field="dedupe")

    @property
    def is_list(self) -> bool:
        """True if a cell holds a list of answers."""
        return self.n > 1

    def tool_sources(self) -> Mapping[str, tuple[ToolSource, ...]]:
        return {"tools": self.tools}

    def repair_verifier(self, environment: Environment) -> Verifier | None:  # noqa: ARG002
        """How its answers are judged beyond their form; None if they are not."""
        return None


@attrs.frozen(kw_only=True)
class RepairedSpec(ChatSpec):
    """The fields of chat columns whose answers a validation can judge."""

    repair_with: Annotated[str | Mapping[str, Any] | None, "the name of a column, or a mapping"] = attrs.field(
        default=None, validator=checks.optional(_check_repair_with)
    )
    """A validation column of this column, or a mapping such as `{kind: python}`: its errors go back to the model."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.n > 1 and isinstance(self.repair_with, str):
            raise ConfigError(
                f"{self.error_prefix}with n: {self.n} the column {self.repair_with!r} would validate a list; give "
                "repair_with a mapping, such as {kind: python}",
                field="repair_with",
            )

    def repair_verifier(self, environment: Environment) -> Verifier | None:
        if self.repair_with is None:
            return None
        prefix = f"{self.error_prefix}repair_with: "
        if not isinstance(self.repair_with, str):
            validation: ColumnSpec | None = _inline_validation(self, self.repair_with)
        elif self.repair_with in environment.columns:
            validation = environment.columns[self.repair_with]
        else:
            raise ConfigError(
                f"{prefix}unknown column {self.repair_with!r}{nearest(self.repair_with, environment.columns)}"
            )
        if validation is None:  # reported where it is created
            return None
        try:
            return validation.verifier(environment, self.name)
        except ConfigError as error:
            raise ConfigError(f"{prefix}{str(error).removeprefix(self.error_prefix)}") from error


def as_text(value: Any) -> str:
    """A cell's value in a prompt."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


Read = Callable[[str], Any]
"""From the text of an answer to the value of the cell. Raises `BadOutput` with what is wrong."""
Ask = Callable[[Mapping[str, Any]], "str | list[str] | None"]
"""From the values of a row to the prompt, or to a list of prompts for a cell that is a list of answers; None for a cell
that is null without a call."""
# A longer answer is read in a thread: validating 100 kB may take 50 ms.
_LONG = 20_000
_SHOWN = 1_000


@attrs.frozen(kw_only=True)
class _Reader:
    """Reads the answers of a column, and has their values judged if there is a verifier."""

    column: str
    read: Read
    verifier: Verifier | None

    async def read_answer(
        self, context: CellContext, text: str, row: Mapping[str, Any]
    ) -> tuple[Any, None] | tuple[None, str]:
        """The value in the text of an answer, or what is wrong with it."""
        try:
            value = self.read(text) if len(text) <= _LONG else await finish_in_thread(partial(self.read, text))
        except BadOutput as misfit:
            return None, str(misfit)
        if self.verifier is None:
            return value, None
        error = await self.verifier.find_error(context, {**row, self.column: value})
        return (value, None) if error is None else (None, f"it is not valid: {error}")


# The calls of tools in a cell that has none.
NO_TOOLS: Counter[tuple[str, str]] = Counter()


@attrs.frozen(kw_only=True)
class _Answered:
    """An answer that fits: its value, its reasoning, and the conversation that led to it."""

    value: Any
    reasoning: str | None
    messages: list[Message]


@attrs.frozen(kw_only=True)
class _Asker:
    """Asks the models of a column until an answer fits."""

    spec: ChatSpec
    where: str
    environment: Environment
    reader: _Reader
    box: ToolBox
    dedupe: Dedupe | None
    expected: str
    schema: Mapping[str, Any] | None

    async def ask(
        self,
        context: CellContext,
        opening: Sequence[Message],
        prompts: Iterable[str],
        pictures: tuple[Image, ...],
        row: Mapping[str, Any],
    ) -> list[_Answered]:
        """The answers of a cell to one prompt or to several, each after the same opening."""
        counts = Counter[tuple[str, str]]() if self.box else NO_TOOLS
        bound: dict[str, Model] = {}

        async def ask_model(messages: Sequence[Message], alias: str) -> _Answered:
            if alias not in bound:
                bound[alias] = self.environment.bind(context, alias, self.dedupe)
            if not self.box:
                return await self.ask_once(context, bound[alias], [*messages], row, counts)
            # Calls of tools are counted anew for another model: it gets the results of those that have run already.
            own = counts.copy()
            answered = await self.ask_once(context, bound[alias], [*messages], row, own)
            counts.update(own - counts)
            return answered

        # One after the other: a cell has one permit at a time, and other cells use the rest.
        asked = ((*opening, Message(role="user", content=prompt, images=pictures)) for prompt in prompts)
        asking = (partial(ask_model, each) for each in asked)
        return [await self.spec.ask_models(self.environment, context, "chat", each) for each in asking]

    async def ask_once(
        self,
        context: CellContext,
        model: Model,
        messages: list[Message],
        row: Mapping[str, Any],
        counts: Counter[tuple[str, str]],
    ) -> _Answered:
        """The first answer of a model that fits; `counts` counts the calls of tools in a cell, if there are tools."""
        spec, where = self.spec, self.where
        for repairs in range(spec.max_repairs + 1):
            if counts is not NO_TOOLS:
                answer = await self.box.complete(
                    context,
                    model,
                    messages,
                    schema=self.schema,
                    parameters=spec.parameters,
                    counts=counts,
                    max_turns=spec.max_tool_turns,
                )
            else:
                answer = await model.complete(messages, schema=self.schema, **spec.parameters)
            thoughts, text = split_thoughts(answer.text)
            if not text.strip():
                raise Retryable(f"{where}: model {model.alias!r} returned an empty answer", code="empty_answer")
            value, problem = await self.reader.read_answer(context, text, row)
            if problem is None:
                break
            if answer.finish_reason == "length":
                problem = f"it was cut off at its token limit ({problem})"
            if repairs == spec.max_repairs:
                after = f" after {repairs} repair{'' if repairs == 1 else 's'}" if repairs else ""
                shown = text if len(text) <= 200 else f"{text[:200]}…"
                raise BadOutput(f"{where}: the answer does not fit{after}: {problem[:_SHOWN]}; it was {shown!r}")
            correction = f"{problem}\nAnswer again with {self.expected}, and with nothing else."
            messages += (
                Message(role="assistant", content=text),
                Message(role="user", content=f"That answer cannot be used: {correction}"),
            )
            # Only first requests are shared: a cell that waits for the repair of another would still hold its own
            # permit, and the other may wait for that permit.
            if self.dedupe is not None and repairs == 0:
                model = self.environment.bind(context, model.alias)
        context.answered_by(model.alias)
        messages.append(Message(role="assistant", content=text))
        return _Answered(value=value, reasoning=answer.reasoning or thoughts, messages=messages)


def chat_column(
    spec: ChatSpec,
    environment: Environment,
    *,
    ask: Ask,
    read: Read,
    expected: str,
    requires: tuple[str, ...],
    dtype: object,
    schema: Mapping[str, Any] | None = None,
) -> Column:
    """A column whose cells are conversations, each until an answer fits.

    `requires` are the columns that `ask` reads, `expected` describes an answer that fits, and `dtype` is the type of
    one answer.
    """
    where = f"column {spec.name!r}"
    system = None if spec.system is None else spec.template("system")
    model_spec, *other_specs = (environment.model(alias, spec.error_prefix) for alias in spec.aliases())
    verifier = spec.repair_verifier(environment)
    # The answers of a simulation are placeholders, which no validation would accept.
    reader = _Reader(column=spec.name, read=read, verifier=None if environment.is_simulated else verifier)
    parameters = {**model_spec.parameters, **spec.parameters}
    # With a temperature that is random, or not 0, equal prompts should have different answers.
    temperatures = [{**each.parameters, **spec.parameters}.get("temperature") for each in (model_spec, *other_specs)]
    is_random = any(is_distribution(each) or each for each in temperatures)
    dedupe = Dedupe() if spec.dedupe and not is_random else None
    if spec.images:
        environment.path("", f"{where}, images")  # relative paths of pictures start there
    box = ToolBox(spec.tools, environment, f"{where}, tools")
    asker = _Asker(
        spec=spec,
        where=where,
        environment=environment,
        reader=reader,
        box=box,
        dedupe=dedupe,
        expected=expected,
        schema=schema,
    )
    is_single, has_tools, alias = not (spec.is_list or other_specs), bool(box), spec.aliases()[0]
    trace_name, reasoning_name = f"{spec.name}__trace", f"{spec.name}__reasoning_content"
    side_effects: dict[str, Any] = {trace_name: messages_dtype(with_tools=bool(box))} if spec.trace else {}
    side_effects |= {reasoning_name: pl.String} if spec.reasoning else {}

    async def fill(context_: CellContext, /, **values: Any) -> Any:
        prompts = ask(values)
        if prompts is None:
            return {spec.name: None} if side_effects else None
        if isinstance(prompts, str):
            prompts = [prompts] * spec.n
        for prompt in prompts:
            if not prompt.strip() and not spec.images:
                raise Permanent(f"{where}: its prompt is empty", code="empty_prompt")
        messages = [] if system is None else [Message(role="system", content=system.render(values))]
        pictures: list[Image] = []
        for name in spec.images:
            pictures += await _load_pictures(values[name], environment, f"{where}, images: {name!r}")
        if is_single:  # nearly all columns: no coroutine and no closure in between (overhead benchmark)
            messages.append(Message(role="user", content=prompts[0], images=tuple(pictures)))
            counts = Counter[tuple[str, str]]() if has_tools else NO_TOOLS
            model = environment.bind(context_, alias, dedupe)
            answer = await asker.ask_once(context_, model, messages, values, counts)
            if not side_effects:
                return answer.value
            answers = [answer]
        else:
            answers = await asker.ask(context_, messages, prompts, tuple(pictures), values)
        cell: dict[str, Any] = {spec.name: [answer.value for answer in answers]}
        if spec.trace:
            cell[trace_name] = [chat_format(answer.messages, with_tools=bool(box)) for answer in answers]
        if spec.reasoning:
            cell[reasoning_name] = [answer.reasoning for answer in answers]
        if not spec.is_list:
            cell = {name: value for name, (value,) in cell.items()}
        return cell if side_effects else cell[spec.name]

    limits = (parameters.get(name) for name in ("max_tokens", "max_completion_tokens"))
    # Without pictures, tools and other cells' answers a cell first waits for a call, and after one that failed it ends.
    is_simple = not (spec.images or spec.dedupe or box or other_specs)
    throttling = spec.throttle_options(environment, "chat")
    throttling["other_keys"] = (*throttling.get("other_keys", ()), *(verifier.keys if verifier is not None else ()))
    return Column(
        spec.name,
        fill,
        first_call_timeout=model_spec.timeout if isinstance(model_spec, HttpModel) and is_simple else None,
        requires=(
            *(*requires, *(system.requires if system else ()), *spec.images),
            *(verifier.requires if verifier is not None else ()),
        ),
        repaired_by=verifier.validation if verifier is not None else None,
        tokens=next((limit for limit in limits if isinstance(limit, int)), 0),
        side_effects=tuple(side_effects),
        dtype=_listed(spec, ({} if dtype is None else {spec.name: dtype}) | side_effects) or None,
        **throttling,
    )


def _listed(spec: ChatSpec, dtypes: dict[str, Any]) -> dict[str, Any]:
    """The types of a column's outputs from those of one answer; a column of JSON holds lists as well."""
    return (
        dtypes
        if not spec.is_list
        else {name: each if is_json(each) else pl.List(each) for name, each in dtypes.items()}
    )


_DATA_URL = re.compile(r"data:(image/[\w.+-]+)(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
_REMOTE = ("http://", "https://", "ftp://", "s3://", "gs://")


async def _load_pictures(value: Any, environment: Environment, where: str) -> list[Image]:
    """The pictures of a cell: bytes, a data URL or a path, or a list of them; none for a null.

    Only files that are pictures by their first bytes are sent. Raises `Permanent`; nothing is fetched from a network.
    """
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [image for each in value for image in await _load_pictures(each, environment, where)]
    if isinstance(value, str | Path):
        text = str(value)
        if text[:5].lower() == "data:":
            return [_from_data_url(text, where)]
        if text.lower().startswith(_REMOTE):
            raise Permanent(f"{where}: {text[:200]!r} is not fetched; pictures are bytes, data URLs or local paths")
        value = await finish_in_thread(partial(_read, text, environment, where))
    if not isinstance(value, bytes):
        raise Permanent(f"{where}: a picture is bytes, a data URL or a path, not a value of {type(value).__name__}")
    media_type = media_type_of(value)
    if media_type == "image/png" and not value.startswith(b"\x89PNG"):  # the fallback of `media_type_of`
        raise Permanent(f"{where}: {len(value)} bytes that are not a PNG, JPEG, GIF or WebP picture")
    return [Image(data=value, media_type=media_type)]


def _from_data_url(text: str, where: str) -> Image:
    found = _DATA_URL.match(text)
    if found is None:
        raise Permanent(f"{where}: {text[:40]!r} is not a data URL of a picture in base64")
    try:
        return Image(data=base64.b64decode(text[found.end() :], validate=True), media_type=found.group(1).lower())
    except (binascii.Error, ValueError) as error:
        raise Permanent(f"{where}: the data URL is not base64: {error}") from error


def _read(text: str, environment: Environment, where: str) -> bytes:
    """The content of a file: a relative path starts at the dataset's directory or where the recipe's paths do."""
    # A model may have written the path, so it is checked like a path of the recipe; the dataset may be read too.
    own = () if environment.artifacts is None else (environment.artifacts,)
    access = environment.access and environment.access.granting(own)
    try:
        for folder in (*own, environment.base):
            path: Path = folder / text
            if access is not None:
                access.check_path(path, where)
            if path.is_file():
                return path.read_bytes()
    except ConfigError as error:
        raise Permanent(str(error)) from error
    except (OSError, ValueError) as error:
        raise Permanent(f"{where}: {text[:200]!r} cannot be read: {error}") from error
    raise Permanent(f"{where}: missing file {text[:200]!r}")
