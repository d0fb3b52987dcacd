"""Documents: columns of type `json` hold any JSON values exactly, through every part of a build and on disk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

import seedbed as sb
from seedbed.columns.dtypes import dtype_text, read_dtype
from seedbed.columns.spec import Environment, make_column
from seedbed.columns.structured import LLMStructured
from seedbed.errors import ConfigError, Permanent, StoreError
from seedbed.store.schema import declared_type
from seedbed.store.values import JSON, json_text, python_rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from seedbed.columns.spec import ColumnSpec, ProcessorSpec
    from seedbed.models.base import ChatRequest

# Shapes that no struct holds: other keys, another order of keys, large numbers, text and lists beside objects.
DOCUMENTS: list[Any] = [
    {"city": "Rome"},
    {"to": "Ann", "body": {"b": 1, "a": [1, "x", None, 2.5]}},
    {"body": "", "to": None, "number": 2**70},
    ["a", {"b": []}],
    "plain \ud83d text",
    12,
    {},
    False,
]
UNION = {"anyOf": [{"type": "object"}, {"type": "array"}, {"type": ["string", "integer", "boolean"]}]}


def answer(request: ChatRequest) -> str:
    """The document whose number the prompt ends with; other prompts come back."""
    prompt = request.messages[-1].content
    return json.dumps(DOCUMENTS[int(prompt.split()[-1])]) if prompt.startswith("Document") else prompt


@sb.column
def index(rows: range) -> list[int]:
    """The number of each row."""
    return list(rows)


def recipe(*columns: ColumnSpec, processors: Sequence[ProcessorSpec] = (), **options: Any) -> sb.Recipe:
    """A document in each row, and what follows from it."""
    document = LLMStructured("doc", model="writer", prompt="Document {{ index }}", schema=UNION, **options)
    return sb.Recipe(
        columns=[index, document, *columns],
        models={"writer": sb.Scripted(answers=answer)},
        processors=processors,
        run={"buffer_size": 3},
    )


def same(found: Any, expected: Any) -> bool:
    """True if documents are equal with the order of their keys and the types of their numbers."""
    return json.dumps(found) == json.dumps(expected)


def test_documents_are_stored_exactly_and_read_back_as_objects(tmp_path: Path) -> None:
    """A union needs no declaration; rows have the objects, frames their text, in arrow's own type for JSON."""
    dataset = sb.build(recipe(), rows=8, out=tmp_path / "data")
    opened = sb.Dataset.open(tmp_path / "data")
    for each in (dataset, opened):
        assert same([row["doc"] for row in each], DOCUMENTS)
    assert same([row["doc"] for row in opened.iter_rows(["doc"])], DOCUMENTS)
    assert opened.arrow_schema.field("doc").type == JSON
    texts = opened.to_polars()["doc"].ext.storage()
    assert same([json.loads(text) for text in texts], DOCUMENTS)
    assert opened.scan().filter(pl.col("index") > 5).select("doc").collect().height == 2


def test_other_programs_read_documents_as_json(tmp_path: Path) -> None:
    """Files carry the type: DuckDB reads JSON, Hugging Face `datasets` objects, pyarrow and polars JSON text."""
    duckdb, datasets = pytest.importorskip("duckdb"), pytest.importorskip("datasets")
    sb.build(recipe(), rows=2, out=tmp_path / "data")
    pattern = str(tmp_path / "data" / "*.parquet")
    assert pl.read_parquet(pattern).equals(sb.Dataset.open(tmp_path / "data").to_polars())
    assert duckdb.sql(f"select typeof(doc), doc->>'$.city' from '{pattern}' limit 1").fetchall() == [("JSON", "Rome")]
    loaded = datasets.load_dataset("parquet", data_files=pattern, cache_dir=str(tmp_path / "cache"))["train"]
    assert loaded[0]["doc"] == DOCUMENTS[0]


def test_later_columns_and_processors_see_the_object(tmp_path: Path) -> None:
    """Templates, expressions, functions, filters and new columns read fields of a document."""
    seen: dict[int, Any] = {}

    @sb.column
    def kept(index: int, doc: Any) -> str:
        seen[index] = doc
        return type(doc).__name__

    columns = [
        sb.LLMText("prompted", model="writer", prompt="{{ doc.city or '-' }}", skip_when="doc.city is not defined"),
        sb.Expression("shown", "{% if doc.body is defined %}{{ doc.body | tojson }}{% endif %}"),
        sb.Expression("copy", "doc", dtype="json"),
        sb.Expression("parsed", '{"n": {{ index }}}', dtype="json"),
        sb.Validation("valid", of="doc", kind="json_schema", schema={"type": "object"}),
        kept,
    ]
    processors = [
        sb.Filter(expr="doc is mapping and doc and doc.city is not defined"),
        sb.SchemaTransform(template={"body": "{{ doc.body }}", "line": "{{ doc.to }}"}),
        sb.Filter(expr="doc.body is defined", stage="after_generation"),
        sb.SchemaTransform(cast={"parsed": str}, stage="after_generation"),
    ]
    dataset = sb.build(recipe(*columns, processors=processors), rows=8, out=tmp_path / "data")
    assert same([seen[number] for number in range(8)], DOCUMENTS)
    rows = list(dataset)
    assert same([row["doc"] for row in rows], DOCUMENTS[1:3])
    assert same([row["copy"] for row in rows], DOCUMENTS[1:3])
    assert [row["prompted"] for row in rows] == [None, None]
    assert [row["shown"] for row in rows] == ['{"b": 1, "a": [1, "x", null, 2.5]}', '""']
    assert [row["line"] for row in rows] == ["Ann", None]
    assert [row["parsed"] for row in rows] == ['{"n": 1}', '{"n": 2}']
    assert [row["valid"]["is_valid"] for row in rows] == [True, True]


def test_documents_come_back_from_the_journal(tmp_path: Path) -> None:
    """A row that is retried in a later run gets the same object."""
    seen: dict[int, Any] = {}
    failing = True

    @sb.column
    def late(index: int, doc: Any) -> int:
        if failing and index % 2:
            raise Permanent("not yet")
        seen[index] = doc
        return index

    shown = sb.Expression("shown", "{{ late }} {{ doc | tojson }}")
    out = tmp_path / "data"
    sb.build(recipe(late, shown), rows=8, out=out)
    failing = False
    dataset = sb.build(recipe(late, shown), rows=8, out=out, resume=True, retry_dropped=True)
    assert same([seen[number] for number in range(8)], DOCUMENTS)
    assert same([row["doc"] for row in dataset], DOCUMENTS)
    assert [row["shown"] for row in dataset][:2] == ['0 {"city": "Rome"}', f"1 {json_text(DOCUMENTS[1])}"]


def test_a_column_that_is_added_later_sees_the_object(tmp_path: Path) -> None:
    """What a finished dataset has of its documents is read from its files as objects."""
    out = tmp_path / "data"
    sb.build(recipe(), rows=8, out=out)
    more = sb.Expression("more", "{{ doc | tojson }}")
    dataset = sb.build(recipe(more), rows=8, out=out, resume=True)
    assert [row["more"] for row in dataset][:4] == [json.dumps(each, ensure_ascii=False) for each in DOCUMENTS[:4]]
    assert same([row["doc"] for row in dataset], DOCUMENTS)


def test_pre_batch_processors_keep_documents() -> None:
    """A document from scratch passes through a frame and is an object again."""

    @sb.column(dtype="json")
    def doc(rows: range) -> list[Any]:
        return [DOCUMENTS[row] for row in rows]

    given = sb.Recipe(
        columns=[doc, sb.Expression("kind", "doc | string | length")],
        processors=[sb.Filter(expr="doc is mapping", stage="pre_batch")],
    )
    found = python_rows(sb.preview(given, rows=8).to_polars())
    assert same([row["doc"] for row in found], [each for each in DOCUMENTS if isinstance(each, dict)])


@pytest.mark.parametrize(
    ("schema", "dtype"),
    [
        ({"type": "object", "additionalProperties": True}, JSON),
        (
            {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"type": "integer"}},
            JSON,
        ),
        ({"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}}, JSON),
        ({"type": "object"}, JSON),
        ({"type": "array"}, JSON),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, JSON),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, JSON),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, pl.Struct({"a": pl.String})),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, pl.String()),
    ],
)
def test_open_schemas_make_documents(schema: dict[str, Any], dtype: object) -> None:
    """Unions and open objects are documents, closed ones have a type of their own."""
    here = Environment(models={"writer": sb.Scripted()})
    column = make_column(LLMStructured("doc", model="writer", prompt="x", schema=schema), here)
    assert column.dtypes() == {"doc": dtype}


def test_structured_columns_as_text_or_as_documents() -> None:
    """`dtype: str` stores JSON text, `dtype: json` the whole document of a closed schema."""
    text = sb.preview(recipe(dtype="str"), rows=3).to_polars()
    assert text["doc"].to_list() == [json_text(each) for each in DOCUMENTS[:3]]
    closed = {"type": "object", "properties": {"city": {"type": "string"}}}
    spec = LLMStructured("doc", model="writer", prompt="Document {{ index }}", schema=closed, dtype="json")
    given = sb.Recipe(columns=[index, spec], models={"writer": sb.Scripted(answers=answer)})
    assert python_rows(sb.preview(given, rows=3).to_polars())[1]["doc"] == DOCUMENTS[1]


def test_seeds_of_json(tmp_path: Path) -> None:
    """Text of a seed that is declared as json is parsed; a dataset with documents can be a seed."""
    (tmp_path / "rows.csv").write_text('n,doc\n1,"{""b"": 1, ""a"": 2}"\n2,\n3,[1]\n')
    seed = sb.Recipe(columns=[sb.Seed("rows", path=str(tmp_path / "rows.csv"), dtype={"doc": "json"})])
    first = sb.build(seed, rows=3, out=tmp_path / "first")
    assert same([row["doc"] for row in first], [{"b": 1, "a": 2}, None, [1]])
    path = str(tmp_path / "first" / "*.parquet")
    again = sb.Recipe(columns=[sb.Seed("rows", path=path), sb.Expression("b", "doc.b if doc is mapping else 0")])
    second = sb.build(again, rows=3, out=tmp_path / "second")
    assert same([row["doc"] for row in second], [{"b": 1, "a": 2}, None, [1]])
    assert [row["b"] for row in second] == [1, 0, 0]


def test_the_type_has_one_name() -> None:
    """`json` in recipes, arrow's and polars' types in Python; it is the type of a whole column."""
    assert read_dtype("json") == JSON
    polars_json = pl.Series(pa.array([], JSON)).dtype
    assert [dtype_text(each) for each in (JSON, pa.json_(), polars_json)] == ["json"] * 3
    assert {declared_type(each) for each in (JSON, pa.json_(), polars_json)} == {JSON}
    with pytest.raises(ConfigError, match="json is the type of a whole column"):
        read_dtype("list[json]")
    with pytest.raises(ConfigError, match="unknown type 'jsn'; did you mean 'json'"):
        read_dtype("jsn")


def test_damaged_documents_are_an_error_with_the_part(tmp_path: Path) -> None:
    """Text that is not JSON in a file of someone else fails with the name of the file."""
    dataset = sb.build(recipe(), rows=1, out=tmp_path / "data")
    storage = pa.array(["{"], pa.large_string())
    broken = pa.table({"index": [0], "doc": pa.ExtensionArray.from_storage(JSON, storage)})
    pa.parquet.write_table(broken, tmp_path / "data" / dataset.parts[0].name)
    with pytest.raises(StoreError, match=dataset.parts[0].name):
        list(sb.Dataset.open(tmp_path / "data"))
