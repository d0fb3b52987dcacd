"""What a model generates from one prompt or value: text, code, vectors and images."""

from __future__ import annotations

import hashlib
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import attrs
import polars as pl

from .. import checks
from ..errors import BadOutput, ConfigError
from ..runtime.threads import finish_in_thread
from ..store.files import PRIVATE, write_file
from .base import CellContext, Column
from .chat import (
    ChatSpec,
    as_text,
    chat_column,
    check_alias,
    check_parameters,
    check_prompt,
    extract_code,
    model_binder,
    model_options,
)
from .spec import ColumnSpec, Environment
from .templates import Template, compile_template
from .validation import python_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..models.base import Image as Picture


@attrs.frozen
class _TextSpec(ChatSpec):
    """A prompt that is answered with text."""

    prompt: str = attrs.field(kw_only=True, validator=check_prompt)

    def __attrs_post_init__(self) -> None:
        if self.dtype not in (None, str, pl.String):
            raise ConfigError(
                f"column {self.name!r} holds text and cannot have type {self.dtype!r}; use llm-structured for others"
            )


@attrs.frozen
class LLMText(_TextSpec):
    """Text that a model writes, without the white space around it."""

    type: ClassVar[str] = "llm-text"

    def to_column(self, environment: Environment) -> Column:
        """A column of texts."""
        prompt = self.prompt_template()
        return chat_column(
            self,
            environment,
            requires=prompt.requires,
            ask=prompt.render,
            read=str.strip,
            expected="text",
            dtype=pl.String,
        )


_check_language = checks.expect(
    "the name of a language as in code fences, such as python",
    lambda value: isinstance(value, str) and re.fullmatch(r"[\w+#.-]+", value) is not None,
)


@attrs.frozen
class LLMCode(_TextSpec):
    """Code in one language that a model writes: the content of the fence in its answer.

    With `check` (the default) the model is asked to correct Python and JSON that cannot be parsed.
    """

    type: ClassVar[str] = "llm-code"

    language: str = attrs.field(kw_only=True, validator=_check_language)
    check: bool = attrs.field(default=True, kw_only=True, validator=checks.flag)

    def to_column(self, environment: Environment) -> Column:
        """A column of code."""
        prompt = self.prompt_template()
        expected = f"one fenced code block of {self.language}"
        problem_of = _CHECKERS.get(self.language.lower())

        def ask(values: Mapping[str, Any]) -> str:
            return f"{prompt.render(values)}\n\nAnswer with {expected}."

        def read(text: str) -> str:
            code = extract_code(text, self.language)
            if code is None:
                # Without a fence only a parser can distinguish code from prose.
                code = text.strip()
                if problem_of is None or problem_of(code) is not None:
                    raise BadOutput(f"it has no code block of {self.language}")
            elif self.check and problem_of is not None and (problem := problem_of(code)) is not None:
                raise BadOutput(f"its code is not valid {self.language}: {problem}")
            return code

        return chat_column(
            self,
            environment,
            requires=prompt.requires,
            ask=ask,
            read=read,
            expected=expected,
            dtype=pl.String,
        )


def _python_problem(code: str) -> str | None:
    return next((str(message) for message in python_messages(code)), None)


def _json_problem(code: str) -> str | None:
    try:
        json.loads(code)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


_CHECKERS: dict[str, Callable[[str], str | None]] = {
    **dict.fromkeys(("python", "python3", "py"), _python_problem),
    "json": _json_problem,
}


@attrs.frozen
class Embedding(ColumnSpec):
    """The vector of a column's text, or of the JSON of other values. A null stays null."""

    type: ClassVar[str] = "embedding"

    model: str = attrs.field(kw_only=True, validator=check_alias)
    of: str = attrs.field(kw_only=True, validator=checks.name)
    parameters: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, validator=check_parameters)

    def to_column(self, environment: Environment) -> Column:
        """A column of vectors, one call per cell."""
        return Column(
            self.name,
            _embedder(self, environment),
            requires=(self.of,),
            # Models compute in single precision.
            dtype=pl.List(pl.Float32) if self.dtype is None else self.dtype,
            **model_options(self, environment, "embedding"),
        )


@attrs.frozen
class Image(ColumnSpec):
    """A picture that a model generates from `prompt`, a Jinja2 template.

    It is written to the dataset's directory, and the cell holds its path relative to that. In a preview, which writes
    nothing, the cell holds its bytes.
    """

    type: ClassVar[str] = "image"

    model: str = attrs.field(kw_only=True, validator=check_alias)
    prompt: str = attrs.field(kw_only=True, validator=check_prompt)
    parameters: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, validator=check_parameters)

    def to_column(self, environment: Environment) -> Column:
        """A column of pictures: paths if there is a directory for them, else bytes."""
        prompt = compile_template(self.prompt, where=f"column {self.name!r}, prompt")
        dtype = pl.Binary if environment.artifacts is None else pl.String
        return Column(
            self.name,
            _painter(self, environment, prompt),
            requires=prompt.requires,
            dtype=dtype if self.dtype is None else self.dtype,
            **model_options(self, environment, "image"),
        )


def _embedder(spec: Embedding, environment: Environment) -> Callable[..., Any]:
    bind = model_binder(spec, environment)

    async def fill(context_: CellContext, /, **values: Any) -> list[float] | None:
        value = values[spec.of]
        if value is None:
            return None
        (vector,) = await bind(context_).embed([as_text(value)], **spec.parameters)
        return vector

    return fill


_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}


def _painter(spec: Image, environment: Environment, prompt: Template) -> Callable[..., Any]:
    artifacts, bind = environment.artifacts, model_binder(spec, environment)
    # Relative to the dataset, which may be moved; a column may have a name that no directory can have.
    folder = f"{PRIVATE}/images/{quote(spec.name, safe='').replace('.', '%2E')}"

    async def fill(context_: CellContext, /, **values: Any) -> bytes | str:
        picture = await bind(context_).image(prompt.render(values), **spec.parameters)
        if artifacts is None:
            return picture.data
        path = f"{folder}/{_file_name(picture, context_.row)}"
        await finish_in_thread(partial(write_file, artifacts, path, picture.data))
        return path

    return fill


def _file_name(picture: Picture, row: int | None) -> str:
    """The row and a hash: rows that a processor copied have one number, and may have different pictures."""
    content = hashlib.blake2b(picture.data, digest_size=6).hexdigest()
    return f"{row or 0:07d}_{content}.{_SUFFIXES.get(picture.media_type, 'img')}"
