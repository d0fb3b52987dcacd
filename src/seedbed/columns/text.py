"""Text, code, vectors and images that a model generates from one prompt or value."""

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
from .chat import ModelColumnSpec, RepairedSpec, as_text, chat_column, check_prompt
from .parse import extract_code
from .validation import python_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .spec import Environment


@attrs.frozen(kw_only=True)
class _TextSpec(RepairedSpec):
    """A prompt that is answered with text."""

    prompt: str = attrs.field(validator=check_prompt)
    """What is asked, a template over other columns."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.dtype is not None and (self.n > 1 or self.dtype not in (str, pl.String)):
            held = "text" if self.n == 1 else "a list of texts"
            raise ConfigError(
                f"column {self.name!r} holds {held} and cannot have type {self.dtype!r}; use llm-structured for others"
            )


@attrs.frozen(kw_only=True)
class LLMText(_TextSpec):
    """Text that a model writes, without the white space around it."""

    type: ClassVar[str] = "llm-text"

    def to_column(self, environment: Environment) -> Column:
        prompt = self.template("prompt")
        return chat_column(
            self,
            environment,
            ask=prompt.render,
            read=str.strip,
            expected="text",
            requires=prompt.requires,
            dtype=pl.String,
        )


_check_language = checks.expect(
    "the name of a language as in code fences, such as python",
    lambda value: isinstance(value, str) and re.fullmatch(r"[\w+#.-]+", value) is not None,
)


@attrs.frozen(kw_only=True)
class LLMCode(_TextSpec):
    """Code in one language that a model writes: the content of the fence in its answer."""

    type: ClassVar[str] = "llm-code"

    language: str = attrs.field(validator=_check_language)
    """The language, which the fence in the answer should name."""
    check: bool | None = attrs.field(default=None, validator=checks.optional(checks.flag))
    """Ask the model to correct code that cannot be parsed: by default Python and JSON; true is an error for others."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.check and self.language.lower() not in _CHECKERS:
            raise ConfigError(
                f"column {self.name!r}: check is true, but code in {self.language!r} cannot be checked, only in "
                f"{', '.join(_CHECKERS)}; remove check, and write a validation column if there is a kind for it",
                field="check",
            )

    def to_column(self, environment: Environment) -> Column:
        prompt = self.template("prompt")
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
            elif self.check is not False and problem_of is not None and (problem := problem_of(code)) is not None:
                raise BadOutput(f"its code is not valid {self.language}: {problem}")
            return code

        return chat_column(
            self,
            environment,
            ask=ask,
            read=read,
            expected=expected,
            requires=prompt.requires,
            dtype=pl.String,
        )


def _json_problem(code: str) -> str | None:
    try:
        json.loads(code)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


_CHECKERS: dict[str, Callable[[str], str | None]] = {
    **dict.fromkeys(("python", "python3", "py"), python_problem),
    "json": _json_problem,
}


@attrs.frozen(kw_only=True)
class Embedding(ModelColumnSpec):
    """The vector of a column's text, or of the JSON of other values. A null stays null."""

    type: ClassVar[str] = "embedding"

    of: str = attrs.field(validator=checks.name)
    """The column whose text is embedded; other values are embedded as JSON."""

    def to_column(self, environment: Environment) -> Column:
        async def fill(context_: CellContext, /, **values: Any) -> list[float] | None:
            value = values[self.of]
            if value is None:
                return None

            async def embed(alias: str) -> list[float]:
                (vector,) = await environment.bind(context_, alias).embed([as_text(value)], **self.parameters)
                return vector

            return await self.ask_models(environment, context_, "embedding", embed)

        return Column(
            self.name,
            fill,
            requires=self.of,
            dtype=pl.List(pl.Float32),  # models compute in single precision
            **self.throttle_options(environment, "embedding"),
        )


def image_folder(column: str) -> str:
    """The folder of a column's pictures, relative to the dataset, which may be moved."""
    # A column may have a name that no directory can have.
    return f"{PRIVATE}/images/{quote(column, safe='').replace('.', '%2E')}"


_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}


@attrs.frozen(kw_only=True)
class Image(ModelColumnSpec):
    """A picture that a model generates.

    It is written to `.seedbed/images/` of the dataset, and the cell holds its path relative to the dataset directory.
    In a preview, which writes nothing, the cell holds its bytes.
    """

    type: ClassVar[str] = "image"

    prompt: str = attrs.field(validator=check_prompt)
    """What the picture shows, a template over other columns."""

    def to_column(self, environment: Environment) -> Column:
        prompt, artifacts = self.template("prompt"), environment.artifacts
        folder = image_folder(self.name)

        async def fill(context_: CellContext, /, **values: Any) -> bytes | str:
            text = prompt.render(values)
            picture = await self.ask_models(
                environment,
                context_,
                "image",
                lambda alias: environment.bind(context_, alias).image(text, **self.parameters),
            )
            if artifacts is None:
                return picture.data
            # The row and a hash: rows that a processor copied have one number, and may have different pictures.
            content = hashlib.blake2b(picture.data, digest_size=6).hexdigest()
            path = f"{folder}/{context_.row or 0:07d}_{content}.{_SUFFIXES.get(picture.media_type, 'img')}"
            await finish_in_thread(partial(write_file, artifacts, path, picture.data))
            return path

        return Column(
            self.name,
            fill,
            requires=prompt.requires,
            dtype=pl.Binary if artifacts is None else pl.String,
            **self.throttle_options(environment, "image"),
        )
