"""Which row groups a stage takes: in order, each once its rows are final, whatever finishes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seedbed.engine.intake import Intake
from seedbed.store.children import Children, SourceSpec, Taken


def make(size: int) -> Children:
    """A stage without rows."""
    return Children(SourceSpec(stage="p", each="2"), size)


def take(children: Children, index: int, versions: dict[int, int], rows: dict[int, list[int]]) -> None:
    """Take what is new of a row group."""
    new = [row for row in rows[index] if children.is_new(row)]
    record = Taken(
        number=children.records, parent=index, revision=versions[index], rows=tuple(new), counts=(2,) * len(new)
    )
    children.take(record)


@given(
    order=st.permutations(range(6)),
    pace=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    retried=st.sets(st.integers(0, 5)),
    size=st.integers(1, 3),
)
def test_the_rows_do_not_depend_on_the_order(order: list[int], pace: list[int], retried: set[int], size: int) -> None:
    """No row group is taken before it and all before it are final; the result is that of any other order.

    In a second run rows of some row groups are added: only these are taken, after all others.
    """

    def run(
        children: Children, order: list[int], pace: list[int], rows: dict[int, list[int]], now: dict[int, int]
    ) -> None:
        settled: set[int] = set()
        intake = Intake(
            "p",
            children,
            lambda: 6,
            settled.__contains__,
            lambda index: children.taken.get(index) == (now[index], 0),
        )
        for index, steps in zip(order, pace, strict=True):
            settled.add(index)
            for _ in range(steps):
                found = intake.next()
                if found is None:
                    break
                assert settled.issuperset(range(found + 1))
                take(children, found, now, rows)
        while (found := intake.next()) is not None:
            take(children, found, now, rows)
        assert intake.has_all

    rows = {index: [10 * index, 10 * index + 1] for index in range(6)}
    versions = dict.fromkeys(range(6), 0)
    one, other = make(size), make(size)
    run(one, order, pace, rows, versions)
    run(other, list(range(6)), [1] * 6, rows, versions)
    first = [one.origin(row) for row in range(one.rows)]
    assert first == [other.origin(row) for row in range(other.rows)]
    groups = [one.group_rows(index) for index in range(one.count)]
    for index in retried:
        rows[index].insert(1, 10 * index + 5)
        versions[index] += 1
    run(one, order[::-1], pace, rows, versions)
    run(other, order, pace[::-1], rows, versions)
    assert [one.origin(row) for row in range(one.rows)] == [other.origin(row) for row in range(other.rows)]
    assert [one.origin(row) for row in range(len(first))] == first
    assert [one.group_rows(index) for index in range(len(groups))] == groups
    assert one.rows == len(first) + 2 * len(retried)
