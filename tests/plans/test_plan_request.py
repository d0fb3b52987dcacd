from __future__ import annotations

import json
import re
from typing import Any

import attrs
import pytest

from seedbed.errors import InvalidRequest
from seedbed.plans.registries import KeyType, Param, default_registries
from seedbed.plans.request import Request, parse_request

REGISTRIES = default_registries()


def test_a_request_is_read() -> None:
    """Overrides are stored by param id, with the type of their param."""
    given = {
        "user_id": 7,
        "request_id": "r1",
        "param_overrides": {"media_age_penalty_weight": 1, "blocklist_regex": None, "esr_cutoff": 0.25},
    }
    expected = Request(user_id=7, request_id="r1", param_overrides={1: 1.0, 2: None, 3: 0.25})
    for source in (given, json.dumps(given), json.dumps(given).encode()):
        request = parse_request(source, REGISTRIES)
        assert request == expected
        assert isinstance(request.param_overrides[1], float)


@pytest.mark.parametrize(("given", "user_id"), [(0, 0), (2**32 - 1, 2**32 - 1), ("0", 0), ("4294967295", 2**32 - 1)])
def test_user_ids_are_unsigned_integers_of_32_bits(given: Any, user_id: int) -> None:
    """As a number or as its decimal string."""
    assert parse_request({"user_id": given}, REGISTRIES) == Request(user_id=user_id)


@pytest.mark.parametrize(
    "given",
    [
        -1,
        2**32,
        1.0,
        True,
        None,
        [],
        {},
        "",
        "-1",
        "+1",
        " 1",
        "1 ",
        "1\n",
        "01",
        "1.0",
        "4294967296",
        "٣",
        "x",
        "9" * 9_999,
    ],
)
def test_other_user_ids_are_rejected(given: Any) -> None:
    """Values that merely resemble an integer of 32 bits are rejected."""
    with pytest.raises(InvalidRequest, match=r"\$\.user_id: expected an integer"):
        parse_request({"user_id": given}, REGISTRIES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"userid": 1}, "$.userid: unknown field 'userid'; did you mean 'user_id'? [UNKNOWN_FIELD]"),
        ({"request_id": None}, "$.request_id: expected a string, found null [WRONG_TYPE]"),
        ({"request_id": 3}, "$.request_id: expected a string, found 3 [WRONG_TYPE]"),
        ({"param_overrides": None}, "$.param_overrides: expected an object, found null [WRONG_TYPE]"),
        (
            {"param_overrides": {"esr_cutof": 1}},
            "$.param_overrides.esr_cutof: no param is named 'esr_cutof'; did you mean 'esr_cutoff'? [UNKNOWN_PARAM]",
        ),
        ({"param_overrides": {"esr_cutoff": None}}, "$.param_overrides.esr_cutoff: expected a float, found null"),
        ({"param_overrides": {"esr_cutoff": True}}, "$.param_overrides.esr_cutoff: expected a number, found true"),
        ({"param_overrides": {"esr_cutoff": "1"}}, "$.param_overrides.esr_cutoff: expected a number, found '1'"),
        (
            {"param_overrides": {"esr_cutoff": 1e999}},
            "$.param_overrides.esr_cutoff: expected a finite number, found inf",
        ),
        ({"param_overrides": {"blocklist_regex": 1}}, "$.param_overrides.blocklist_regex: expected a string, found 1"),
    ],
)
def test_problems_are_named(change: dict[str, Any], message: str) -> None:
    """A problem of a request has its path and the expected value."""
    with pytest.raises(InvalidRequest, match=re.escape(message)) as caught:
        parse_request({"user_id": 1, **change}, REGISTRIES)
    assert "1 problem:" in str(caught.value)
    assert caught.value.code == "INVALID_REQUEST"


def test_integer_params_are_integers() -> None:
    """A param of type int rejects fractions."""
    registries = attrs.evolve(REGISTRIES, params={9: Param(id=9, name="limit", type=KeyType.INT)})
    assert parse_request({"user_id": 1, "param_overrides": {"limit": 5}}, registries).param_overrides == {9: 5}
    with pytest.raises(InvalidRequest, match=r"limit: expected an integer, found 5\.0"):
        parse_request({"user_id": 1, "param_overrides": {"limit": 5.0}}, registries)


def test_all_problems_are_reported_at_once() -> None:
    """One error has every problem of the request."""
    with pytest.raises(InvalidRequest, match="3 problems") as caught:
        parse_request('{"user_id": -1, "x": 1, "param_overrides": {"y": 1}}', REGISTRIES)
    assert all(path in str(caught.value) for path in ("$.user_id", "$.x", "$.param_overrides.y"))


@pytest.mark.parametrize("text", ["", "[]", "{}", "nul", b"\xff", "[" * 100_000])
def test_other_documents_are_rejected(text: str | bytes) -> None:
    """Anything but a JSON object with a user id is an invalid request."""
    with pytest.raises(InvalidRequest):
        parse_request(text, REGISTRIES)
