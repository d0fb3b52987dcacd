"""Generators of a column: their forms, their arguments, and where they run."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio

from seedbed import CellContext, Column, ConfigError, DatasetGenerationError, RunConfig, open_build
from seedbed.engine.plan import plan_build
from seedbed.engine.source import make_source
from seedbed.graph import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl
    from trio.testing import MockClock

    import seedbed


def numbers(rows: range) -> list[int]:
    """The row numbers."""
    return list(rows)


def seeds(*names: str) -> list[Column]:
    """Columns from scratch."""
    return [Column(name, numbers, kind="from_scratch") for name in names]


async def values(column: Column, *needs: str, rows: int = 2, **options: Any) -> list[Any]:
    """The values of a column over seeds of these names."""
    async with open_build([*seeds(*(needs or ("n",))), column], rows=rows, config=RunConfig(**options)) as build:
        frames = [group.to_polars() async for group in build]
        assert build.report.dropped == (), build.report.drops_by_reason
    return frames[0][column.outputs[0]].to_list()


def problem(column: Column) -> str:
    """The problem that the start-up check reports for a column."""
    with pytest.raises(DatasetGenerationError) as raised:
        plan_build(make_source([*seeds("a", "b"), column], config=RunConfig()), rows=1)
    (text,) = raised.value.problems
    return text


class OnlyGenerate:
    def generate(self, n: int) -> int:
        return n + 1


class OnlyAgenerate:
    async def agenerate(self, n: int) -> int:
        await trio.sleep(1)
        return n + 2


class Both:
    def generate(self, n: int) -> int:
        raise AssertionError("agenerate is preferred")

    async def agenerate(self, n: int) -> int:
        return n + 3


class Callable_:  # noqa: N801  an object that can be called
    def __call__(self, n: int) -> int:
        return n + 4


class AsyncCallable:
    async def __call__(self, n: int) -> int:
        return n + 5


class Neither:
    def make(self, n: int) -> int:
        return n


def plus(n: int, amount: int) -> int:
    """To be bound by functools."""
    return n + amount


class TestGenerators:
    @pytest.mark.parametrize(
        ("generator", "expected"),
        [
            (OnlyGenerate(), [1, 2]),
            (OnlyAgenerate(), [2, 3]),
            (Both(), [3, 4]),
            (Callable_(), [4, 5]),
            (AsyncCallable(), [5, 6]),
            (OnlyGenerate().generate, [1, 2]),
            (functools.partial(plus, amount=6), [6, 7]),
            (lambda n: n + 7, [7, 8]),
        ],
    )
    async def test_either_method_of_a_generator_is_enough(
        self, autojump_clock: MockClock, generator: object, expected: list[int]
    ) -> None:
        """Functions, bound methods, partials and objects with either method fill a column."""
        assert await values(Column("v", generator)) == expected

    @pytest.mark.parametrize(
        ("generator", "what"),
        [
            (Neither(), "Neither object"),
            (3, "has 3 as its generator"),
            (None, "has None as its generator"),
            ("text", "has 'text' as its generator"),
        ],
    )
    def test_a_generator_without_methods_is_a_problem(self, generator: object, what: str) -> None:
        """An object that cannot fill a column is rejected before a run."""
        text = problem(Column("v", generator))
        assert text.startswith("column 'v' has ")
        assert what in text
        assert text.endswith("which is not a function and has neither generate nor agenerate")

    @pytest.mark.parametrize("generator", [OnlyGenerate, OnlyAgenerate, Callable_, Neither])
    def test_a_class_in_place_of_an_instance(self, generator: type) -> None:
        """A class is rejected as a class, even if it has the methods of a generator."""
        text = problem(Column("v", generator))
        assert text == f"column 'v' has the class {generator.__name__} as its generator; give it an instance"

    async def test_sync_code_runs_in_a_thread_and_async_code_on_the_loop(self) -> None:
        """A synchronous function does not block the event loop."""
        where: dict[str, threading.Thread] = {}

        def sync(n: int) -> int:
            where["sync"] = threading.current_thread()
            return n

        async def on_loop(n: int) -> int:
            where["async"] = threading.current_thread()
            return n

        await values(Column("v", sync))
        await values(Column("v", on_loop))
        assert where["sync"] is not threading.main_thread()
        assert where["async"] is threading.main_thread()

    def test_is_stateful_of_column_and_generator(self) -> None:
        """The setting of the column takes precedence over that of its generator."""

        class Stateful(OnlyGenerate):
            is_stateful = True

        assert Column("v", Stateful()).is_stateful
        assert not Column("v", Stateful(), is_stateful=False).is_stateful
        assert Column("v", OnlyGenerate(), is_stateful=True).is_stateful
        assert not Column("v", OnlyGenerate()).is_stateful


def nothing() -> list[int]:
    """Take no argument."""
    return []


class Unreadable:
    """A function that lies about its parameters."""

    __signature__ = "none"

    def __call__(self, n: int) -> int:
        return n


class TestSignatures:
    @pytest.mark.parametrize(
        ("function", "requires", "expected"),
        [
            (lambda a, b: (a, b), None, ("a", "b")),
            (lambda b, a: (a, b), None, ("b", "a")),
            (lambda a, *, b: (a, b), None, ("a", "b")),
            (lambda a, b=1: (a, b), ["a", "b"], ("a", "b")),
            (lambda a, c=7, *, b: (a, b), None, ("a", "b")),
            (lambda a, c=7, b=1: (a, b), ["b", "a"], ("b", "a")),
            (lambda **named: (named["a"], named["b"]), ["a", "b"], ("a", "b")),
            (lambda a, **named: (a, named["b"]), ["a", "b"], ("a", "b")),
            (lambda a, b, *rest, **named: (a, b), None, ("a", "b")),
        ],
    )
    async def test_parameters_are_requirements(
        self, function: Callable[..., Any], requires: list[str] | None, expected: tuple[str, ...]
    ) -> None:
        """Parameters without a default are required; names given besides go to defaults or to `**`."""
        column = Column("v", function, requires=requires)
        assert column.problem is None
        assert column.requires == expected

        def tens(rows: range) -> list[int]:
            return [10 * row for row in rows]

        columns = [*seeds("a"), Column("b", tens, kind="from_scratch"), column]
        async with open_build(columns, rows=3) as build:
            (frame,) = [group.to_polars() async for group in build]
        assert [tuple(value) for value in frame["v"]] == [(0, 0), (1, 10), (2, 20)]

    async def test_a_parameter_with_a_default_is_not_required(self) -> None:
        """It is not passed, even if a column has its name."""
        column = Column("v", lambda a, b=7: a + b)
        assert column.requires == ("a",)
        assert await values(column, "a", "b") == [7, 8]

    async def test_positional_only_parameters(self) -> None:
        """They are passed by position, in their order."""

        def function(b: int, a: int, /) -> str:
            return f"{b}{a}"

        assert await values(Column("v", function), "a", "b") == ["00", "11"]

    async def test_a_default_between_requirements_is_used(self) -> None:
        """A parameter that is not required gets its default, and later parameters get their values."""

        def function(a: int, factor: int = 10, *, b: int) -> int:
            return a * factor + b

        assert await values(Column("v", function), "a", "b") == [0, 11]

    @pytest.mark.parametrize("requires", [None, ["a"], ["a", "b"]])
    async def test_a_context_is_not_a_requirement(self, requires: list[str] | None) -> None:
        """A parameter annotated CellContext gets the context, also if annotations are text."""

        def function(a: int, context: CellContext, **named: int) -> str:
            return f"{context.column}:{a}:{sorted(named)}"

        column = Column("v", function, requires=requires)
        assert column.requires == tuple(requires or ["a"])
        made = await values(column, "a", "b")
        assert made[1] == f"v:1:{['b'] if requires == ['a', 'b'] else []}"

    async def test_a_context_annotated_by_a_name_that_cannot_be_resolved(self) -> None:
        """An annotation that cannot be evaluated is compared by its last name."""

        def function(context: seedbed.CellContext, a: int) -> str:
            return f"{context.column}:{a}"

        assert await values(Column("v", function), "a") == ["v:0", "v:1"]

    async def test_a_context_by_keyword_or_position(self) -> None:
        """It is passed once, wherever the parameter is."""

        async def keyword(a: int, *, context: CellContext) -> str:
            return f"{context.column}{a}"

        async def first(context: CellContext, /, a: int) -> str:
            return f"{context.column}{a}"

        assert await values(Column("v", keyword), "a") == ["v0", "v1"]
        assert await values(Column("w", first), "a") == ["w0", "w1"]

    def test_a_requirement_without_a_parameter_is_a_problem(self) -> None:
        """A requirement that the function does not take is not ignored."""
        assert problem(Column("v", lambda a: a, requires=["a", "b"])) == (
            "column 'v' requires 'b', which its function does not take"
        )

    def test_a_parameter_that_is_not_required_is_a_problem(self) -> None:
        """A function with more parameters than required columns cannot be called."""
        assert problem(Column("v", lambda a, b: a, requires=["a"])) == "column 'v' wants 'b', which it does not require"

    def test_two_contexts_are_a_problem(self) -> None:
        """A function has at most one parameter for the context."""

        def function(one: CellContext, two: CellContext) -> int:
            return 0

        assert problem(Column("v", function)) == "column 'v' has 2 parameters for the context; one is enough"

    @pytest.mark.parametrize(
        ("kind", "function", "text"),
        [
            ("full_column", nothing, "its frame, but its function wants nothing"),
            ("full_column", lambda frame, other: [], "its frame, but its function wants frame, other"),
            ("from_scratch", nothing, "its rows (a range), but its function wants nothing"),
        ],
    )
    def test_whole_columns_take_one_argument(self, kind: str, function: Callable[..., Any], text: str) -> None:
        """A function for a whole group takes its frame or its rows and nothing else that has no default."""
        assert problem(Column("v", function, kind=kind)) == f"column 'v' is called with one argument, {text}"

    def test_a_function_without_a_signature(self) -> None:
        """An unreadable signature is a reported problem and not a traceback."""
        assert problem(Column("v", Unreadable())).startswith(
            "column 'v' has a function whose parameters cannot be read"
        )

    def test_an_unknown_kind_is_rejected(self) -> None:
        """The message lists the known kinds."""
        with pytest.raises(ConfigError, match="kind must be one of 'from_scratch', 'cell', 'full_column', not 'row'"):
            Column("v", len, kind="row")

    def test_kinds_and_names_have_short_forms(self) -> None:
        """One name stands for a tuple of it, and a kind is the enum or its value."""
        column = Column("v", lambda x: x, requires="x", kind=Kind.CELL, side_effects="v__trace", retry_on=KeyError)
        assert (column.requires, column.side_effects, column.retry_on) == (("x",), ("v__trace",), (KeyError,))
        assert column.outputs == ("v",)


class TestValues:
    async def test_nested_values_are_copies(self, autojump_clock: MockClock) -> None:
        """A cell function that changes its arguments does not change the values of other cells."""

        def nested(rows: range) -> list[dict[str, Any]]:
            return [{"tags": ["a"], "n": row} for row in rows]

        async def spoil(doc: dict[str, Any]) -> int:
            doc["tags"].append("spoiled")
            doc["n"] = -1
            return len(doc["tags"])

        async def read(doc: dict[str, Any], spoiled: int) -> str:
            return f"{doc['tags']}{doc['n']}"

        async with open_build(
            [
                Column("doc", nested, kind="from_scratch"),
                Column("spoiled", spoil),
                Column("seen", read),
            ],
            rows=2,
        ) as build:
            (frame,) = [group.to_polars() async for group in build]
        assert frame["spoiled"].to_list() == [2, 2]
        assert frame["seen"].to_list() == ["['a']0", "['a']1"]
        assert frame["doc"].to_list() == [{"tags": ["a"], "n": 0}, {"tags": ["a"], "n": 1}]

    async def test_a_whole_column_gets_the_required_columns(self) -> None:
        """Its frame has the required columns, in the order in which they are required, and no others."""

        def whole(frame: pl.DataFrame) -> pl.Series:
            assert frame.columns == ["b", "a"]
            return frame["a"] * 2

        column = Column("v", whole, kind="full_column", requires=["b", "a"])
        assert await values(column, "a", "b", "c", rows=3) == [0, 2, 4]


def in_process(n: int) -> list[int]:
    """Say where this runs."""
    return [n, os.getpid()]


def crash(n: int) -> int:
    """Take the whole process down for one row."""
    if n == 1:
        os._exit(3)
    return n


def fail(n: int) -> int:
    """Raise in the other process."""
    if n == 1:
        raise ValueError(f"bad {n}")
    return n


def column_in_process(frame: pl.DataFrame) -> list[int]:
    """A whole column in another process."""
    return [os.getpid()] * frame.height


class TestProcess:
    async def test_process_columns_run_in_another_process(self) -> None:
        """Cells and whole columns with `process=True` do not run in this process."""
        made = await values(Column("v", in_process, process=True), max_processes=1)
        assert [n for n, _ in made] == [0, 1]
        assert os.getpid() not in {pid for _, pid in made}
        whole = Column("w", column_in_process, kind="full_column", requires=["n"], process=True)
        assert os.getpid() not in await values(whole, max_processes=1)

    async def test_a_crash_drops_its_row(self) -> None:
        """A process that dies drops its row; the run continues in another one."""
        async with open_build(
            [*seeds("n"), Column("v", crash, process=True)], rows=4, config=RunConfig(max_processes=1)
        ) as build:
            (frame,) = [group.to_polars() async for group in build]
        assert frame["v"].to_list() == [0, 2, 3]
        (drop,) = build.report.dropped
        assert (drop.row, drop.column, drop.attempts) == (1, "v", 1)
        assert drop.error.startswith("WorkerCrashed: the process that ran column 'v' died")

    async def test_exceptions_of_a_process_are_raised_here(self) -> None:
        """Exceptions of the process are classified like those of a thread."""
        async with open_build(
            [*seeds("n"), Column("v", fail, process=True)], rows=2, config=RunConfig(max_processes=1)
        ) as build:
            report = await build.wait()
        (reason,) = report.drops_by_reason
        assert reason.startswith("v: ValueError: bad 1 (test_column.py, line ")

    def test_a_function_that_cannot_be_pickled_is_a_problem(self) -> None:
        """Another process cannot import a local function."""

        def local(a: int) -> int:
            return a

        text = problem(Column("v", local, process=True))
        assert text.startswith("column 'v' has process=True, but its function cannot be pickled: ")

    def test_async_functions_contexts_and_state_cannot_use_a_process(self) -> None:
        """Each is a problem that names the column."""

        async def coroutine(a: int) -> int:
            return a

        with pytest.raises(DatasetGenerationError) as raised:
            plan_build(
                make_source(
                    [
                        *seeds("n"),
                        Column("one", OnlyAgenerate(), process=True),
                        Column("two", with_context, process=True),
                        Column("three", in_process, process=True, is_stateful=True),
                    ],
                    config=RunConfig(),
                ),
                rows=1,
            )
        assert raised.value.problems == (
            "column 'one' has process=True with an async function; processes run sync functions only",
            "column 'two' has process=True, but its function takes a context; processes have none",
            "column 'three' is stateful and has process=True; a process would lose its state",
        )


def with_context(n: int, context: CellContext) -> int:
    """Take an argument that cannot be pickled."""
    return n
