from __future__ import annotations

import json
import math
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toys import Toy, load

from seedbed.columns.custom import Custom, column
from seedbed.columns.expression import Expression
from seedbed.columns.processors import Filter, SchemaTransform
from seedbed.engine.config import RunConfig
from seedbed.errors import ConfigError
from seedbed.recipe.file import recipe_data, recipe_text
from seedbed.recipe.recipe import Recipe, fingerprint, plain


@column(timeout=3, dtype="list[int]")
def listed(number: int) -> list[int]:
    """A function that a recipe file names."""
    return [number]


RECIPE = Recipe(
    name="small",
    seed=7,
    models={"writer": Toy(model="m", parameters={"temperature": 0.2}, api_key_env="TOY_KEY")},
    columns=[
        Expression("number", "1", dtype=int),
        Expression("text", "two\nlines of {{ number }}\n", skip_when="number == 2", skip_policy="skip", timeout=3.0),
    ],
    processors=[
        Filter(expr="number > 0", stage="pre_batch"),
        SchemaTransform(cast={"number": pl.Int32}, rename={"text": "no"}, template={"x": {"y": ["{{ number }}"]}}),
    ],
    run=RunConfig(buffer_size=10),
)


def dump(recipe: Recipe, path: Path) -> None:
    """Write a recipe file, as YAML or JSON by its suffix."""
    text = json.dumps(recipe_data(recipe)) if path.suffix == ".json" else recipe_text(recipe)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", ["recipe.yaml", "recipe.json"])
def test_a_stored_recipe_loads_as_an_equal_one(tmp_path: Path, name: str) -> None:
    """The stored file loads as an equal recipe, and holds only the fields that differ from their defaults."""
    dump(RECIPE, tmp_path / name)
    assert load(tmp_path / name) == RECIPE
    assert recipe_data(RECIPE)["columns"][0] == {"type": "expression", "name": "number", "dtype": "int", "expr": "1"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=settings.default.max_examples // 4)
@given(VALUES)
@example("1e3")
@example("0o17")
@example(["no", "12:30", "~", "<<", " a\nb ", "2024-01-31", "\x85", "=", "1_000", "0b1"])
def test_every_value_survives_storing_and_loading(value: object) -> None:
    """Any value of a field is read back as it was written."""
    recipe = Recipe(columns=RECIPE.columns, models={"m": Toy(model="m", parameters={"value": value})})
    with TemporaryDirectory() as folder:
        for name in ("recipe.yaml", "recipe.json"):
            dump(recipe, Path(folder, name))
            assert load(Path(folder, name)).models == recipe.models


def test_functions_are_stored_by_name(tmp_path: Path) -> None:
    """A function is written as module:name, and the file generates the same data."""
    recipe = Recipe(columns=[Expression("number", "1"), listed])
    dump(recipe, tmp_path / "recipe.yaml")
    loaded = load(tmp_path / "recipe.yaml", allow_code=True)
    assert loaded.columns[1] == Custom("listed", "test_recipe_fingerprint:listed", timeout=3, dtype="list[int]")
    assert fingerprint(loaded) == fingerprint(recipe)


def test_relative_paths_do_not_depend_on_where_the_file_is_stored(tmp_path: Path) -> None:
    """A recipe that is stored elsewhere resolves its paths as before."""
    recipe = attrs.evolve(RECIPE, base=tmp_path / "here")
    (tmp_path / "there").mkdir()
    dump(recipe, tmp_path / "there" / "recipe.json")
    assert load(tmp_path / "there" / "recipe.json").base == tmp_path / "here"


def test_operational_fields_are_not_in_the_fingerprint() -> None:
    """Concurrency, keys, timeouts and options of a run do not change the fingerprint, which is JSON."""
    other = attrs.evolve(
        RECIPE,
        name="other",
        models={"writer": Toy(model="m", parameters={"temperature": 0.2}, api_key_env="B", max_parallel_requests=9)},
        columns=[RECIPE.columns[0], attrs.evolve(RECIPE.columns[1], timeout=9.0)],
        run={"buffer_size": 3},
        base=Path("elsewhere"),
    )
    assert fingerprint(other) == fingerprint(RECIPE)
    assert json.loads(json.dumps(fingerprint(RECIPE))) == fingerprint(RECIPE)
    assert "TOY_KEY" not in json.dumps(fingerprint(RECIPE))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 8},
        {"columns": RECIPE.columns[:1]},
        {"columns": [RECIPE.columns[0], Expression("text", "{{ number }}")]},
        {"models": {"writer": Toy(model="n", parameters={"temperature": 0.2})}},
        {"models": {"writer": Toy(model="m", parameters={"temperature": 0.3})}},
        {"processors": ()},
    ],
)
def test_fields_that_determine_the_data_are_in_the_fingerprint(change: dict[str, object]) -> None:
    """A change of such a field changes the fingerprint."""
    assert fingerprint(attrs.evolve(RECIPE, **change)) != fingerprint(RECIPE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, "a", None), [1, "a", None]),
        ({"b": (1,)}, {"b": [1]}),
        (frozenset({"b", "a"}), ["a", "b"]),
        (math.inf, "inf"),
        (date(2024, 1, 31), "2024-01-31"),
        (timedelta(minutes=1), 60.0),
        (Path("a/b"), "a/b"),
        (json.dumps, "json:dumps"),
        (Toy, "toys:Toy"),
        (pl.Int16, "Int16"),
        (list[int], "list[int]"),
        (pl.col("a") + 1, '[(col("a")) + (dyn int: 1)]'),
    ],
)
def test_plain_represents_values_as_a_recipe_file_does(value: object, expected: object) -> None:
    """Values are represented as in a recipe file, or by a digest."""
    assert plain(value) == expected


def test_frames_are_represented_by_their_content() -> None:
    """Equal frames have equal fingerprints, others do not; values without a representation are rejected."""
    frame = pl.DataFrame({"a": [1, 2]})
    assert plain(frame) == plain(frame.clone())
    assert plain(frame) != plain(frame.reverse())
    assert plain(frame)["frame"] == {"a": "Int64"}
    one, other = (pl.DataFrame({"a": [[value]]}) for value in (b"\xff", b"\xfe"))
    assert plain(one) == plain(one.clone()) != plain(other)
    with pytest.raises(ConfigError, match=r"cannot be stored with .* in it, which is neither data nor a function"):
        plain(object())
