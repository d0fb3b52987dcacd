from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from naive import NaiveFailure, run_naively
from plan_helpers import INLINE, node, open_engine, plan_of, with_ops
from trio.testing import MockClock

from seedbed.errors import InvalidPlan, NodeFailed, NodeTimeout, PlanError, RequestDeadlineExceeded
from seedbed.plans import ops
from seedbed.plans.opspec import OpSpec, Rows
from seedbed.plans.registries import Key, KeyType, Registries, default_registries
from seedbed.plans.request import Request

if TYPE_CHECKING:
    from seedbed.plans.format import Plan
    from seedbed.plans.opspec import OpContext
    from seedbed.plans.rowset import RowSet

PROBABILITY = 4001
_DEFAULT = default_registries()
REGISTRIES = Registries(
    keys={
        **_DEFAULT.keys,
        PROBABILITY: Key(id=PROBABILITY, name="probability", type=KeyType.FLOAT, nullable=True),
    },
    params=_DEFAULT.params,
    endpoints=_DEFAULT.endpoints,
)
FLOATS = [1001, 2001, PROBABILITY]
STRINGS = [3001, 3002]
# Few values, so that there are ties and matches; and those at which arithmetic ends.
NUMBERS = st.sampled_from([0, 1, -1, 2, 5, 0.5, -0.0, 2.5, 1e308, -1e308, 2**53 + 1])
TEXTS = st.sampled_from(["", "a", "b", "ab", "US", "us", "é", "a\nb"])
PATTERNS = st.sampled_from(["", "a", "^a", "b$", "(a|u)+", "[A-Z]", "x*"])
TABLES: dict[str, list[dict[int, Any]]] = {}


async def _table(inputs: tuple[RowSet, ...], params: Any, ctx: OpContext) -> RowSet:
    rows = TABLES[ctx.node_id]
    keys = [key for key in (rows[0] if rows else {}) if key != 1]
    return ctx.new_rows([row[1] for row in rows], {key: [row[key] for row in rows] for key in keys})


OPS = with_ops(
    OpSpec(
        name="t::table",
        inputs=(0, 0),
        gives=Rows.NEW,
        writes=frozenset(REGISTRIES.keys),
        run_async=_table,
    )
)


def expressions() -> st.SearchStrategy[dict[str, Any]]:
    """Trees that give numbers."""
    leaves = (
        NUMBERS.map(lambda value: {"op": "const_number", "value": value})
        | st.just({"op": "const_null"})
        | st.sampled_from([1, *FLOATS]).map(lambda key: {"op": "key_ref", "key_id": key})
        | st.sampled_from([1, 3]).map(lambda param: {"op": "param_ref", "param_id": param})
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(
                lambda op, a, b: {"op": op, "a": a, "b": b},
                st.sampled_from(["add", "sub", "mul", "coalesce"]),
                inner,
                inner,
            )
            | inner.map(lambda x: {"op": "neg", "x": x})
        ),
        max_leaves=5,
    )


def texts() -> st.SearchStrategy[dict[str, Any]]:
    """Trees that give strings."""
    key = st.sampled_from(STRINGS).map(lambda key: {"op": "key_ref", "key_id": key})
    leaf = key | st.just({"op": "param_ref", "param_id": 2})
    return leaf | st.builds(lambda a, b: {"op": "coalesce", "a": a, "b": b}, key, leaf)


def comparisons(sides: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Comparisons of two such values."""
    return st.builds(
        lambda cmp, a, b: {"op": "cmp", "cmp": cmp, "a": a, "b": b},
        st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
        sides,
        sides,
    )


def predicates() -> st.SearchStrategy[dict[str, Any]]:
    """Trees that are true or false."""
    numbers, strings = expressions(), texts()
    leaves = (
        st.booleans().map(lambda value: {"op": "const_bool", "value": value})
        | comparisons(numbers)
        | comparisons(strings)
        | st.builds(lambda op, x: {"op": op, "x": x}, st.sampled_from(["is_null", "not_null"]), numbers | strings)
        | st.builds(
            lambda lhs, listed: {"op": "in", "lhs": lhs, "list": listed}, numbers, st.lists(NUMBERS, min_size=1)
        )
        | st.builds(lambda lhs, listed: {"op": "in", "lhs": lhs, "list": listed}, strings, st.lists(TEXTS, min_size=1))
        | st.builds(
            lambda key, pattern, flags: {"op": "regex", "key_id": key, "pattern": pattern, "flags": flags},
            st.sampled_from(STRINGS),
            PATTERNS.map(lambda value: {"kind": "literal", "value": value}) | st.just({"kind": "param", "param_id": 2}),
            st.sampled_from(["", "i"]),
        )
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(lambda op, a, b: {"op": op, "a": a, "b": b}, st.sampled_from(["and", "or"]), inner, inner)
            | inner.map(lambda x: {"op": "not", "x": x})
        ),
        max_leaves=4,
    )


@st.composite
def tables(draw: st.DrawFn) -> list[dict[int, Any]]:
    """Rows with some of the columns."""
    columns: dict[int, st.SearchStrategy[Any]] = {1: st.integers(0, 6) | st.just(2**53 + 1)}
    finite = NUMBERS.map(float)
    optional: dict[int, st.SearchStrategy[Any]] = {
        1001: finite,
        PROBABILITY: finite | st.none(),
        3001: TEXTS | st.none(),
        3002: st.none() | TEXTS,
    }
    for key in draw(st.lists(st.sampled_from(sorted(optional)), unique=True)):
        columns[key] = optional[key]
    # A few rows for what can go wrong with one, and sometimes enough of them for the first to be found by partition.
    rows = draw(st.lists(st.fixed_dictionaries(columns), max_size=8))
    return rows * draw(st.sampled_from([1, 1, 1, 250]))


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, dict[str, list[dict[int, Any]]]]:
    """A plan of the CPU ops over one or two tables, and the tables."""
    sources = [f"s{number}" for number in range(draw(st.integers(1, 2)))]
    nodes = [node(name, "t::table") for name in sources]
    names = list(sources)
    exprs: dict[str, Any] = {}
    preds: dict[str, Any] = {}
    # Mostly chains, because those are fused.
    policies = st.sampled_from([None, None, "fail", "empty", "default"])
    behind = st.just(-1) | st.just(-1) | st.integers(0, 3)
    for number in range(draw(st.integers(1, 7))):
        name = f"n{number}"
        at = names[max(-len(names), min(draw(behind), len(names) - 1))]
        op = draw(st.sampled_from(["vm", "filter", "sort", "take", "concat", "dedupe", "join"]))
        if op == "vm":
            exprs[name] = draw(expressions())
            out = draw(st.sampled_from(FLOATS))
            nodes.append(node(name, op, at, out_key=out, expr_id=name, on_error=draw(policies)))
        elif op == "filter":
            preds[name] = draw(predicates())
            nodes.append(node(name, op, at, pred_id=name))
        elif op == "sort":
            by = draw(st.sampled_from([1, *FLOATS, *STRINGS]))
            nodes.append(node(name, op, at, by=by, order=draw(st.sampled_from(["asc", "desc"]))))
        elif op == "take":
            nodes.append(node(name, op, at, count=draw(st.integers(1, 12))))
        elif op == "dedupe":
            params: dict[str, Any] = {"by": draw(st.sampled_from([1, *FLOATS, *STRINGS]))}
            if draw(st.booleans()):
                params |= {"keep": "best", "score": draw(st.sampled_from([1, *FLOATS]))}
            nodes.append(node(name, op, at, **params))
        else:
            on_error = draw(policies) if op == "join" else None
            nodes.append(node(name, op, at, rhs=draw(st.sampled_from(names)), on_error=on_error))
        names.append(name)
    outputs = [names[-1], *draw(st.lists(st.sampled_from(names), max_size=1))]
    try:
        plan = plan_of(
            *nodes,
            outputs=list(dict.fromkeys(outputs)),
            expressions=exprs,
            predicates=preds,
            ops=OPS,
            registries=REGISTRIES,
        )
    except InvalidPlan as invalid:
        # Expressions that are null or infinite whatever the row, where a value is needed.
        if any(code not in ("TYPE_MISMATCH", "NOT_FINITE") for code, _, _ in invalid.problems):
            raise
        reject()
    return plan, {name: draw(tables()) for name in sources}


def named(row: dict[int, Any]) -> dict[str, Any]:
    """A naive row as a candidate."""
    return {"id": row[1], "fields": {REGISTRIES.keys[key].name: value for key, value in row.items() if key != 1}}


# Everything on the loop; everything in threads; and what the machine says.
MODES = [
    ("off", INLINE),
    ("auto", INLINE),
    ("auto", attrs.evolve(INLINE, hop=0.0)),
]


# `nox -s properties` compares 20,000 plans.
COMPARED = 20_000 if settings.default.max_examples > 1_000 else settings.default.max_examples


@settings(max_examples=COMPARED)
@given(
    made=plans(),
    weight=st.none() | NUMBERS.map(float),
    blocked=st.none() | PATTERNS,
)
def test_every_mode_agrees_with_a_naive_interpreter(
    made: tuple[Plan, dict[str, list[dict[int, Any]]]], weight: float | None, blocked: str | None
) -> None:
    """In all fusion modes rows, nulls, ties, order and failures are those of running the plan row by row."""
    plan, tables = made
    params = {1: weight, 2: blocked, 3: 2.5}
    request = Request(user_id=1, param_overrides=params)
    try:
        expected: Any = [named(row) for row in run_naively(plan, params, tables)]
        failing: frozenset[str] = frozenset()
    except NaiveFailure as failure:
        expected, failing = None, failure.nodes
    TABLES.clear()
    TABLES.update(tables)

    async def main() -> None:
        for fusion, costs in MODES:
            async with open_engine(costs=costs, ops=OPS) as engine:
                if expected is None:
                    with pytest.raises(NodeFailed) as caught:
                        await engine.execute(plan, request, fusion=fusion)
                    assert caught.value.node in failing
                else:
                    response = await engine.execute(plan, request, fusion=fusion)
                    assert response.candidates == expected

    trio.run(main)


@st.composite
def faulty_plans(draw: st.DrawFn) -> Plan:
    """A plan of nodes that sleep and may fail, in any shape, some with a policy, all cheap on the CPU."""
    nodes = [node("n0", "sleep", duration_ms=draw(st.integers(0, 20)))]
    for number in range(1, draw(st.integers(2, 9))):
        name, at = f"n{number}", f"n{draw(st.integers(max(0, number - 3), number - 1))}"
        on_error = draw(st.sampled_from([None, None, "fail", "empty", "default"]))
        op = draw(st.sampled_from(["sleep", "sleep", "source", "concat", "take", "sort", "vm"]))
        if op == "sleep":
            fails = draw(st.sampled_from([False, False, False, True]))
            duration = draw(st.integers(0, 20))
            nodes.append(node(name, op, at, duration_ms=duration, fail_after_sleep=fails, on_error=on_error))
        elif op == "source":
            nodes.append(node(name, "fixed_source", row_count=draw(st.integers(0, 3))))
        elif op == "concat":
            nodes.append(node(name, op, at, rhs=f"n{draw(st.integers(0, number - 1))}", on_error=on_error))
        elif op == "vm":
            nodes.append(node(name, op, at, out_key=2001, expr_id="null", on_error=on_error))
        else:
            params = {"count": 2} if op == "take" else {"by": 1}
            nodes.append(node(name, op, at, **params, on_error=on_error))
    return plan_of(*nodes, expressions={"null": {"op": "param_ref", "param_id": 1}})


@given(
    plan=faulty_plans(),
    deadline=st.none() | st.integers(-1, 60),
    node_timeout=st.none() | st.integers(0, 25),
    fusion=st.sampled_from(["off", "auto"]),
    partial=st.booleans(),
)
def test_every_request_ends_in_time_with_a_response_or_a_typed_error(
    plan: Plan, deadline: int | None, node_timeout: int | None, fusion: Any, *, partial: bool
) -> None:
    """Whatever fails and however short the deadline, a request ends by its deadline and leaves nothing behind."""

    async def main() -> None:
        async with open_engine() as engine:
            tasks = trio.lowlevel.current_statistics().tasks_living
            start = trio.current_time()
            failure: PlanError | None = None
            try:
                response = await engine.execute(
                    plan,
                    {"user_id": 1},
                    deadline=None if deadline is None else deadline / 1000,
                    node_timeout=None if node_timeout is None else node_timeout / 1000,
                    fusion=fusion,
                    partial=partial,
                )
            except PlanError as error:
                failure = error
            if failure is not None:
                assert failure.node in {one.node_id for one in plan.nodes}
                assert deadline is not None or not isinstance(failure, RequestDeadlineExceeded)
                assert node_timeout is not None or not isinstance(failure, NodeTimeout)
            else:
                assert partial or response.coverage is None or not response.coverage.unfinished
            took = trio.current_time() - start
            # While a thread works the clock runs as it does on the wall, and what is late by that is not our matter.
            if engine.statistics().late_completions == 0 and deadline is not None and fusion == "auto":
                assert took <= max(0, deadline) / 1000 + 1e-9
            assert trio.lowlevel.current_statistics().tasks_living == tasks

    trio.run(main, clock=MockClock(autojump_threshold=0))


@settings(max_examples=settings.default.max_examples // 4)
@given(made=plans())
def test_explaining_names_every_node_once(made: tuple[Plan, Any]) -> None:
    """The segments of any plan hold each of its nodes exactly once, in an order in which they could run."""
    plan, _ = made

    async def main() -> None:
        async with open_engine(ops=OPS) as engine:
            for fusion in ("off", "auto"):
                seen: set[str] = set()
                for segment in engine.explain(plan, fusion=fusion).segments:  # type: ignore[arg-type]
                    assert seen.issuperset(segment.needs)
                    assert not seen.intersection(segment.nodes)
                    seen.update(segment.nodes)
                    assert segment.inline_below is None or math.isfinite(segment.inline_below)
                assert seen == {one.node_id for one in plan.nodes}

    trio.run(main)


def test_the_generator_of_plans_knows_every_cpu_op() -> None:
    """A new CPU op of the format must be added to the naive interpreter too."""
    cpu = {op.name for op in ops.default_ops() if op.run_async is None and op.name.startswith("core::")}
    assert cpu == {"core::vm", "core::filter", "core::sort", "core::take", "core::concat", "core::dedupe", "core::join"}
