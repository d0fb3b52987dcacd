"""What all columns of a chat model share: fields, the model, the conversation until an answer fits, images, parsing."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import polars as pl

from .. import checks
from ..errors import BadOutput, ConfigError, Permanent, Retryable
from ..models.base import NOT_IN_FINGERPRINT, Dedupe, Image, Message
from ..models.distributions import check_distribution, is_distribution
from ..models.openai import media_type_of
from ..runtime.threads import finish_in_thread
from .base import Column
from .spec import ColumnSpec, Environment
from .templates import Template, compile_template

if TYPE_CHECKING:
    from ..models.base import ModelSpec
    from .base import CellContext, Model
    from .spec import Access


# Arguments of a call that are fields of the column.
_RESERVED = frozenset({"images", "input", "messages", "model", "prompt", "schema", "stream", "system"})
check_alias = checks.expect("the alias of a model", lambda value: isinstance(value, str) and bool(value))
_check_text = checks.expect("text", lambda value: isinstance(value, str) and bool(value.strip()))


@checks.field_check
def check_prompt(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Reject anything but a template."""
    _check_text(spec, attribute, value)
    compile_template(value, where=f"column {spec.name!r}, {attribute.name}")


@checks.field_check
def check_parameters(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Reject anything but a mapping of inference parameters that are not fields of the column."""
    checks.mapping(spec, attribute, value)
    for name, each in value.items():
        if name in _RESERVED:
            raise ConfigError(
                f"{spec.error_prefix}{attribute.name} cannot have {name!r}, which is a field of the column"
            )
        try:
            check_distribution(f"{attribute.name}.{name}", each)
        except ConfigError as error:
            raise ConfigError(f"{spec.error_prefix}{error}") from None


@attrs.frozen
class ChatSpec(ColumnSpec):
    """The fields of all columns of a chat model.

    `prompt` and `system` are Jinja2 templates over other columns. `images` names columns that hold pictures: bytes, a
    data URL, or the path of a file. `parameters` are inference parameters that override those of the model.

    The model is asked to correct an answer that does not fit up to `max_repairs` times; then the cell fails. `trace`
    stores the conversation in the column `<name>__trace`, `reasoning` the model's reasoning in
    `<name>__reasoning_content`. With `dedupe` equal requests are sent once, unless the temperature is above 0.
    """

    model: str = attrs.field(kw_only=True, validator=check_alias)
    system: str | None = attrs.field(default=None, kw_only=True, validator=checks.optional(check_prompt))
    images: tuple[str, ...] = attrs.field(default=(), kw_only=True, converter=checks.as_names, validator=checks.names)
    parameters: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, validator=check_parameters)
    max_repairs: int = attrs.field(default=2, kw_only=True, validator=checks.whole(0), metadata=NOT_IN_FINGERPRINT)
    trace: bool = attrs.field(default=False, kw_only=True, validator=checks.flag)
    reasoning: bool = attrs.field(default=False, kw_only=True, validator=checks.flag)
    dedupe: bool = attrs.field(default=False, kw_only=True, validator=checks.flag)

    def template(self, field: str) -> Template | None:
        """The compiled template of a field; None if it is not set."""
        text = getattr(self, field)
        return None if text is None else compile_template(text, where=f"column {self.name!r}, {field}")

    def prompt_template(self) -> Template:
        """The compiled prompt of a spec that always has one."""
        template = self.template("prompt")
        assert template is not None
        return template

    @property
    def trace_name(self) -> str:
        return f"{self.name}__trace"

    @property
    def reasoning_name(self) -> str:
        return f"{self.name}__reasoning_content"

    @property
    def side_effects(self) -> tuple[str, ...]:
        """The columns that it fills besides its own."""
        fields = ((self.trace, self.trace_name), (self.reasoning, self.reasoning_name))
        return tuple(name for is_set, name in fields if is_set)


def as_text(value: Any) -> str:
    """A cell's value in a prompt."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def find_model(spec: ColumnSpec, environment: Environment) -> ModelSpec:
    """The model of a column's alias."""
    (alias,) = spec.aliases()
    try:
        return environment.model(alias)
    except ConfigError as error:
        raise ConfigError(f"{spec.error_prefix}{error}") from None


def model_options(spec: ColumnSpec, environment: Environment, domain: str) -> dict[str, Any]:
    """The throttle key of a column's calls, and the limit of its alias if aliases with other limits share the key."""
    model = find_model(spec, environment)
    key = model.key(domain)
    limits = {other.max_parallel_requests for other in environment.models.values() if other.key(domain) == key}
    if len(limits) == 1:
        return {"key": key}
    # The limit of the throttle is the largest of them.
    return {"key": key, "lane": f"{spec.aliases()[0]} {domain}", "lane_limit": model.max_parallel_requests}


def model_binder(spec: ColumnSpec, environment: Environment) -> Bind:
    """What binds the column's model to a cell whose function awaits nothing after a chat that failed."""
    (alias,) = spec.aliases()
    model, client, seed = find_model(spec, environment), environment.client, environment.seed
    return lambda context, dedupe=None: context.bind_model(
        alias, model, client(alias), seed=seed, dedupe=dedupe, ends_at_failure=True
    )


Bind = Callable[..., "Model"]
"""From the context of a cell, and optionally a `Dedupe`, to the model of the column."""
Read = Callable[[str], Any]
"""From the text of an answer to the value of the cell. Raises `BadOutput` with what is wrong."""
Ask = Callable[[Mapping[str, Any]], "str | None"]
"""From the values of a row to the prompt; None for a cell that is null without a call."""
TRACE = pl.List(pl.Struct({"role": pl.String, "text": pl.String}))
# A longer answer is read in a thread: validating 100 kB may take 50 ms.
_LONG = 20_000
_SHOWN = 1_000


def chat_column(
    spec: ChatSpec,
    environment: Environment,
    *,
    requires: tuple[str, ...],
    ask: Ask,
    read: Read,
    expected: str,
    dtype: Any,
    schema: Mapping[str, Any] | None = None,
) -> Column:
    """A column whose cells are conversations; `expected` describes an answer that fits."""
    parameters = {**find_model(spec, environment).parameters, **spec.parameters}
    system = spec.template("system")
    needed = (*requires, *(system.requires if system else ()), *spec.images)
    limits = (parameters.get(name) for name in ("max_tokens", "max_completion_tokens"))
    if spec.images:
        environment.path("", f"column {spec.name!r}, images")  # relative paths of pictures start there
    places = tuple(place for place in (environment.artifacts, environment.base) if place is not None)
    dtypes = {} if dtype is None else {spec.name: dtype}
    if spec.trace:
        dtypes[spec.trace_name] = TRACE
    if spec.reasoning:
        dtypes[spec.reasoning_name] = pl.String
    conversation = _Conversation(
        spec=spec,
        bind=model_binder(spec, environment),
        ask=ask,
        system=system,
        read=read,
        expected=expected,
        schema=schema,
        side_effects=spec.side_effects,
        dedupe=Dedupe() if spec.dedupe and not _is_varied(parameters) else None,
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


def _is_varied(parameters: Mapping[str, Any]) -> bool:
    """True if equal prompts should have different answers: the temperature is random, or not 0."""
    temperature = parameters.get("temperature")
    return is_distribution(temperature) or bool(temperature)


@attrs.frozen(kw_only=True, eq=False)
class _Conversation:
    """How one column calls its model; it holds no state of a cell."""

    spec: ChatSpec
    bind: Bind
    ask: Ask
    system: Template | None
    read: Read
    expected: str
    schema: Mapping[str, Any] | None
    dedupe: Dedupe | None
    side_effects: tuple[str, ...]
    # Relative paths of pictures start at one of these.
    places: tuple[Path, ...]
    # What a recipe from a file may read of them; paths that a model wrote are not trusted either.
    access: Access | None

    async def agenerate(self, context_: CellContext, /, **values: Any) -> Any:
        """Fill one cell."""
        spec = self.spec
        prompt = self.ask(values)
        if prompt is None:
            return {spec.name: None} if self.side_effects else None
        if not prompt.strip() and not spec.images:
            raise Permanent(f"column {spec.name!r}: its prompt is empty")
        images = await self._images(values) if spec.images else ()
        messages = [Message(role="user", text=prompt, images=images)]
        if self.system is not None:
            messages.insert(0, Message(role="system", text=self.system.render(values)))
        model = self.bind(context_, self.dedupe)
        for repairs in range(spec.max_repairs + 1):
            answer = await model.complete(messages, schema=self.schema, **spec.parameters)
            thoughts, text = split_thoughts(answer.text)
            if not text.strip():
                raise Retryable(f"column {spec.name!r}: model {spec.model!r} returned an empty answer")
            try:
                value = self.read(text) if len(text) <= _LONG else await finish_in_thread(partial(self.read, text))
            except BadOutput as misfit:
                problem = str(misfit)
                if answer.finish_reason == "length":
                    problem = f"it was cut off at its token limit ({problem})"
                if repairs == spec.max_repairs:
                    raise BadOutput(self._failure(problem, text)) from None
                messages += (
                    Message(role="assistant", text=text),
                    Message(role="user", text=self._correction(problem)),
                )
                # Only first requests are shared: a cell that waits for the repair of another would still hold its
                # own permit, and the other may wait for that permit.
                if self.dedupe is not None and repairs == 0:
                    model = self.bind(context_)
            else:
                break
        if not self.side_effects:
            return value
        cell: dict[str, Any] = {spec.name: value}
        if spec.trace:
            turns = [{"role": message.role, "text": message.text} for message in messages]
            cell[spec.trace_name] = [*turns, {"role": "assistant", "text": text}]
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
        return f"That answer cannot be used: {problem}\nAnswer again with {self.expected}, and with nothing else."

    def _failure(self, problem: str, text: str) -> str:
        spec = self.spec
        count = spec.max_repairs
        after = f" after {count} repair{'' if count == 1 else 's'}" if count else ""
        shown = text if len(text) <= 200 else f"{text[:200]}…"
        return f"column {spec.name!r}: the answer does not fit{after}: {problem[:_SHOWN]}; it was {shown!r}"


_DATA_URL = re.compile(r"data:(image/[\w.+-]+)(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
_REMOTE = ("http://", "https://", "ftp://", "s3://", "gs://")


async def load_pictures(
    value: Any, *, places: Sequence[Path], where: str, access: Access | None = None
) -> tuple[Image, ...]:
    """The pictures of a cell: bytes, a data URL or a path, or a list of them; none for a null.

    A relative path is looked up in each of `places`. Only files that are pictures by their first bytes, and that
    `access` allows, are sent. Raises `Permanent`; nothing is fetched from a network.
    """
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        found = [await load_pictures(each, places=places, where=where, access=access) for each in value]
        return tuple(image for images in found for image in images)
    if isinstance(value, bytes):
        return (_picture(value, where),)
    if not isinstance(value, str | Path):
        raise Permanent(f"{where}: a picture is bytes, a data URL or a path, not a value of {type(value).__name__}")
    text = str(value)
    if text[:5].lower() == "data:":
        return (_from_data_url(text, where),)
    if text.lower().startswith(_REMOTE):
        raise Permanent(f"{where}: {text[:200]!r} is not fetched; pictures are bytes, data URLs or local paths")
    return (_picture(await finish_in_thread(partial(_read, text, places, where, access)), where),)


def _read(text: str, places: Sequence[Path], where: str, access: Access | None) -> bytes:
    try:
        for place in places:
            path = place / text
            if access is not None:
                access.check_path(path, where)
            if path.is_file():
                return path.read_bytes()
    except ConfigError as error:
        raise Permanent(str(error)) from error
    except (OSError, ValueError) as error:
        raise Permanent(f"{where}: {text[:200]!r} cannot be read: {error}") from error
    raise Permanent(f"{where}: missing file {text[:200]!r}")


def _from_data_url(text: str, where: str) -> Image:
    found = _DATA_URL.match(text)
    if found is None:
        raise Permanent(f"{where}: {text[:40]!r} is not a data URL of a picture in base64")
    try:
        data = base64.b64decode(text[found.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise Permanent(f"{where}: the data URL is not base64: {error}") from error
    return Image(data=data, media_type=found.group(1).lower())


def _picture(data: bytes, where: str) -> Image:
    media_type = media_type_of(data)
    if media_type == "image/png" and not data.startswith(b"\x89PNG"):  # the fallback of `media_type_of`
        raise Permanent(f"{where}: {len(data)} bytes that are not a PNG, JPEG, GIF or WebP picture")
    return Image(data=data, media_type=media_type)


# A fence opens with three or more backticks or tildes and closes with as many of the same.
_FENCE = re.compile(
    r"^[ \t]*(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.:-]*)[^\n]*\n"
    r"(?P<code>.*?)(?:^[ \t]*(?P=mark)[ \t]*$|(?P<open>\Z))",
    re.DOTALL | re.MULTILINE,
)
_THOUGHTS = re.compile(r"\s*<think(?:ing)?>(.*?)(?:</think(?:ing)?>|\Z)", re.DOTALL)
_OPENING = re.compile(r"[{\[]")
_BEGINS_JSON = re.compile(r"\{\s*\"|\[\s*[\[{\"\d-]")
_JSON = ("", "json", "jsonc")
# Brackets of one text that are tried: each try may read to the end.
_MAX_TRIES = 200
_ALIASES = (
    frozenset({"python", "python3", "py"}),
    frozenset({"javascript", "js", "jsx", "node"}),
    frozenset({"typescript", "ts", "tsx"}),
    frozenset({"bash", "sh", "shell", "zsh"}),
    frozenset({"c++", "cpp", "cxx"}),
    frozenset({"c#", "csharp", "cs"}),
    frozenset({"yaml", "yml"}),
    frozenset({"rust", "rs"}),
    frozenset({"go", "golang"}),
    frozenset({"ruby", "rb"}),
    frozenset({"markdown", "md"}),
    frozenset({"sql", "postgresql", "postgres", "sqlite", "mysql", "tsql", "plsql", "bigquery", "snowflake", "duckdb"}),
)


@attrs.frozen
class Block:
    """The content of a fence."""

    language: str
    code: str
    is_closed: bool


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a text, in order; the last may lack its closing fence."""
    return [
        Block(found["language"].lower(), found["code"].rstrip("\n"), found["open"] is None)
        for found in _FENCE.finditer(text)
    ]


def split_thoughts(text: str) -> tuple[str | None, str]:
    """The reasoning before an answer, if the server did not remove it, and the answer.

    With reasoning that never ends the answer is empty.
    """
    found = _THOUGHTS.match(text)
    return (None, text) if found is None else (found.group(1).strip(), text[found.end() :])


def extract_json(text: str) -> Any:
    """The JSON value of an answer: all of it, in a fence, or within prose."""
    text = text.strip()
    fenced = [block.code for block in blocks(text) if block.language in _JSON]
    for candidate in (text, *fenced):
        try:
            return _loads(candidate)
        except ValueError as error:
            problem = str(error)
    if not fenced:
        try:
            return _from_prose(text)
        except ValueError as error:
            problem = str(error)
    raise BadOutput(f"it is not JSON: {problem}")


def _loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _from_prose(text: str) -> Any:
    """The largest value that starts with a bracket; an object goes before a list, as `[1]` may be a footnote.

    Raises for a value that is broken: a part of it is not what the model meant.
    """
    found: list[tuple[bool, int, Any]] = []
    position = 0
    for _ in range(_MAX_TRIES):
        opening = _OPENING.search(text, position)
        if opening is None:
            break
        try:
            value, end = _DECODER.raw_decode(text, opening.start())
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ValueError:
            if _BEGINS_JSON.match(text, opening.start()):
                raise
            position = opening.end()
        else:
            found.append((isinstance(value, dict), end - opening.start(), value))
            position = end
    if not found:
        raise ValueError("it contains no JSON value")
    return max(found, key=lambda each: each[:2])[2]


def extract_code(text: str, language: str) -> str | None:
    """The code of a language in an answer: its longest fenced block, or that of a fence that names no language.

    None if there is no fence: then all of the text may be code. Raises `BadOutput` for a fence that is not closed and
    if all fences have other languages.
    """
    found = blocks(text)
    if not found:
        return None
    same = _same(language)
    fitting = [block for block in found if block.language.partition(":")[0] in same]
    fitting = fitting or [block for block in found if not block.language]
    if not fitting:
        others = ", ".join(dict.fromkeys(block.language for block in found))
        raise BadOutput(f"it has no code block of {language}, only of {others}")
    chosen = max(fitting, key=lambda block: len(block.code))
    if not chosen.is_closed:
        raise BadOutput("its code block is not closed: the answer is not complete")
    if not chosen.code.strip():
        raise BadOutput("its code block is empty")
    return chosen.code


def _same(language: str) -> frozenset[str]:
    language = language.lower()
    return next((names for names in _ALIASES if language in names), frozenset({language}))
