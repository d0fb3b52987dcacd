"""Columns of vectors and pictures that a model makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from .llm import check_alias, check_parameters, check_prompt, wrong
from .spec import ColumnSpec

if TYPE_CHECKING:
    from collections.abc import Mapping


def _check_of(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not value:
        raise wrong(spec, attribute.name, "the name of a column", value)


@attrs.frozen
class Embedding(ColumnSpec):
    """The vector of a column's text; of values that are no text, the vector of their JSON. Null stays null."""

    type: ClassVar[str] = "embedding"

    model: str = attrs.field(kw_only=True, validator=check_alias)
    of: str = attrs.field(kw_only=True, validator=_check_of)
    parameters: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, validator=check_parameters)


@attrs.frozen
class Image(ColumnSpec):
    """A picture that a model makes of `prompt`, a Jinja2 template.

    It is written beside the dataset and the cell holds its path, relative to the dataset's directory. In a preview,
    which writes nothing, the cell holds its bytes.
    """

    type: ClassVar[str] = "image"

    model: str = attrs.field(kw_only=True, validator=check_alias)
    prompt: str = attrs.field(kw_only=True, validator=check_prompt)
    parameters: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, validator=check_parameters)
