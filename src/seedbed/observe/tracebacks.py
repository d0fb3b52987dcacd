"""Where in a user's own code an exception was raised: what reports, messages and logs show of its traceback."""

from __future__ import annotations

import os
import sysconfig
import traceback
from typing import TYPE_CHECKING

from ..errors import SeedbedError

if TYPE_CHECKING:
    from types import TracebackType

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120  compared as text
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_INSTALLED = f"{os.sep}site-packages{os.sep}"


def _is_users(found: TracebackType) -> bool:
    file = found.tb_frame.f_code.co_filename
    is_library = file.startswith((_OWN, *_LIBRARIES, "<frozen ")) or _INSTALLED in file
    return not is_library and file != "<template>"  # of Jinja2


def _users_part(error: BaseException) -> list[TracebackType]:
    """The traceback from the first line of a user's code on; empty if there is none, or if the error is one of ours."""
    if isinstance(error, SeedbedError):  # its message says what is wrong
        return []
    part: list[TracebackType] = []
    found = error.__traceback__
    while found is not None:
        if part or _is_users(found):
            part.append(found)
        found = found.tb_next
    return part


def code_place(error: BaseException) -> str:
    """File and line of the user's code that raised, such as "mine.py, line 12"; empty if no code of a user did."""
    part = [found for found in _users_part(error) if _is_users(found)]
    if not part:
        return ""
    return f"{os.path.basename(part[-1].tb_frame.f_code.co_filename)}, line {part[-1].tb_lineno}"  # noqa: PTH119


def user_traceback(error: BaseException) -> str:
    """The traceback without the frames of seedbed that called the user's code; empty if no code of a user raised."""
    part = _users_part(error)
    return "".join(traceback.format_exception(type(error), error, part[0])) if part else ""
