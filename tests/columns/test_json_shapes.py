from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.columns.structured import fit_schema, schema_dtype, schema_validator, shaped
from seedbed.errors import BadOutput, ConfigError
from seedbed.models.answers import fitting_json
from seedbed.store.schema import arrow_table, declared_type

if TYPE_CHECKING:
    from collections.abc import Callable


def schema_checker(schema: dict[str, Any], *, column: str = "x") -> Callable[[Any], str | None]:
    """A function that describes what of a value does not fit a schema; None if it fits."""
    validator = schema_validator(schema, column=column)

    def check(value: Any) -> str | None:
        try:
            fit_schema(validator, value)
        except BadOutput as error:
            return str(error).removeprefix("it does not fit the schema: ")
        return None

    return check


def test_references_that_double_with_each_level_are_rejected() -> None:
    """Each definition refers to the one before it twice: neither its type nor a value takes forever."""
    levels = {f"a{at}": {"allOf": [{"$ref": f"#/$defs/a{at - 1}"}] * 2} for at in range(1, 60)}
    schema = {"$defs": {"a0": {"type": "string"}, **levels}, "$ref": "#/$defs/a59"}
    assert schema_dtype(schema) is None
    with pytest.raises(
        ConfigError, match=r"schema refers to '#/\$defs/a\d+', which leads to more than 5000 references"
    ):
        schema_validator(schema, column="x")
    # An anchor is resolved by the library: a value is validated within the same limit.
    few = {"$defs": {name: each for name, each in schema["$defs"].items() if name in ("a0", "a1", "a2")}}
    assert schema_checker({**few, "$ref": "#/$defs/a2"})("text") is None


NAMED = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "dtype"),
    [
        ({"type": "string"}, pl.String),
        ({"type": "string", "format": "date-time"}, pl.String),
        ({"type": ["integer", "null"]}, pl.Int64),
        ({"type": ["integer", "number"]}, pl.Float64),
        ({"enum": ["a", "b", None]}, pl.String),
        ({"enum": [1, 2.5]}, pl.Float64),
        ({"const": True}, pl.Boolean),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, pl.Float64),
        ({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": NAMED}}, pl.Struct({"a": pl.String})),
        (
            {"type": "array", "items": {"$ref": "#/$defs/a~1b"}, "$defs": {"a/b": NAMED}},
            pl.List(pl.Struct({"a": pl.String})),
        ),
        ({**NAMED, "additionalProperties": False}, pl.Struct({"a": pl.String})),
    ],
)
def test_types_that_a_schema_describes(schema: dict[str, Any], dtype: Any) -> None:
    """A column has a type if every part of its schema has one."""
    assert schema_dtype(schema) == dtype


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "array"},
        {"type": "array", "items": True},
        {"type": ["string", "integer"]},
        {"enum": ["a", 1]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {**NAMED, "additionalProperties": True},
        {**NAMED, "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}},
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        {"$ref": "https://example.org/schema"},
        {"$ref": "#/$defs/missing"},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}},
    ],
)
def test_parts_without_a_type_leave_the_column_untyped(schema: dict[str, Any]) -> None:
    """A part that accepts any value, or is recursive, has no type, so the column has none."""
    assert schema_dtype(schema) is None


@pytest.mark.parametrize("reference", ["#/$defs/missing", "https://example.org/schema"])
def test_an_unresolvable_reference_is_rejected(reference: str) -> None:
    """It would fail every cell after its call."""
    with pytest.raises(ConfigError, match=f"column 'x': schema refers to '{re.escape(reference)}', which is not in it"):
        schema_checker({"type": "array", "items": {"$ref": reference}})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_circular_reference_is_rejected(schema: dict[str, Any]) -> None:
    """A reference that only leads to itself cannot be followed."""
    with pytest.raises(ConfigError, match=r"column 'x': schema refers to '#.*', which leads back to itself"):
        schema_checker(schema)


@pytest.mark.parametrize("reference", ["#", "#/$defs/a", "#here", "https://example.org/own#/$defs/a"])
def test_references_within_a_schema_are_followed(reference: str) -> None:
    """References to the root, a definition and an anchor are valid."""
    check = schema_checker(
        {
            "$id": "https://example.org/own",
            "type": ["array", "string"],
            "items": {"$ref": reference},
            "$defs": {"a": {"type": "string", "$anchor": "here"}},
        }
    )
    assert check(["a"]) is None
    assert check([1]) is not None


def test_values_are_shaped_like_their_type() -> None:
    """At every level, properties that the type lacks are dropped and missing ones are null."""
    dtype = pl.Struct({"a": pl.Int64, "b": pl.List(pl.Struct({"c": pl.String, "d": pl.String}))})
    assert shaped({"b": [{"c": "x", "e": 1}, None], "z": 1}, dtype) == {"a": None, "b": [{"c": "x", "d": None}, None]}
    assert shaped([{"any": 1}], None) == [{"any": 1}]


@pytest.mark.parametrize(
    ("value", "dtype", "kept"),
    [
        (1.0, pl.Int64(), 1),
        (1, pl.Float64(), 1.0),
        (2**60 + 1, pl.Float64(), float(2**60)),
        (2**63, pl.Int64(), None),
        (1e30, pl.Int64(), None),
        (10**400, pl.Float64(), None),
        (True, pl.Boolean(), True),
        (2**63, None, 2**63),
    ],
)
def test_numbers_have_the_type_of_their_column(value: Any, dtype: Any, kept: Any) -> None:
    """A number is converted to the column's type; one that the type cannot hold is rejected."""
    if kept is None:
        with pytest.raises(BadOutput, match="is too large a number"):
            shaped([value], pl.List(dtype))
    else:
        (found,) = shaped([value], pl.List(dtype)) if dtype is not None else shaped([value], None)
        assert found == kept
        assert type(found) is type(kept)


def test_errors_are_listed_with_their_places() -> None:
    """At most five are listed, so that a correction stays short."""
    check = schema_checker({"type": "array", "items": {"type": "string"}})
    assert check(["a"]) is None
    assert check(["a", 1]) == "$[1]: 1 is not of type 'string'"
    listed = check(list(range(8)))
    assert listed is not None
    assert listed.count("is not of type") == 5
    assert listed.endswith("; and 3 more")


_LEAVES = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer", "minimum": 1, "maximum": 9},
        {"type": "number"},
        {"type": "boolean"},
        {"enum": ["x", "y"]},
        {"type": ["string", "null"]},
    ]
)
SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(
            lambda properties, closed: {"type": "object", "properties": properties, **closed},
            st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3),
            st.sampled_from([{}, {"additionalProperties": False}]),
        ),
    ),
    max_leaves=6,
)


@given(SCHEMAS, st.lists(st.integers(), min_size=1, max_size=3))
def test_values_that_fit_a_schema_fit_its_type(schema: dict[str, Any], prompts: list[int]) -> None:
    """For any schema, fitting values can be stored under the type that it describes."""
    check = schema_checker(schema)
    dtype = schema_dtype(schema)
    assert dtype is not None
    values = [json.loads(fitting_json(schema, str(prompt))) for prompt in prompts]
    assert [check(value) for value in values] == [None] * len(values)
    table, conflicts = arrow_table({"x": [shaped(value, dtype) for value in values]}, {"x": declared_type(dtype)})
    assert not conflicts
    assert table.column("x").type == declared_type(dtype)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "pattern": "^(a+)+$"}, "a" * 60 + "!"),
        ({"type": "object", "patternProperties": {"^(a+)+$": {"type": "null"}}}, {"a" * 60 + "!": 1}),
        (
            {"type": "object", "patternProperties": {"^(a+)+$": {}}, "additionalProperties": {"type": "null"}},
            {"a" * 60 + "!": None},
        ),
        (
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "anyOf": [{"pattern": "^(a+)+$"}, {"type": "array", "items": {"$ref": "#"}}],
            },
            ["a" * 60 + "!"],
        ),
    ],
)
def test_patterns_are_matched_in_linear_time(schema: dict[str, Any], value: Any) -> None:
    """A pattern that backtracks exponentially in Python's engine ends on any text."""
    schema_checker(schema, column="c")(value)


@pytest.mark.parametrize("pattern", [r"(?=a)b", r"(a)\1"])
def test_a_pattern_without_a_linear_time_engine_is_rejected(pattern: str) -> None:
    """Look-around and back-references are rejected anywhere in a schema."""
    expected = rf"column 'c': schema has the pattern {re.escape(repr(pattern))}, which cannot be matched in linear time"
    for schema in (
        {"properties": {"a": {"pattern": pattern}}},
        {"$defs": {"x": {"patternProperties": {pattern: {}}}}},
    ):
        with pytest.raises(ConfigError, match=expected):
            schema_checker(schema, column="c")
    schema_checker({"properties": {"pattern": {"const": pattern}}, "required": ["pattern"]}, column="c")


def test_pattern_properties_and_additional_properties() -> None:
    """Patterns are searched in keys; keys that match none are additional."""
    schema = {
        "properties": {"name": {"pattern": "^[a-z]+$"}},
        "patternProperties": {"^x_": {"type": "integer"}},
        "additionalProperties": False,
    }
    check = schema_checker(schema, column="c")
    assert check({"name": "ab", "x_1": 3}) is None
    assert check({"name": "A"}) == "$.name: 'A' does not match '^[a-z]+$'"
    assert check({"x_1": "3"}) == "$.x_1: '3' is not of type 'integer'"
    assert check({"y": 1, "z": 2}) == "$: additional properties are not allowed: 'y', 'z'"
