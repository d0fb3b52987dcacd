from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from toys import Toy, load

from seedbed.columns.custom import Custom
from seedbed.columns.expression import Expression
from seedbed.columns.processors import Deduplicate, Filter
from seedbed.columns.spec import Grants
from seedbed.engine.config import RunConfig
from seedbed.errors import ConfigError, DatasetGenerationError
from seedbed.recipe.file import load_recipe
from seedbed.recipe.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path

YAML = """\
name: small
seed: 7
models:
  writer: {type: toy, model: small, parameters: {temperature: 1e-1}}
columns:
  - type: expression
    name: one
    expr: "1"
  - {type: expression, name: two, expr: one + 1, dtype: int, skip_when: one == 2, timeout: 2.5}
processors:
  - {type: filter, expr: two > 1}
  - {type: deduplicate, subset: [one]}
run:
  buffer_size: 10
"""
TOML = """\
name = "small"
seed = 7

[models.writer]
type = "toy"
model = "small"
parameters = {temperature = 0.1}

[[columns]]
type = "expression"
name = "one"
expr = "1"

[[columns]]
type = "expression"
name = "two"
expr = "one + 1"
dtype = "int"
skip_when = "one == 2"
timeout = 2.5

[[processors]]
type = "filter"
expr = "two > 1"

[[processors]]
type = "deduplicate"
subset = ["one"]

[run]
buffer_size = 10
"""
DATA: dict[str, Any] = {
    "name": "small",
    "seed": 7,
    "models": {"writer": {"type": "toy", "model": "small", "parameters": {"temperature": 0.1}}},
    "columns": [
        {"type": "expression", "name": "one", "expr": "1"},
        {
            "type": "expression",
            "name": "two",
            "expr": "one + 1",
            "dtype": "int",
            "skip_when": "one == 2",
            "timeout": 2.5,
        },
    ],
    "processors": [{"type": "filter", "expr": "two > 1"}, {"type": "deduplicate", "subset": ["one"]}],
    "run": {"buffer_size": 10},
}


def loaded(folder: Path, text: str, name: str = "recipe.yaml", *, allow_code: bool = False) -> Recipe:
    """Write a recipe file and load it."""
    (folder / name).write_text(text, encoding="utf-8")
    return load(folder / name, allow_code=allow_code)


def problems(folder: Path, text: str, name: str = "recipe.yaml") -> list[str]:
    """Load an invalid recipe file; its problems without the directory in front."""
    with pytest.raises(DatasetGenerationError) as caught:
        loaded(folder, text, name)
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("name", "text"), [("r.yaml", YAML), ("r.yml", YAML), ("r.toml", TOML), ("r.json", json.dumps(DATA))]
)
def test_each_format_gives_the_same_recipe(tmp_path: Path, name: str, text: str) -> None:
    """YAML, TOML and JSON files of the same content load as equal recipes."""
    recipe = loaded(tmp_path, text, name)
    assert recipe == Recipe(
        name="small",
        seed=7,
        models={"writer": Toy(model="small", parameters={"temperature": 0.1})},
        columns=[
            Expression("one", "1"),
            Expression("two", "one + 1", dtype=int, skip_when="one == 2", timeout=2.5),
        ],
        processors=[Filter(expr="two > 1"), Deduplicate(subset=["one"])],
        run={"buffer_size": 10},
    )
    assert recipe.base == tmp_path


def test_all_problems_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    """Every problem is reported with its line and path: keys, types, fields, values, options and the graph."""
    text = """\
sed: 7
models:
  writer: {type: toi, model: small}
  other: {type: toy, model: small, max_parallel_requests: 0, modl: x}
columns:
  - {type: expresion, name: a, expr: "1"}
  - type: expression
    name: b
    exp: "1"
  - {type: expression, name: c, expr: "d + 1", timeout: -1, skip_when: "b >", skip_policy: never}
  - {name: e}
  - 7
  - {type: expression, name: fine, expr: b + a + fin}
processors:
  - {type: filter, exp: x}
run: {buffer_sise: 3, max_active_tasks: 0}
"""
    assert [each.partition(" (known: ")[0] for each in problems(tmp_path, text)] == [
        "recipe.yaml:1: sed: unknown key 'sed'; did you mean 'seed'?",
        "recipe.yaml:3: models.writer.type: unknown model type 'toi'; did you mean 'toy'?",
        "recipe.yaml:4: models.other.modl: unknown field 'modl'; did you mean 'model'?",
        (
            "recipe.yaml:4: models.other.max_parallel_requests: "
            "max_parallel_requests must be a whole number, 1 or more, not 0"
        ),
        "recipe.yaml:6: columns[0].type: unknown column type 'expresion'; did you mean 'expression'?",
        "recipe.yaml:9: columns[1].exp: unknown field 'exp'; did you mean 'expr'?",
        "recipe.yaml:7: columns[1].expr: is missing",
        (
            "recipe.yaml:10: columns[2].skip_when: column 'c', skip_when: 'b >' is not an expression: "
            "unexpected 'end of template'"
        ),
        "recipe.yaml:10: columns[2].skip_policy: column 'c': skip_policy must be 'run' or 'skip', not 'never'",
        "recipe.yaml:10: columns[2].timeout: column 'c': timeout must be seconds above 0, not -1",
        "recipe.yaml:11: columns[3]: the type of the column is missing",
        "recipe.yaml:12: columns[4]: a column is a mapping with a 'type', not 7",
        "recipe.yaml:15: processors[0].exp: unknown field 'exp'; did you mean 'expr'?",
        "recipe.yaml:15: processors[0].expr: is missing",
        "recipe.yaml:16: run.buffer_sise: unknown field 'buffer_sise'; did you mean 'buffer_size'?",
        "recipe.yaml:16: run.max_active_tasks: max_active_tasks must be a whole number, 1 or more, not 0",
        "recipe.yaml:13: column 'fine' requires 'fin', which no column generates; did you mean 'fine'?",
    ]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("r.toml", "[[columns]]\ntype = 'expression'\nname = 'a'\n", "r.toml:1: columns[0].expr: is missing"),
        ("r.toml", "[models.a]\ntype = 'x'\n" + TOML[TOML.index("[[col") :], "r.toml:1: models.a.type: unknown model"),
        ("r.json", '{\n "columns": [\n  {"name": "a",\n   "type": "x"}]}', "r.json:4: columns[0].type: unknown column"),
        ("r.json", '{\t"columns": [\n  {"type": "x"}]}', "columns[0].type: unknown column type 'x'"),
        ("r.yaml", "seed: 1\n", "r.yaml: columns: the recipe has no columns"),
        ("r.yaml", "seed: x\ncolumns: {}\n", "r.yaml:1: seed: must be a whole number, not 'x'"),
        ("r.yaml", "columns: {a: 1}\n", "r.yaml:1: columns: must be a list, not {'a': 1}"),
        ("r.yaml", "models: 3\ncolumns: []\n", "r.yaml:1: models: must be a mapping, not 3"),
        ("r.yaml", YAML + "seed: 3\n", "r.yaml:15: seed: duplicate key"),
        (
            "r.yaml",
            "columns: [{type: expression, name: 3, expr: a}]",
            "columns[0].name: a column's name must be text, not 3",
        ),
        ("r.yaml", "columns: [{type: drop_columns}]", "columns[0].type: unknown column type 'drop_columns'"),
        ("r.yaml", "columns: [{type: custom, name: a, function: 'os:getcwd', outputs: 3}]", "columns[0].outputs: "),
    ],
)
def test_problems_have_the_nearest_known_line(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """A problem is reported with the nearest line that the format provides."""
    assert [each for each in problems(tmp_path, text, name) if problem in each]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.yaml", "columns: [\n", r"r\.yaml:2: "),
        ("r.yaml", "- a\n", r"r\.yaml: a recipe is a mapping with 'columns', not list"),
        ("r.yaml", "", r"a recipe is a mapping with 'columns', not NoneType"),
        ("r.yaml", "a: !!python/object/apply:os.getcwd []", r"r\.yaml:1: could not determine a constructor"),
        ("r.json", '{"a": 1\n"b": 2}', r"r\.json:2: "),
        ("r.toml", "a = \n", r"r\.toml: Invalid value \(at line 1"),
        ("r.txt", "", r"r\.txt: a recipe file ends in \.yaml, \.yml, \.toml, \.json, not '\.txt'"),
    ],
)
def test_unreadable_files_are_one_error(tmp_path: Path, name: str, text: str, message: str) -> None:
    """A file that cannot be parsed is one error, with its line if the parser reports one."""
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, text, name)
    with pytest.raises(ConfigError, match=r"missing\.yaml cannot be read: "):
        load(tmp_path / "missing.yaml")


def test_scalars_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    """`no`, `12:30` and dates are text, and `010` is ten."""
    text = """
columns: [{type: expression, name: a, expr: "1"}]
models:
  m:
    type: toy
    model: small
    parameters: {a: no, b: 12:30, c: 010, d: 2024-01-31, e: 1e3, f: true, g: ~, h: .inf, i: 0x10}
"""
    (model,) = loaded(tmp_path, text).models.values()
    assert isinstance(model, Toy)
    assert model.parameters == {
        "a": "no",
        "b": "12:30",
        "c": 10,
        "d": "2024-01-31",
        "e": 1000.0,
        "f": True,
        "g": None,
        "h": float("inf"),
        "i": 16,
    }
    toml = TOML.replace("{temperature = 0.1}", "{d = [2024-01-31]}")
    (model,) = loaded(tmp_path, toml, "r.toml").models.values()
    assert isinstance(model, Toy)
    assert model.parameters == {"d": ["2024-01-31"]}


CODE = "columns: [{type: custom, name: path, function: 'os:getcwd', retry_on: [OSError, 'json:JSONDecodeError']}]"


def test_problems_of_columns_have_their_line(tmp_path: Path) -> None:
    """Problems that are found when a column is created have a line too."""
    text = "sed: 1\ncolumns:\n  - {type: custom, name: a, function: 'nowhere:f'}\n"
    with pytest.raises(DatasetGenerationError) as caught:
        loaded(tmp_path, text, allow_code=True)
    assert "recipe.yaml:3: columns[0]: column 'a', function: 'nowhere' cannot be imported" in caught.value.problems[1]


def test_code_needs_permission(tmp_path: Path) -> None:
    """A file that names code is rejected with the option that allows it, before anything is imported."""
    assert problems(tmp_path, CODE) == [
        (
            "recipe.yaml:1: columns[0]: column 'path' runs user-defined code ('os:getcwd', 'json:JSONDecodeError'), "
            "which needs --allow-code"
        )
    ]
    (spec,) = loaded(tmp_path, CODE, allow_code=True).columns
    assert isinstance(spec, Custom)
    assert spec.retry_on == (OSError, "json:JSONDecodeError")


def test_relative_paths_start_at_the_file_or_its_base(tmp_path: Path) -> None:
    """`base` may be relative to the file or absolute."""
    columns = "columns: [{type: expression, name: a, expr: '1'}]"
    assert loaded(tmp_path, columns).base == tmp_path
    assert loaded(tmp_path, f"base: deeper\n{columns}").base == tmp_path / "deeper"
    assert loaded(tmp_path, f"base: /elsewhere\n{columns}").base.as_posix() == "/elsewhere"


def test_problems_of_all_kinds_are_reported_together(tmp_path: Path) -> None:
    """Wrong types and fields hide neither unknown models nor fields of other columns, filters or run options."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "models:\n  m: {type: scripted}\ncolumns:\n"
        "  - {name: topic, typ: category, values: [tea]}\n"
        "  - {name: text, type: llm_text, model: m, prompt: x}\n"
        "  - {name: score, type: judge, model: m, of: text}\n"
        "  - {name: n, type: expression, expression: '1'}\n"
        "  - {name: j, type: llm-judge, model: m, of: topic, scores: {clarity: 1 to 5}, tracee: true}\n"
        "  - {name: k, type: llm-text, model: mm, prompt: '{{ topic }}'}\n"
        "  - {name: l, type: llm-text, model: m, prompt: '{{ j.clarty }}'}\n"
        "processors:\n  - {type: filtr, expr: 'true'}\n"
        "  - {type: filter, stage: pre_batch, expr: topic > 2, lang: sql}\n"
        "run: {buffer_sise: 3}\n"
    )
    with pytest.raises(DatasetGenerationError) as caught:
        load_recipe(path, grants=Grants(), run_options=RunConfig)
    found = [problem.removeprefix(f"{path}:") for problem in caught.value.problems]
    assert found == [
        "4: columns[0].typ: unknown field 'typ'; did you mean 'type'?",
        "5: columns[1].type: unknown column type 'llm_text'; did you mean 'llm-text'?",
        "6: columns[2].type: unknown column type 'judge'; did you mean 'llm-judge'?",
        "7: columns[3].expression: unknown field 'expression'; did you mean 'expr'?",
        "7: columns[3].expr: is missing",
        "8: columns[4].tracee: unknown field 'tracee'; did you mean 'trace'?",
        "12: processors[0].type: unknown processor type 'filtr'; did you mean 'filter'?",
        "13: processors[1].lang: unknown field 'lang'; did you mean 'language'?",
        "14: run.buffer_sise: unknown field 'buffer_sise'; did you mean 'buffer_size'?",
        "9: columns[5]: column 'k': model 'mm' is not in models; did you mean 'm'?",
        "10: columns[6].prompt: column 'l', prompt, line 1: unknown field 'clarty' of 'j'; did you mean 'clarity'?",
    ]
