"""The graph of columns, and the problems of columns that cannot be put into one."""

from __future__ import annotations

from typing import Any

import pytest
from plain import Plain

from seedbed.errors import DatasetGenerationError, SeedbedError
from seedbed.graph import Kind, build_graph, nearest


def problems(*columns: Plain, **options: Any) -> tuple[str, ...]:
    """All problems of these columns."""
    with pytest.raises(DatasetGenerationError) as raised:
        build_graph(columns, **options)
    return raised.value.problems


DIAMOND = (
    Plain("top", kind=Kind.FROM_SCRATCH),
    Plain("left", ("top",)),
    Plain("right", ("top",), kind=Kind.FULL_COLUMN),
    Plain("bottom", ("left", "right")),
)


class TestAccessors:
    def test_neighbours_are_direct_ones(self) -> None:
        """Upstream and downstream name the direct neighbours, in the order in which they are required or declared."""
        graph = build_graph(DIAMOND)
        assert graph.upstream("bottom") == ("left", "right")
        assert graph.downstream("top") == ("left", "right")
        assert graph.upstream("top") == ()
        assert graph.downstream("bottom") == ()

    def test_the_order_does_not_depend_on_declaration(self) -> None:
        """A column declared before what it needs still stands behind it."""
        graph = build_graph(reversed(DIAMOND))
        order = graph.topological_order()
        assert sorted(order) == sorted(column.name for column in DIAMOND)
        for column in DIAMOND:
            assert all(order.index(need) < order.index(column.name) for need in column.requires)

    def test_ties_keep_declared_order(self) -> None:
        """Columns that do not need each other stand as they were declared."""
        graph = build_graph([Plain("c"), Plain("a"), Plain("b")])
        assert graph.topological_order() == ("c", "a", "b")

    def test_a_side_effect_resolves_to_its_producer(self) -> None:
        """A column that needs `summary__trace` depends on `summary`, which is one node."""
        graph = build_graph(
            [
                Plain("text"),
                Plain("summary", ("text",), side_effects=("summary__trace", "summary__reasoning")),
                Plain("audit", ("summary__trace",)),
                Plain("both", ("summary", "summary__reasoning")),
            ]
        )
        assert graph.upstream("audit") == ("summary",)
        assert graph.upstream("both") == ("summary",)
        assert graph.downstream("summary__trace") == ("audit", "both")
        assert graph.node("summary__reasoning") is graph.node("summary")
        assert graph.outputs == ("text", "summary", "summary__trace", "summary__reasoning", "audit", "both")
        assert len(graph) == 4

    def test_a_column_with_several_outputs_is_one_node(self) -> None:
        """Whichever of its outputs is needed, the generator is one node; its own name need not be one of them."""
        graph = build_graph([Plain("pair", outputs=("first", "second")), Plain("sum", ("first", "second"))])
        assert graph.upstream("sum") == ("pair",)
        assert graph.node("second").name == "pair"
        assert graph.outputs == ("first", "second", "sum")

    def test_an_unknown_name_has_a_suggestion(self) -> None:
        """The error for an unknown column suggests the nearest name."""
        with pytest.raises(SeedbedError, match=r"no column named 'botom'; did you mean 'bottom'\?"):
            build_graph(DIAMOND).upstream("botom")

    def test_the_representation_names_the_columns_in_order(self) -> None:
        """The columns are listed in topological order."""
        assert repr(build_graph(DIAMOND)) == "<Graph of 4 columns: top, left, right, bottom>"


class TestCriticalPath:
    def test_without_weights_it_is_the_longest_chain(self) -> None:
        """Each column weighs one."""
        graph = build_graph([*DIAMOND, Plain("alone"), Plain("after", ("bottom",))])
        assert graph.critical_path() == ("top", "left", "bottom", "after")

    def test_weights_move_it(self) -> None:
        """A slow column that no other needs can be the whole path, and a slow branch is preferred to a quick one."""
        graph = build_graph([*DIAMOND, Plain("alone")])
        assert graph.critical_path({"right": 5.0}) == ("top", "right", "bottom")
        assert graph.critical_path({"alone": 50.0}) == ("alone",)

    def test_no_columns_have_no_path(self) -> None:
        """An empty graph has an empty path."""
        assert build_graph([]).critical_path() == ()


class TestTaskCount:
    def test_cells_count_per_row_and_the_rest_per_group(self) -> None:
        """Ten rows in groups of four are three tasks a whole column and ten a cell column."""
        graph = build_graph(DIAMOND)
        assert graph.task_count(10, 4) == 3 + 10 + 3 + 10
        assert graph.task_count(10, 4, columns=["right"]) == 3
        assert graph.task_count(10, 4, columns=["left", "bottom"]) == 20

    def test_no_rows_are_no_tasks(self) -> None:
        """Nothing is to be done for an empty dataset."""
        assert build_graph(DIAMOND).task_count(0, 4) == 0


class TestMermaid:
    def test_shapes_and_edges(self) -> None:
        """The text has one line a node, shaped by its kind, and one an edge."""
        assert build_graph(DIAMOND).mermaid() == (
            "flowchart TD\n"
            '    n0[("top")]\n'
            '    n1["left"]\n'
            '    n2(["right"])\n'
            '    n3["bottom"]\n'
            "    n0 --> n1\n"
            "    n0 --> n2\n"
            "    n1 --> n3\n"
            "    n2 --> n3\n"
        )

    def test_other_outputs_are_in_the_box(self) -> None:
        """Side effects stand below the name, and quotes cannot end the label."""
        text = build_graph([Plain('say "x"', side_effects=("trace",))]).mermaid()
        assert '    n0["say #quot;x#quot;<br/>trace"]\n' in text


class TestProblems:
    def test_an_unknown_column_with_the_nearest_name(self) -> None:
        """The error for a requirement that no column generates names the nearest output, side effects among them."""
        assert problems(Plain("question"), Plain("answer", ("questoin",))) == (
            "column 'answer' requires 'questoin', which no column generates; did you mean 'question'?",
        )
        assert problems(Plain("a", side_effects=("a__trace",)), Plain("b", ("a__trac",))) == (
            "column 'b' requires 'a__trac', which no column generates; did you mean 'a__trace'?",
        )

    def test_an_unknown_column_without_a_near_name(self) -> None:
        """Without a near name, the known ones are listed."""
        assert problems(Plain("one"), Plain("two", ("zzzz",))) == (
            "column 'two' requires 'zzzz', which no column generates (known: 'one', 'two')",
        )

    def test_a_cycle_is_listed_column_by_column(self) -> None:
        """A cycle is listed in the direction of the data, from a column back to itself."""
        assert problems(Plain("a", ("c",)), Plain("b", ("a",)), Plain("c", ("b",))) == (
            "circular dependency between columns: a → b → c → a",
        )

    def test_two_cycles_are_two_problems(self) -> None:
        """Every cycle is reported, also one through a side effect."""
        found = problems(
            Plain("a", ("b",)),
            Plain("b", ("a",)),
            Plain("c", ("d__trace",)),
            Plain("d", ("c",), side_effects=("d__trace",)),
        )
        assert found == (
            "circular dependency between columns: a → b → a",
            "circular dependency between columns: c → d → c",
        )

    def test_a_duplicate_column_is_one_problem(self) -> None:
        """A duplicate name is reported once, not once for each output."""
        twice = Plain("a", side_effects=("a__trace",))
        assert problems(twice, twice) == ("duplicate column 'a'",)

    def test_a_duplicate_output(self) -> None:
        """Two columns with the same output are both named."""
        assert problems(Plain("a"), Plain("b", side_effects=("a",))) == ("duplicate output 'a', of 'a' and 'b'",)

    def test_its_own_output(self) -> None:
        """A column that requires its own output is one problem, without a circular dependency besides."""
        assert problems(Plain("a", ("a__trace",), side_effects=("a__trace",))) == (
            "column 'a' requires its own output 'a__trace'",
        )

    def test_from_scratch_with_requirements(self) -> None:
        """A column from scratch cannot have requirements."""
        assert problems(Plain("a"), Plain("b"), Plain("seed", ("a", "b"), kind=Kind.FROM_SCRATCH)) == (
            "column 'seed' is generated from scratch and cannot require 'a', 'b'",
        )

    def test_resizing_columns_are_all_named(self) -> None:
        """Every column that may resize is a problem of its own, which points to stages and processors."""
        found = problems(Plain("a", allow_resize=True), Plain("b"), Plain("c", allow_resize=True))
        assert [problem.partition(" has ")[0] for problem in found] == ["column 'a'", "column 'c'"]
        assert all("use a stage" in problem and "processor" in problem for problem in found)

    def test_all_at_once(self) -> None:
        """One error holds every problem and counts them."""
        with pytest.raises(DatasetGenerationError) as raised:
            build_graph(
                [
                    Plain("a", ("b",)),
                    Plain("b", ("a",)),
                    Plain("b"),
                    Plain("c", ("nothing",)),
                    Plain("d", ("d",)),
                    Plain("e", allow_resize=True),
                    Plain("f", side_effects=("c",)),
                    Plain("g", ("e",), kind=Kind.FROM_SCRATCH),
                ]
            )
        text = str(raised.value)
        assert text.startswith(f"the dataset cannot be generated, {len(raised.value.problems)} problems:\n  - ")
        for part in (
            "duplicate column 'b'",
            "duplicate output 'c'",
            "requires 'nothing'",
            "requires its own output 'd'",
            "column 'e' has allow_resize=True",
            "'g' is generated from scratch",
        ):
            assert part in text, part

    def test_a_long_chain_is_walked_without_recursion(self) -> None:
        """Thousands of columns in a row do not reach Python's recursion limit."""
        chain = [Plain("c0"), *(Plain(f"c{n}", (f"c{n - 1}",)) for n in range(1, 5_000))]
        assert build_graph(chain).topological_order()[-1] == "c4999"


class TestNearest:
    def test_at_most_eight_names_are_listed(self) -> None:
        """A long list of known names is cut."""
        assert nearest("zzz", [f"a{n}" for n in range(9)]).endswith("'a7', …)")

    def test_without_known_names_there_is_no_hint(self) -> None:
        """The hint is empty."""
        assert nearest("zzz", []) == ""
