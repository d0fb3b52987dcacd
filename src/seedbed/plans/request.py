"""What a plan is run for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from ..errors import InvalidRequest
from .documents import read_document
from .model import KeyType
from .problems import Code, Problems, shown, under

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .documents import Source
    from .model import Param, Registries

ParamValue = int | float | str | None

_MAX_USER_ID = 2**32 - 1
_DECIMAL = re.compile(r"0|[1-9][0-9]*")


@attrs.frozen(kw_only=True)
class Request:
    """A valid request. `param_overrides` are by param id, of their param's type; params not in it are null."""

    user_id: int
    request_id: str | None = None
    param_overrides: Mapping[int, ParamValue] = attrs.field(factory=dict)


def parse_request(data: Source, registries: Registries) -> Request:
    """Read a request, or raise one `InvalidRequest` with everything that is wrong with it."""
    problems = Problems()
    document = read_document(data, problems)
    request = None if problems.found else _request(document, registries, problems)
    if request is None or problems.found:
        raise InvalidRequest(problems.listing("the request is"))
    return request


def _request(document: object, registries: Registries, problems: Problems) -> Request | None:
    fields = problems.fields(document, "$", required=["user_id"], optional=["request_id", "param_overrides"])
    if fields is None:
        return None
    user_id = _user_id(fields["user_id"], problems) if "user_id" in fields else None
    request_id = problems.text(fields["request_id"], "$.request_id") if "request_id" in fields else None
    overrides: dict[int, ParamValue] = {}
    given = problems.entries(fields["param_overrides"], "$.param_overrides") if "param_overrides" in fields else None
    by_name = {param.name: param for param in registries.params.values()} if given else {}
    for name, value in (given or {}).items():
        path = under("$.param_overrides", name)
        param = by_name.get(name)
        if param is None:
            problems.add(Code.UNKNOWN_PARAM, path, f"no param is named {shown(name)}{problems.hint(name, by_name)}")
        else:
            overrides[param.id] = param_value(param, value, path, problems)
    if user_id is None:
        return None
    return Request(user_id=user_id, request_id=request_id, param_overrides=overrides)


def _user_id(value: object, problems: Problems) -> int | None:
    # Ten digits hold every allowed id, and Python would refuse to read thousands.
    if isinstance(value, str) and len(value) <= 10 and _DECIMAL.fullmatch(value):
        value = int(value)
    if isinstance(value, str):
        message = f"expected an integer from 0 to {_MAX_USER_ID} or its decimal string, found {shown(value)}"
        problems.add(Code.INVALID_VALUE, "$.user_id", message)
        return None
    return problems.integer(value, "$.user_id", low=0, high=_MAX_USER_ID)


def param_value(param: Param, value: object, path: str, problems: Problems) -> ParamValue:
    """A value for that param; None where it is null or has a problem."""
    if value is None:
        if not param.nullable:
            problems.add(Code.WRONG_TYPE, path, f"expected a {param.type.value}, found null")
        return None
    if param.type is KeyType.STRING:
        return problems.text(value, path)
    if param.type is KeyType.INT:
        return problems.integer(value, path)
    number = problems.number(value, path)
    return None if number is None else float(number)
