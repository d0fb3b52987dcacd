"""The rows of a stage that takes them from another, as a fold over what it took."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seedbed.store.children import Children, SourceSpec, Taken

# For each row group of the parent: its rows, and how many rows each becomes.
PARENTS = st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=5)


def taken_each(counts: list[list[int]]) -> list[Taken]:
    """The records of a stage with `each`."""
    found, row = [], 0
    for number, of in enumerate(counts):
        found.append(Taken(number=number, parent=number, rows=tuple(range(row, row + len(of))), counts=tuple(of)))
        row += len(of)
    return found


def fold(records: list[Taken], spec: SourceSpec, size: int) -> Children:
    """What records add up to."""
    children = Children(spec, size)
    for record in records:
        children.take(record)
    return children


@given(counts=PARENTS, size=st.integers(1, 4))
def test_rows_are_numbered_and_cut_in_the_order_of_their_parents(counts: list[list[int]], size: int) -> None:
    """Every row is in one row group, none of which has rows of two row groups of the parent or more than its size."""
    children = fold(taken_each(counts), SourceSpec(stage="p", each="n"), size)
    flat = [count for of in counts for count in of]
    origins = [(row, k) for row, count in enumerate(flat) for k in range(count)]
    assert [children.origin(row) for row in range(children.rows)] == origins
    groups = [children.group_rows(index) for index in range(children.count)]
    assert [row for rows in groups for row in rows] == list(range(children.rows))
    assert all(0 < len(rows) <= size for rows in groups)
    assert [index for index, rows in enumerate(groups) for _ in rows] == list(
        map(children.index_of, range(children.rows))
    )
    of_parent = [number for number, of in enumerate(counts) for _ in of]
    assert all(len({of_parent[children.origin(row)[0]] for row in rows}) == 1 for rows in groups)
    assert children.count == sum(-(-sum(of) // size) for of in counts)


@given(counts=PARENTS, size=st.integers(1, 4), cut=st.integers(0, 5))
def test_what_is_taken_later_changes_nothing(counts: list[list[int]], size: int, cut: int) -> None:
    """Rows and row groups that are there keep their numbers, their origins and their bounds."""
    spec = SourceSpec(stage="p", each="n")
    records = taken_each(counts)
    before, after = fold(records[:cut], spec, size), fold(records, spec, size)
    assert [after.origin(row) for row in range(before.rows)] == [before.origin(row) for row in range(before.rows)]
    assert [after.group_rows(i) for i in range(before.count)] == [before.group_rows(i) for i in range(before.count)]
    done = range(before.count)
    others = [row for rows in after.rows_of_others(done) for row in rows]
    assert others == list(range(before.rows, after.rows))


@given(
    keys=st.lists(st.lists(st.sampled_from("abc"), max_size=6), max_size=5),
    size=st.none() | st.integers(1, 4),
    remainder=st.sampled_from(["keep", "drop"]),
)
def test_groups_are_filled_in_order(keys: list[list[str]], size: int | None, remainder: str) -> None:
    """A group has so many rows of one key, in order; what is left at the end is kept or not, and no row is in two."""
    spec = SourceSpec(stage="p", by=("k",), size=size, remainder=remainder)
    records, row = [], 0
    for number, of in enumerate(keys):
        records.append(Taken(number=number, parent=number, rows=tuple(range(row, row + len(of))), keys=tuple(of)))
        row += len(of)
    children = fold([*records, Taken(number=len(records))], spec, 2)
    flat = [key for of in keys for key in of]
    groups = [children.parents(number) for number in range(children.rows)]
    members = [row for rows in groups for row in rows]
    assert len(members) == len(set(members))
    assert all(list(rows) == sorted(rows) and len({flat[row] for row in rows}) == 1 for rows in groups)
    for key in "abc":
        of_key = [at for at, each in enumerate(flat) if each == key]
        expected = of_key
        if size is not None and remainder == "drop":
            expected = of_key[: len(of_key) // size * size]
        assert [row for rows in groups for row in rows if flat[row] == key] == expected
    assert size is None or all(len(rows) <= size for rows in groups)
    assert not children.has_waiting
