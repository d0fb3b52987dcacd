from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import event, given
from hypothesis import strategies as st
from plan_helpers import INLINE
from sample_plans import full_plan

from seedbed.errors import InvalidPlan, InvalidRequest
from seedbed.plans.compile import CompiledPlan
from seedbed.plans.documents import Code
from seedbed.plans.format import parse_plan, plan_text
from seedbed.plans.ops import default_ops
from seedbed.plans.registries import default_registries
from seedbed.plans.request import parse_request

if TYPE_CHECKING:
    from seedbed.plans.format import Plan

REGISTRIES = default_registries()
CODES = {code.value for code in Code}
EXAMPLES = Path(__file__).parents[2] / "examples" / "plans"
SEEDS = [full_plan(), *(json.loads(path.read_text(encoding="utf-8")) for path in sorted(EXAMPLES.glob("*.json")))]

# Names and numbers of the format make mutants that get past the first check.
WORDS = [
    *["op", "a", "b", "x", "lhs", "list", "cmp", "value", "key_id", "param_id", "kind", "pattern", "flags", "policy"],
    *["nodes", "outputs", "params", "inputs", "node_id", "extensions", "expr_table", "trace", "rhs", "by", "endpoint"],
    *[
        "add",
        "mul",
        "neg",
        "coalesce",
        "key_ref",
        "param_ref",
        "const_number",
        "const_null",
        "and",
        "not",
        "in",
        "regex",
    ],
    *[
        "n0",
        "n1",
        "v",
        "f",
        "c",
        "e0",
        "p0",
        "score",
        "keep",
        "ep_0001",
        "core::vm",
        "core::concat",
        "core::dedupe",
        "core::join",
        "core::fetch_features",
        "sleep",
        "==",
        "i",
        "",
    ],
    *["literal", "param", "seedbed.on_error.v1", "empty", "(?i)[a", "\ud800", "\x00"],
]
NUMBERS = [0, 1, -1, 2, 3, 1001, 2001, 3001, 2**31, 2**63, -(2**63), 10**400, 1e308, 0.5, -0.0]
SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from(NUMBERS)
    | st.sampled_from(WORDS)
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a document."""
    found = [path]
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in entries:
        found += places(inner, (*path, step))
    return found


PLACES = [places(seed) for seed in SEEDS]


@st.composite
def mutants(draw: st.DrawFn) -> Any:
    """Change a valid plan at random places: insert, remove, duplicate, rename or move a part."""
    chosen = draw(st.integers(0, len(SEEDS) - 1))
    document = copy.deepcopy(SEEDS[chosen])
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(PLACES[chosen][1:]))
        try:
            place = document
            for step in path[:-1]:
                place = place[step]
            here = place[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took it away
        if not isinstance(place, dict | list):
            continue
        match draw(st.sampled_from(["set", "set", "delete", "repeat", "rename", "graft"])):
            case "set":
                place[path[-1]] = draw(VALUES)
            case "delete":
                del place[path[-1]]
            case "repeat" if isinstance(place, list):
                place.insert(path[-1], here)
            case "rename" if isinstance(place, dict):
                place[draw(st.sampled_from(WORDS) | st.text(max_size=4))] = place.pop(path[-1])
            case "graft":
                other = draw(st.sampled_from(SEEDS))
                place[path[-1]] = copy.deepcopy(other)
                for step in draw(st.sampled_from(places(other)[1:])):
                    place[path[-1]] = place[path[-1]][step]
            case _:
                pass
    return document


def check(source: Any) -> Plan | None:
    """Read a plan; an error is of seedbed and complete."""
    try:
        plan = parse_plan(source)
    except InvalidPlan as error:
        assert error.problems  # noqa: PT017  most mutants are wrong, not all
        for code, path, message in error.problems:
            assert code in CODES
            assert path.startswith("$")
            assert message
        str(error).encode()  # it can be printed
        event("rejected")
        return None
    event("valid")
    return plan


def parsed(source: Any) -> Plan | tuple[tuple[str, str, str], ...]:
    """The plan, or its problems."""
    try:
        return parse_plan(source)
    except InvalidPlan as error:
        return error.problems


@given(mutants())
def test_a_mutant_is_a_plan_or_an_invalid_plan(document: Any) -> None:
    """A plan changed at random is rejected with InvalidPlan or parsed; a parsed one can be compiled."""
    plan = check(document)
    if plan is None:
        return
    compiled = CompiledPlan(plan, default_ops(), INLINE)
    for fusion in ("off", "auto"):
        compiled.schedule(fusion)
    known = {node.node_id for node in plan.nodes}
    assert len(known) == len(plan.nodes)
    assert known.issuperset(plan.outputs)
    assert all(known.issuperset(node.upstream) for node in plan.nodes)
    trees = [each.tree for each in (*plan.expressions.values(), *plan.predicates.values())]
    json.dumps([[dict(node.params) for node in plan.nodes], trees]).encode()


@given(mutants())
def test_text_gives_the_same_result_as_its_values(document: Any) -> None:
    """A document that JSON can represent gives the same plan or the same problems as text."""
    try:
        text = plan_text(document) if isinstance(document, dict) else json.dumps(document, allow_nan=False)
        same = json.loads(text)
    except (ValueError, TypeError, AttributeError):
        return  # NaN, or tables that are not objects
    assert parsed(text) == parsed(same)


@given(VALUES)
def test_any_json_is_rejected_with_a_typed_error(document: Any) -> None:
    """Arbitrary JSON values are rejected with typed errors, for plans and for requests."""
    assert check(document) is None
    try:
        parse_request(document, REGISTRIES)
    except InvalidRequest as error:
        str(error).encode()


@given(
    st.text()
    | st.binary()
    | st.sampled_from(SEEDS).map(json.dumps).flatmap(lambda text: st.integers(0, len(text)).map(lambda end: text[:end]))
)
def test_any_text_is_rejected_with_a_typed_error(source: str | bytes) -> None:
    """Text and bytes that are not JSON, or only the beginning of a plan, are rejected with typed errors."""
    plan = check(source)
    assert plan is None or plan.name in {seed["plan_name"] for seed in SEEDS}


OVERRIDES = st.dictionaries(st.sampled_from([param.name for param in REGISTRIES.params.values()]), SCALARS, max_size=3)


@given(
    st.fixed_dictionaries(
        {}, optional={"user_id": SCALARS, "request_id": SCALARS, "param_overrides": OVERRIDES | VALUES, "x": SCALARS}
    )
)
def test_any_request_is_parsed_or_rejected_with_a_typed_error(document: Any) -> None:
    """A request is valid, with its numbers in range, or an InvalidRequest."""
    try:
        request = parse_request(document, REGISTRIES)
    except InvalidRequest as error:
        str(error).encode()
        return
    assert 0 <= request.user_id < 2**32
