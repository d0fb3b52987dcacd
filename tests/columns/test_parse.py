from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.columns.parse import blocks, extract_code, extract_json, split_thoughts
from seedbed.errors import BadOutput

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '  {"a": 1}\n',
        '```json\n{"a": 1}\n```',
        'Here it is:\n```\n{"a": 1}\n```\nAnything else?',
        'Sure! {"a": 1} is what you want [1].',
        'Fill {name} in [see above]: {"a": 1}',
        '~~~json\n{"a": 1}\n~~~',
    ],
)
def test_json_is_found_in_fences_and_prose(text: str) -> None:
    """The value is the whole answer, in a fence, or within prose."""
    assert extract_json(text) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I cannot do that.", "it contains no JSON value"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"items": [{"name": "x"}, {"na', "Unterminated string"),
        ('Here: {"items": [{"name": "x"}, {"name": "y"}', "delimiter"),
        ('```json\n{"a": 1,}\n``` and {"b": 2}', "line 1 column"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": 1} {"b"', "delimiter"),
    ],
)
def test_broken_json_is_never_taken_in_part(text: str, reason: str) -> None:
    """A complete value inside of a value that is cut off or invalid is not used."""
    with pytest.raises(BadOutput, match="it is not JSON") as caught:
        extract_json(text)
    assert reason in str(caught.value)


@given(VALUES)
def test_any_value_round_trips_in_a_fence(value: object) -> None:
    """Whatever the value contains, it is read back unchanged."""
    assert extract_json(f"```json\n{json.dumps(value, indent=1)}\n```") == value


@given(st.text(alphabet='{}[]",:a1`~\n <think>/'))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    """Any text gives a value or a `BadOutput`."""
    with suppress(BadOutput):
        json.dumps(extract_json(text), allow_nan=False)
    assert "".join(block.code for block in blocks(text)).count("a") <= text.count("a")


@pytest.mark.parametrize(
    ("text", "thoughts", "answer"),
    [
        ("fine", None, "fine"),
        ("<think>hm </think>\nfine", "hm", "\nfine"),
        ("\n<thinking>\na\nb\n</thinking>fine", "a\nb", "fine"),
        ("<think>and on and on", "and on and on", ""),
        ("Say <think>x</think>", None, "Say <think>x</think>"),
    ],
)
def test_thoughts_are_not_part_of_the_answer(text: str, thoughts: str | None, answer: str) -> None:
    """Only thoughts at the start are split off; if they do not end, the answer is empty."""
    assert split_thoughts(text) == (thoughts, answer)


@pytest.mark.parametrize(
    ("text", "language", "code"),
    [
        ("```python\nx = 1\n```", "python", "x = 1"),
        ("Sure:\n\n```py\nx = 1\n\ny = 2\n```\nDone.", "python", "x = 1\n\ny = 2"),
        ("```sql\nSELECT 1\n```\n```python\nx = 1\n```", "python", "x = 1"),
        ("```python\nx\n```\n```python\nlonger = 1\n```", "Python", "longer = 1"),
        ("```\nSELECT 1\n```", "sql", "SELECT 1"),
        ("````python\ns = '''\n```\n'''\n````", "python", "s = '''\n```\n'''"),
        ("```c++\nint x;\n```", "cpp", "int x;"),
        ("```postgresql\nSELECT 1\n```", "sql", "SELECT 1"),
        ("  ```python\n  x = 1\n  ```", "python", "  x = 1"),
    ],
)
def test_code_is_the_fence_of_its_language(text: str, language: str, code: str) -> None:
    """The longest fence of the language, by any of its names, else a fence without a language."""
    assert extract_code(text, language) == code


def test_without_a_fence_extract_code_returns_none() -> None:
    """The caller decides whether the whole text is code."""
    assert extract_code("x = 1", "python") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("```sql\nSELECT 1\n```", "it has no code block of python, only of sql"),
        ("```python\nx = 1\n", "not closed"),
        ("```python\n\n```", "empty"),
    ],
)
def test_unusable_fences_are_rejected_with_the_reason(text: str, reason: str) -> None:
    """Fences of other languages, unclosed and empty ones are not used."""
    with pytest.raises(BadOutput, match=reason):
        extract_code(text, "python")
