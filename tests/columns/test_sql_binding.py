"""SQL that is bound against given tables: what is found, and what a text cannot reach."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import seedbed
from seedbed.columns import sql_process
from seedbed.columns.spec import Environment, make_column
from seedbed.columns.sql import SqlChecker
from seedbed.columns.validation import Validation
from seedbed.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

TABLES = "CREATE TABLE orders (id INT PRIMARY KEY, customer VARCHAR, total DECIMAL(10, 2))"


def errors(texts: list[str], *, ddl: Any = TABLES, dialect: Any = None, **columns: list[Any]) -> list[str | None]:
    """The error of each text, through the engine; null for a valid one."""
    data = {"query": texts, **columns}
    sources = [
        seedbed.Column(name, lambda rows, values=values: [values[row] for row in rows], kind="from_scratch")
        for name, values in data.items()
    ]
    column = make_column(Validation("ok", of="query", kind="sql", ddl=ddl, dialect=dialect), Environment())
    frame = seedbed.preview([*sources, column], rows=len(texts)).to_polars()
    verdicts = frame["ok"].to_list()
    assert all(each["is_valid"] is (each["error"] is None) for each in verdicts)
    return [each["error"] for each in verdicts]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("SELECT customer, sum(total) FROM orders GROUP BY customer", None),
        ("WITH big AS (SELECT * FROM orders WHERE total > 9) SELECT id FROM big", None),
        ("INSERT INTO orders VALUES (1, 'a', 2) ON CONFLICT (id) DO NOTHING", None),
        ("UPDATE orders SET total = ? WHERE id = $1", None),
        ("DELETE FROM orders WHERE id = 1; SELECT 1", None),
        ("CREATE TABLE big AS SELECT id FROM orders; SELECT id FROM big", None),
        ("SELECT * FROM orders, range(orders.id)", None),
        ("SELECT name FROM orders", 'Referenced column "name" not found'),
        ("SELECT * FROM ordrs", "Table with name ordrs does not exist; did you mean 'orders'?"),
        ("SELECT * FROM pg_tabls", "Table with name pg_tabls does not exist (known: 'orders')"),
        ("SELECT customer, sum(total) FROM orders", "must appear in the GROUP BY clause"),
        ("SELECT sum(customer) FROM orders", "No function matches"),
        ("SELECT nonsense(id) FROM orders", "nonsense does not exist"),
        ("CREATE TABLE big AS SELECT id FROM orders; SELECT total FROM big", '"total" not found'),
        ("SELECT FROM WHERE", "line 1: "),
        ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN is not understood"),
        ("PRAGMA version", "PRAGMA reads and writes no table of the ddl"),
        ("SET lock_configuration = false", "SET reads and writes no table"),
    ],
)
def test_a_statement_is_bound(text: str, error: str | None) -> None:
    """Its tables, columns, functions and types must exist and fit."""
    (found,) = errors([text])
    assert found is None if error is None else error in (found or "")


def test_a_statement_is_not_executed() -> None:
    """Not even what it creates stays for the next text."""
    first, second = errors(["CREATE TABLE extra (x INT); SELECT x FROM extra", "SELECT x FROM extra"])
    assert first is None
    assert "extra does not exist" in (second or "")
    assert errors(["SELECT repeat('x', 100000000000) FROM orders"]) == [None]


def test_a_statement_reaches_nothing(tmp_path: Path) -> None:
    """No file, database, extension or variable of Python."""
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    frame = pl.DataFrame({"a": [1]})
    texts = [
        f"SELECT * FROM '{secret}'",
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM read_text('{secret}')",
        f"SELECT * FROM glob('{tmp_path}/*')",
        f"COPY orders TO '{tmp_path}/copy.csv'",
        f"ATTACH '{tmp_path}/other.db' AS other",
        "INSTALL spatial",
        "LOAD httpfs",
        "SELECT * FROM 'https://localhost:1/x.parquet'",
        "SELECT a FROM frame",
        "SELECT ST_Point(1, 2)",
        "SELECT * FROM range(length(repeat('x', 10000000000)))",
    ]
    assert frame.height == 1
    assert all(errors(texts))
    assert [each.name for each in tmp_path.iterdir()] == ["secret.csv"]
    with pytest.raises(ConfigError, match=r"column 'ok': ddl: its tables cannot be created: .*secret\.csv"):
        errors([], ddl=f"CREATE TABLE stolen AS SELECT * FROM read_csv('{secret}')")


HOSTILE = {
    "doubled": "WITH c0 AS (SELECT * FROM orders), "
    + ", ".join(f"c{n} AS (SELECT * FROM c{n - 1}, c{n - 1} other)" for n in range(1, 40))
    + " SELECT * FROM c39",
    "nested": "SELECT " + "(" * 50_000 + "1" + ")" * 50_000,
    "chained": "SELECT 1" + " + 1" * 40_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_text_that_would_take_for_ever_is_invalid(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is ended, and the next text has another one."""
    monkeypatch.setattr(sql_process, "SECONDS", 2.0)
    assert SqlChecker("ok").problems(text, dialect=None, ddl=TABLES)
    monkeypatch.undo()
    assert SqlChecker("ok").problems("SELECT id FROM orders", dialect=None, ddl=TABLES) == []


def test_parsing_has_the_same_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text without tables is only parsed, in the same processes."""
    monkeypatch.setattr(sql_process, "SECONDS", 0.02)
    (problem,) = SqlChecker("ok").problems(HOSTILE["chained"], dialect="mysql", ddl=None)
    assert "checking it takes more than" in str(problem)
    monkeypatch.undo()
    assert SqlChecker("ok").problems("SELECT `id` FROM orders", dialect="mysql", ddl=None) == []


@pytest.mark.parametrize(
    ("dialect", "ddl", "good", "bad"),
    [
        (
            "mysql",
            (
                "CREATE TABLE `orders` (`id` INT UNSIGNED NOT NULL AUTO_INCREMENT, "
                "`state` ENUM('new', 'paid') DEFAULT 'new', PRIMARY KEY (`id`), KEY by_state (`state`)) ENGINE=InnoDB; "
                "INSERT INTO orders VALUES (1, 'new')"
            ),
            "SELECT `id`, IFNULL(`state`, '-') FROM `orders` LIMIT 5, 10",
            "SELECT `status` FROM `orders`",
        ),
        (
            "postgres",
            (
                "CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE public.users (id SERIAL PRIMARY KEY, "
                "mail CITEXT UNIQUE, now mood, tags TEXT[], CHECK (id > 0)); CREATE INDEX i ON users (mail); "
                "ALTER TABLE users ADD COLUMN age INT"
            ),
            "SELECT id::text, tags[1], age FROM users WHERE mail ILIKE '%x' AND now = 'sad'",
            "SELECT name FROM public.users",
        ),
        (
            "sqlite",
            "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, name, UNIQUE (id, name))",
            "SELECT substr(name, 1, 2) FROM t",
            "SELECT names FROM t",
        ),
        (
            "tsql",
            (
                "CREATE TABLE [dbo].[Orders] ([Id] INT IDENTITY(1, 1) NOT NULL, [Name] NVARCHAR(MAX), "
                "CONSTRAINT [PK] PRIMARY KEY CLUSTERED ([Id] ASC))"
            ),
            "SELECT TOP 5 [Id], LEN([Name]) FROM Orders",
            "SELECT TOP 5 [Nam] FROM dbo.Orders",
        ),
        (
            "bigquery",
            "CREATE TABLE `p.d.t` (id INT64 NOT NULL, s STRUCT<a INT64>) PARTITION BY DATE(ts)",
            "SELECT s.a FROM `p.d.t`",
            "SELECT s.b FROM `p.d.t`",
        ),
        (
            "duckdb",
            "CREATE TYPE kind AS ENUM ('x'); CREATE TABLE t (id INTEGER, k kind); CREATE VIEW v AS SELECT id FROM t",
            "FROM v SELECT id",
            "FROM v SELECT k",
        ),
    ],
)
def test_the_shape_of_tables_is_read_in_each_dialect(dialect: str, ddl: str, good: str, bad: str) -> None:
    """Other dialects are translated; keys, defaults, indexes and rows of the ddl do not matter."""
    fine, wrong = errors([good, bad], ddl=ddl, dialect=dialect)
    assert fine is None
    assert wrong is not None
    assert "not found" in wrong or "Could not find" in wrong


def test_tables_and_dialect_come_from_columns() -> None:
    """Each row has its own; a text in another dialect is judged in that one."""
    texts = ["SELECT `a` FROM t", "SELECT `a` FROM t", "SELECT b FROM t", "SELECT b FROM t"]
    dialects = ["mysql", "postgres", None, "sqlite"]
    tables = ["CREATE TABLE t (a INT)"] * 3 + ["CREATE TABLE t (b INT)"]
    found = errors(
        texts,
        ddl={"column": "tables"},
        dialect={"column": "db.name"},
        tables=tables,
        db=[{"name": each} for each in dialects],
    )
    assert [each is None for each in found] == [True, False, False, True]
    assert errors(["SELECT b FROM x"], ddl="CREATE TABLE {{ name }} (b INT)", name=["x"]) == [None]


def test_unusable_settings_of_a_row_are_named() -> None:
    """They are no fault of the text, and the row is not lost."""
    found = [
        *errors(["SELECT 1"], ddl=TABLES, dialect={"column": "d"}, d=["postgre"]),
        *errors(["SELECT 1"] * 3, ddl={"column": "t"}, t=["a table of orders", None, "CREATE TABLE t (a nonsense)"]),
    ]
    assert found[0] == "dialect: sqlglot has no dialect 'postgre'; did you mean 'postgres'?"
    assert found[1] is not None
    assert found[1].startswith("ddl: cannot be parsed: ")
    assert found[2] == "ddl: is null"
    assert found[3] is not None
    assert found[3].startswith("ddl: its tables cannot be created: ")
    assert "nonsense" in found[3]


def test_unusable_settings_of_the_recipe_are_problems_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Before any row is generated; nothing is logged by the parser."""
    for ddl, problem in (
        ("orders(id)", "'orders\\(id\\)' is not a statement|'ORDERS\\(id\\)' is not a statement"),
        ("CREATE TABLE t (a nonsense)", "its tables cannot be created: .*nonsense"),
        ("CREATE TABLE t (", "cannot be parsed: "),
    ):
        with pytest.raises(ConfigError, match=rf"column 'ok': ddl: ({problem})"):
            errors([], ddl=ddl)
    with pytest.raises(ConfigError, match=r"column 'ok': ddl must be CREATE TABLE statements, a template or .*, not 3"):
        errors([], ddl=3)
    with pytest.raises(ConfigError, match=r"column 'ok': dialect must be the name of a dialect or .*, not 3"):
        errors([], dialect=3)
    with pytest.raises(ConfigError, match=r"column 'ok': ddl is for kind sql, and the kind is python"):
        Validation("ok", of="query", kind="python", ddl=TABLES)
    assert errors(["SELECT 1"], ddl="") == [None]
    assert not caplog.records
    assert logging.getLogger("sqlglot").filters == []
