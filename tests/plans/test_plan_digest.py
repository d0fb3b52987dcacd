from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.plans.digest import canonical_json, plan_digest

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        # RFC 8785, appendix B.
        (0.0, "0"),
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (-5e-324, "-5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (999999999999999700000.0, "999999999999999700000"),
        (1e21, "1e+21"),
        (9.999999999999997e-7, "9.999999999999997e-7"),
        (0.000001, "0.000001"),
        (333333333.3333332, "333333333.3333332"),
        (-0.0000033333333333333333, "-0.0000033333333333333333"),
        (1424953923781206.2, "1424953923781206.2"),
        (2**63 - 1, "9223372036854775807"),
    ],
)
def test_numbers_are_written_as_the_specification_says(value: float, written: str) -> None:
    """The samples of RFC 8785; integers of 64 bits keep their digits."""
    assert canonical_json(value) == written


def test_the_example_of_the_specification() -> None:
    """Keys in the order of UTF-16 code units, strings with the shortest escapes."""
    document = {"\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Dalet", "1": "One", "\U0001f600": "Smiley"}
    order = ["\r", "1", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical_json(document))) == order
    text = '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'
    assert canonical_json("\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\u002f") == text


@given(JSON)
def test_any_spelling_of_a_document_has_one_digest(document: object) -> None:
    """Spaces, escapes and the order of fields do not count; the canonical form is its own."""
    spelled = json.loads(json.dumps(document, indent=2, sort_keys=True))
    assert plan_digest(spelled) == plan_digest(document)
    assert canonical_json(json.loads(canonical_json(document))) == canonical_json(document)


@given(FLOATS)
def test_numbers_are_read_back_exactly(value: float) -> None:
    """The text of a number is the same number again, with an exponent only where ECMAScript has one."""
    text = canonical_json(value)
    assert float(text) == value
    assert ("e" in text) == (value != 0 and not 1e-6 <= math.fabs(value) < 1e21)
