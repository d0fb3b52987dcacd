"""SQL under validation: parsed by sqlglot in its dialect and, if there is a schema, bound by DuckDB against its tables.

Text that a model wrote is never executed. It is parsed and bound in a process of its own, which ends if that takes too
long. DuckDB prepares or explains each statement, without its optimizer (which would compute constants), in an empty
database in memory that reaches no file, network, extension or Python variable. Of the `ddl` only the shape is created:
tables with the names, types and unique columns, and views.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs

from ..graph import nearest
from .code import import_extra
from .sql_process import SECONDS, Workers, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType

_MAX_LENGTH = 200_000
# Databases that are kept for the next text with the same tables: creating one takes 20 ms.
_MAX_IDLE = 4
_OPTIONS: Mapping[str, Any] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "memory_limit": "256MB",
    "threads": "1",
}
# Types of other dialects that DuckDB names otherwise; whatever else it lacks is text.
_TYPES = {"SERIAL": "INT", "BIGSERIAL": "BIGINT", "SMALLSERIAL": "SMALLINT", "MONEY": "DECIMAL(19, 4)", "YEAR": "INT"}
# Errors after which a database can be used for the next text.
_HARMLESS = ("BinderException", "CatalogException", "ParserException")
_NO_TABLE = re.compile(r'Catalog Error: Table with name "?(?P<name>.+?)"? does not exist\b')
_NAME = re.compile(r"[A-Za-z_]\w*")


class SqlProblem(Exception):
    """A statement cannot be parsed, bound or used; the message says why."""

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class SqlChecker:
    """Checks texts in another process. Safe to use from several threads."""

    def __init__(self, column: str) -> None:
        self._sqlglot: Any = import_extra("sqlglot", extra="sql", column=column)

    def dialect_problem(self, dialect: str) -> str | None:
        """The problem with the name of a dialect; None if sqlglot has it."""
        known = sorted(filter(None, self._sqlglot.Dialect.classes))
        return None if dialect in known else f"sqlglot has no dialect {dialect!r}{nearest(dialect, known)}"

    def problems(self, text: str, *, dialect: str | None, ddl: str | None) -> list[SqlProblem]:
        """The problems of a text; with `ddl` it is bound, and read as DuckDB's if it has no dialect.

        Raises `SqlProblem` if `ddl` itself cannot be used.
        """
        return _ask(text, dialect, ddl)

    def check_ddl(self, ddl: str, dialect: str | None) -> None:
        """Raise `SqlProblem` if tables cannot be created from a text."""
        _ask(None, dialect, ddl)


def _ask(text: str | None, dialect: str | None, ddl: str | None) -> list[SqlProblem]:
    by_default = "" if ddl is None else "duckdb"
    answer = _workers().ask({"text": text, "dialect": dialect or by_default, "ddl": ddl})
    if answer is None:
        problem = SqlProblem(f"checking it takes more than {SECONDS:g} s or too much memory")
        if text is None:
            raise problem
        return [problem]
    if "unusable" in answer:
        raise SqlProblem(answer["unusable"])
    return [SqlProblem(message, line=line, column=column) for message, line, column in answer["problems"]]


@functools.lru_cache(maxsize=1)
def _workers() -> Workers:
    return Workers(__name__)


class _Parser:
    """Parses with sqlglot, and binds in databases that it keeps for the next text."""

    def __init__(self, sqlglot: Any) -> None:
        self._sqlglot = sqlglot
        self._idle: list[_Database] = []

    def check(self, text: str | None, dialect: str, ddl: str | None) -> list[SqlProblem]:
        """The problems of a text, with these tables if they are given; without a text the tables are created only."""
        if ddl is None:
            return [] if text is None else self.parse(text, dialect)[1]
        with self._database(ddl, dialect) as database:
            if text is None:
                return []
            statements, problems = self.parse(text, dialect)
            return problems or database.problems(text, statements)

    def parse(self, text: str, dialect: str) -> tuple[list[Any], list[SqlProblem]]:
        """The statements of a text, and its problems."""
        if len(text) > _MAX_LENGTH:
            return [], [SqlProblem(f"has {len(text)} characters; at most {_MAX_LENGTH} are read")]
        errors, exp = self._sqlglot.errors, self._sqlglot.exp
        try:
            # It logs a warning for every statement that it does not parse; the verdict has one already.
            with _no_warnings_of("sqlglot"):
                statements = [each for each in self._sqlglot.parse(text, read=dialect) if each is not None]
        except errors.ParseError as error:
            found = [SqlProblem(each["description"], line=each["line"], column=each["col"]) for each in error.errors]
            return [], found or [SqlProblem(str(error))]
        except errors.TokenError as error:
            return [], [SqlProblem(str(error))]
        except RecursionError:
            return [], [SqlProblem("nested too deeply")]
        if not statements:
            return [], [SqlProblem("contains no statement")]
        problems = []
        for each in statements:
            if isinstance(each, exp.Condition | exp.Alias):  # "hello world" is a column and its alias
                problems.append(SqlProblem(f"{each.sql()[:80]!r} is an expression, not a statement"))
            elif isinstance(each, exp.Command):
                problems.append(
                    SqlProblem(f"{each.name or 'the statement'} is not understood, so it cannot be checked")
                )
        return statements, problems

    @contextmanager
    def _database(self, ddl: str, dialect: str) -> Iterator[_Database]:
        """A database with the tables of `ddl`."""
        found = next((each for each in self._idle if (each.ddl, each.dialect) == (ddl, dialect)), None)
        if found is not None:
            self._idle.remove(found)
        database = found or self._create_database(ddl, dialect)
        surplus: _Database | None = database
        try:
            yield database
            if database.is_usable:
                self._idle.append(database)
                surplus = self._idle.pop(0) if len(self._idle) > _MAX_IDLE else None
        finally:
            if surplus is not None:
                surplus.connection.close()

    def _create_database(self, ddl: str, dialect: str) -> _Database:
        statements: list[Any] = []
        if ddl.strip():
            if len(ddl) > _MAX_LENGTH:
                raise SqlProblem(f"has {len(ddl)} characters; at most {_MAX_LENGTH} are read")
            statements = self._ddl_statements(ddl, dialect)
        database = _Database.open(self._sqlglot, ddl, dialect)
        try:
            with _no_warnings_of("sqlglot"):
                database.create(statements)
        except BaseException:
            database.connection.close()
            raise
        return database

    def _ddl_statements(self, ddl: str, dialect: str) -> list[Any]:
        exp = self._sqlglot.exp
        try:
            with _no_warnings_of("sqlglot"):
                statements = [each for each in self._sqlglot.parse(ddl, read=dialect) if each is not None]
                for index, each in enumerate(statements):
                    if isinstance(each, exp.Command) and each.name.upper() in ("CREATE", "ALTER", "DROP"):
                        # sqlglot parses CREATE TYPE in the dialect of Postgres only.
                        statements[index] = self._sqlglot.parse_one(each.sql(), read="postgres")
        except (self._sqlglot.errors.SqlglotError, RecursionError) as error:
            raise SqlProblem(f"cannot be parsed: {_plain(error)}") from error
        for each in statements:
            if isinstance(each, exp.Condition | exp.Alias):
                raise SqlProblem(f"{each.sql()[:80]!r} is not a statement")
            if isinstance(each, exp.Command) and each.name.upper() in ("CREATE", "ALTER", "DROP"):
                raise SqlProblem(f"{each.sql()[:80]!r} is not understood")
        return statements


@attrs.define(eq=False)
class _Database:
    """An empty database in memory with the tables of one `ddl`. Used by one thread at a time."""

    sqlglot: Any
    ddl: str
    dialect: str
    connection: Any
    # False after an error that may have damaged it.
    is_usable: bool = True
    _is_locked: bool = False
    _schemas: list[str] = attrs.field(factory=lambda: ["main"])

    @classmethod
    def open(cls, sqlglot: Any, ddl: str, dialect: str) -> _Database:
        connection = _duckdb().connect(":memory:", config=dict(_OPTIONS))
        # Without this a table could be a variable of Python.
        connection.execute("SET python_enable_replacements = false")
        # It would compute constants, such as a text of a gigabyte.
        connection.execute("PRAGMA disable_optimizer")
        return cls(sqlglot, ddl, dialect, connection)

    def create(self, statements: Sequence[Any]) -> None:
        """Create the tables and views of the `ddl`; then no option can be changed any more."""
        try:
            for each in statements:
                self._declare(each)
            self.connection.execute("SET lock_configuration = true")
            self._is_locked = True
        except _duckdb().Error as error:
            raise SqlProblem(f"its tables cannot be created: {_plain(error)}") from error

    def problems(self, text: str, statements: Sequence[Any]) -> list[SqlProblem]:
        """The first problem of statements that are bound in turn; later ones see what earlier ones create."""
        duckdb, connection = _duckdb(), self.connection
        try:
            with _no_warnings_of("sqlglot"):
                texts = self._texts(text, statements)
                connection.execute("BEGIN TRANSACTION")
                for statement, bound in zip(statements, texts, strict=True):
                    self._bind(statement, bound)
                    if statement is not statements[-1] and isinstance(statement, self._changes):
                        self._declare(statement)
        except SqlProblem as problem:
            return [problem]
        except self.sqlglot.errors.SqlglotError as error:
            return [SqlProblem(f"cannot be translated from {self.dialect} to DuckDB: {_plain(error)}")]
        except duckdb.Error as error:
            self.is_usable = type(error).__name__ in _HARMLESS
            return [SqlProblem(self._with_tables(_plain(error)))]
        finally:
            with suppress(duckdb.Error):
                connection.execute("ROLLBACK")
        return []

    def _with_tables(self, message: str) -> str:
        """The message about a table that does not exist with those that do, in place of a system table."""
        found = _NO_TABLE.match(message)
        if found is None:
            return message
        names = "SELECT table_name FROM duckdb_tables() UNION SELECT view_name FROM duckdb_views() WHERE NOT internal"
        with suppress(_duckdb().Error):
            self.connection.execute("ROLLBACK")  # it failed, and a new one sees what the ddl created
        known = sorted(name for (name,) in self.connection.execute(names).fetchall())
        return f"{found[0]}{nearest(found['name'], known)}"

    @property
    def _changes(self) -> tuple[type, ...]:
        exp = self.sqlglot.exp
        return (exp.Create, exp.Alter, exp.Drop)

    def _texts(self, text: str, statements: Sequence[Any]) -> list[str]:
        """Each statement in DuckDB's dialect: as it is written, or translated by sqlglot."""
        if self.dialect == "duckdb":
            found = [each.query for each in _duckdb().extract_statements(text)]
            if len(found) == len(statements):
                return found
        return [self._translated(each) for each in statements]

    def _translated(self, statement: Any) -> str:
        statement = statement.copy()
        for table in statement.find_all(self.sqlglot.exp.Table):
            table.set("catalog", None)  # of databases there is one
        # Quoted, because a name may be a word of DuckDB; it ignores the case of quoted names too.
        text: str = statement.sql(dialect="duckdb", identify=True)
        return text

    def _bind(self, statement: Any, text: str) -> None:
        exp = self.sqlglot.exp
        if isinstance(statement, exp.Query | exp.Values | exp.Insert | exp.Update | exp.Delete | exp.TruncateTable):
            self._check_arguments(statement)
            self.connection.execute(f"PREPARE checked AS {text}")
            self.connection.execute("DEALLOCATE checked")
        elif isinstance(statement, (*self._changes, exp.Merge)):
            self._check_arguments(statement)
            self.connection.execute(f"EXPLAIN {text}")
        else:
            raise SqlProblem(f"{statement.key.upper()} reads and writes no table of the ddl, so it cannot be bound")

    def _check_arguments(self, statement: Any) -> None:
        """Reject arguments of table functions that are computed while a statement is bound."""
        exp = self.sqlglot.exp
        cheap = (exp.Cast, exp.CurrentDate, exp.CurrentTimestamp, exp.Array, exp.Struct, exp.Interval)
        for table in statement.find_all(exp.Table, exp.Lateral):
            if not isinstance(table.this, exp.Func):
                continue
            for call in table.this.find_all(exp.Func):
                is_argument = call is not table.this and not isinstance(call, cheap)
                if is_argument and call.find(exp.Column) is None:
                    raise SqlProblem(f"{call.sql(dialect=self.dialect)[:80]} is computed in the argument of a table")

    def _declare(self, statement: Any) -> None:
        """Create the shape of a table or view, or change it; whatever else a `ddl` has does not matter for binding."""
        exp = self.sqlglot.exp
        if isinstance(statement, exp.Create):
            kind = str(statement.args.get("kind") or "").upper()
            if kind in ("TYPE", "SCHEMA", "MACRO"):
                self._run(statement)
                if kind == "SCHEMA":
                    self._note_schema(statement.this.db or statement.this.name)
            elif kind in ("TABLE", "VIEW"):
                self._declare_table(statement)
        elif isinstance(statement, exp.Drop):
            if str(statement.args.get("kind")).upper() in ("TABLE", "VIEW", "TYPE", "SCHEMA"):
                self._run(statement)
        elif isinstance(statement, exp.Alter):
            actions = statement.args.get("actions") or []
            if not all(isinstance(each, exp.AddConstraint) for each in actions):
                self._run(statement)

    def _run(self, statement: Any) -> None:
        self.connection.execute(self._translated(statement))

    def _note_schema(self, name: str) -> None:
        # Tables of all schemas are found without it, as they are with the search path of most databases.
        if name not in self._schemas and _NAME.fullmatch(name) and not self._is_locked:
            self._schemas.append(name)
            self.connection.execute(f"SET search_path = '{','.join(self._schemas)}'")

    def _declare_table(self, statement: Any) -> None:
        exp = self.sqlglot.exp
        schema = statement.this if isinstance(statement.this, exp.Schema) else None
        table = statement.this if schema is None else schema.this
        if table.db:
            self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(table.db)}")
            self._note_schema(table.db)
        query = statement.expression
        replaces = bool(statement.args.get("replace"))
        if query is not None:
            # A view of the query: CREATE TABLE … AS would run it.
            self._run(
                exp.Create(
                    this=table if isinstance(query, exp.Query) and schema is None else statement.this,
                    kind="VIEW",
                    expression=query,
                    replace=replaces,
                    exists=statement.args.get("exists"),
                )
            )
            return
        if schema is None:
            raise SqlProblem(f"{statement.sql(dialect=self.dialect)[:80]!r} lists no columns")
        name = ".".join(_quoted(part) for part in (table.db, table.name) if part)
        create = "CREATE OR REPLACE TABLE" if replaces else "CREATE TABLE"
        create += " IF NOT EXISTS" if statement.args.get("exists") else ""
        self.connection.execute(f"{create} {name} ({', '.join(self._parts(schema))})")

    def _parts(self, schema: Any) -> Iterator[str]:
        """The columns of a table, and which of them are unique together: INSERT … ON CONFLICT refers to that."""
        exp = self.sqlglot.exp
        unique = (exp.PrimaryKey, exp.PrimaryKeyColumnConstraint, exp.UniqueColumnConstraint)
        names: set[str] = set()
        for each in schema.expressions:
            if isinstance(each, exp.ColumnDef | exp.Identifier):
                names.add(each.name)
                is_unique = isinstance(each, exp.ColumnDef) and any(
                    isinstance(constraint.args.get("kind"), unique) for constraint in each.args.get("constraints") or []
                )
                kind = each.args.get("kind") if isinstance(each, exp.ColumnDef) else None
                yield f"{_quoted(each.name)} {self._type(kind)}{' UNIQUE' if is_unique else ''}"
        for each in schema.expressions:
            if not isinstance(each, exp.ColumnDef | exp.Identifier) and each.find(*unique) is not None:
                together = [found.name for found in each.find_all(exp.Identifier) if found.name in names]
                if together and each.find(exp.ForeignKey) is None:
                    yield f"UNIQUE ({', '.join(map(_quoted, dict.fromkeys(together)))})"

    def _type(self, kind: Any) -> str:
        """The type of a column in DuckDB; text if the type of another dialect is unknown there."""
        if kind is None:
            return "VARCHAR"
        found: str = kind.sql(dialect="duckdb")
        found = _TYPES.get(found.upper(), found)
        if self.dialect == "duckdb":
            return found
        try:
            self.connection.execute(f"PREPARE type AS SELECT CAST(NULL AS {found})")
            self.connection.execute("DEALLOCATE type")
        except _duckdb().Error:
            return "VARCHAR"
        return found


def _duckdb() -> ModuleType:
    import duckdb  # noqa: PLC0415  slow to import

    return duckdb


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_ESCAPES = re.compile(r"\x1b\[\d*m")


def _plain(error: BaseException) -> str:
    """The message of an error without the excerpt of the text, which has the words of this module too."""
    text = _ESCAPES.sub("", str(error)).partition("\n\nLINE ")[0]
    return " ".join(text.split())[:500]


@contextmanager
def _no_warnings_of(name: str) -> Iterator[None]:
    """Drop the warnings that this thread logs with the logger of another library."""
    here = threading.get_ident()
    logger = logging.getLogger(name)

    def is_logged(record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING or threading.get_ident() != here

    logger.addFilter(is_logged)
    try:
        yield
    finally:
        logger.removeFilter(is_logged)


def _main() -> None:
    import sqlglot  # noqa: PLC0415  slow to import

    parser = _Parser(sqlglot)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        try:
            found = parser.check(request["text"], request["dialect"], request["ddl"])
        except SqlProblem as unusable:
            return {"unusable": str(unusable)}
        except (RecursionError, MemoryError):
            found = [SqlProblem("too deep or too large")]
        return {"problems": [(str(each), each.line, each.column) for each in found]}

    serve(answer)


if __name__ == "__main__":
    _main()
