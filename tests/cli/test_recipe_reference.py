"""The page about recipe files documents every type and field."""

from __future__ import annotations

import re

import attrs
from command import ROOT

from seedbed.columns.spec import processor_types, spec_types
from seedbed.models import MODEL_TYPES

PAGE = (ROOT / "docs" / "reference" / "recipe-file.md").read_text(encoding="utf-8")


def rows() -> dict[str, tuple[type, str]]:
    """The class of every built-in type, and its row on the page (empty if it is missing)."""
    found = {}
    for name, cls in {**spec_types(), **processor_types(), **MODEL_TYPES}.items():
        if cls.__module__.startswith("seedbed."):  # not of a plug-in that happens to be installed
            # The last one: a key of the whole recipe may have the same name.
            found[name] = (cls, ["", *re.findall(rf"^\| `{name}` \|.*", PAGE, re.MULTILINE)][-1])
    return found


def test_every_type_and_field_is_documented() -> None:
    """Each type of column, model and processor has its row, and each of its fields is on the page."""
    assert not [name for name, (_, row) in rows().items() if not row]
    fields = [(name, field.alias) for name, (cls, _) in rows().items() for field in attrs.fields(cls) if field.init]
    assert not [(name, alias) for name, alias in fields if f"`{alias}`" not in PAGE]


def test_required_fields_have_a_star() -> None:
    """In the row of a type, a field has a star if and only if it must be given."""
    wrong = []
    for name, (cls, row) in rows().items():
        needed = {field.alias for field in attrs.fields(cls) if field.default is attrs.NOTHING}
        listed = dict(re.findall(r"`(\w+)`(\*?)", row.split("|")[2]))
        wrong += [f"{name}.{field}" for field, star in listed.items() if bool(star) != (field in needed)]
    assert not wrong
