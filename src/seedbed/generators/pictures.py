"""Pictures that go with a prompt, out of the cells that name them."""

from __future__ import annotations

import base64
import binascii
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, Permanent
from ..models.base import Image
from ..models.openai import media_type_of
from ..runtime.offload import finish_in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..recipe.access import Access

_DATA_URL = re.compile(r"data:(image/[\w.+-]+)(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
_REMOTE = ("http://", "https://", "ftp://", "s3://", "gs://")


async def load_pictures(
    value: Any, *, places: Sequence[Path], where: str, access: Access | None = None
) -> tuple[Image, ...]:
    """The pictures of a cell: bytes, a data URL or a path, or a list of them; a null has none.

    A relative path is looked for in each of `places`. Only what is a picture by its first bytes is sent, whatever a
    path says, and only from where `access` allows. Raises `Permanent`; nothing is fetched from a network.
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
    raise Permanent(f"{where}: there is no file {text[:200]!r}")


def _from_data_url(text: str, where: str) -> Image:
    found = _DATA_URL.match(text)
    if found is None:
        raise Permanent(f"{where}: {text[:40]!r} is no data URL of a picture in base64")
    try:
        data = base64.b64decode(text[found.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise Permanent(f"{where}: the data URL is not base64: {error}") from error
    return Image(data=data, media_type=found.group(1).lower())


def _picture(data: bytes, where: str) -> Image:
    media_type = media_type_of(data)
    if media_type == "image/png" and not data.startswith(b"\x89PNG"):  # what it takes everything else for
        raise Permanent(f"{where}: {len(data)} bytes that are no PNG, JPEG, GIF or WebP picture")
    return Image(data=data, media_type=media_type)
