"""Which row groups are admitted where not every candidate becomes a row."""

from __future__ import annotations

import heapq
import itertools
import random
from statistics import median

import attrs
from hypothesis import given
from hypothesis import strategies as st

from seedbed.engine.admission import AcceptedAdmission, Admission


@attrs.define(eq=False)
class Group:
    """A row group in a simulation: a verdict for each row, then more work for accepted ones."""

    undecided: int
    left: int
    accepted: int = 0


@attrs.frozen
class Simulated:
    """What a simulated run started and what it needed."""

    needed: int
    started: int
    seconds: float
    idle: float  # the share of its parallel calls that were not used


def simulate(seed: int, *, wanted: int, rate: float, parallel: int = 32, buffer_size: int = 1000) -> Simulated:
    """A run whose calls have random latencies: `parallel` of them at once, older row groups first."""
    chance = random.Random(seed)
    size = min(buffer_size, max(16, wanted // 20))
    done: set[int] = set()
    limit = 3 * max(1, buffer_size // size)
    admission = AcceptedAdmission(
        100 * wanted // size, lambda index: index not in done, limit, wanted=wanted, size=lambda _: size
    )
    verdicts = random.Random(seed + 1_000_000)
    rows: list[list[bool]] = []
    groups: dict[int, Group] = {}
    ready: list[tuple[int, int, int]] = []  # row group, column, row
    running: list[tuple[float, int, int, int]] = []
    now = idle = 0.0
    while not admission.enough:
        while (index := admission.admit()) is not None:
            rows.append([verdicts.random() < rate for _ in range(size)])
            groups[index] = Group(undecided=size, left=size)
            admission.opened(index, groups[index])
            for row in range(size):
                heapq.heappush(ready, (index, 0, row))
        while ready and len(running) < parallel:
            heapq.heappush(running, (now + chance.lognormvariate(0, 0.5), *heapq.heappop(ready)))
        then, index, column, row = heapq.heappop(running)
        idle, now = idle + (parallel - len(running) - 1) * (then - now), then
        group, is_accepted = groups[index], rows[index][row]
        group.undecided -= column == 0
        group.accepted += column == 0 and is_accepted
        if column == 0 and is_accepted:
            heapq.heappush(ready, (index, 1, row))
        else:
            group.left -= 1
        if not group.left:
            done.add(index)
            admission.completed(index, group.accepted)
            admission.left(index)
            while (due := admission.next_decision()) is not None:
                admission.decided(due[0], due[2] - due[1])
    flat = [good for found in rows for good in found]
    needed = next(at for at, count in enumerate(itertools.accumulate(flat), 1) if count == wanted)
    return Simulated(needed, admission.candidates, now, idle / (now * parallel))


def test_little_more_is_started_than_needed() -> None:
    """With 30 % accepted and 1,000 wanted, at most 15 % more candidates are started than needed, over 100 seeds."""
    runs = [simulate(seed, wanted=1000, rate=0.3) for seed in range(100)]
    assert median(run.started / run.needed for run in runs) <= 1.15
    assert max(run.started / run.needed for run in runs) <= 1.25


def test_the_last_row_groups_do_not_come_one_after_the_other() -> None:
    """Nearly all calls that are allowed at once are in flight until the end, with few of them and with many."""
    for parallel, most in ((32, 0.05), (256, 0.25)):
        runs = [simulate(seed, wanted=1000, rate=0.3, parallel=parallel) for seed in range(10)]
        assert median(run.idle for run in runs) <= most


def test_rates_that_are_high_or_low_start_not_much_more_either() -> None:
    """Before anything is known no more is started than would be needed if every candidate were accepted."""
    for rate, wanted in ((0.9, 1000), (0.05, 200), (1.0, 500)):
        runs = [simulate(seed, wanted=wanted, rate=rate) for seed in range(7)]
        assert median(run.started / run.needed for run in runs) <= 1.15


@given(
    rows=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    wanted=st.integers(0, 40),
    order=st.randoms(use_true_random=False),
    limit=st.integers(1, 5),
)
def test_row_groups_are_decided_in_order(rows: list[int], wanted: int, order: random.Random, limit: int) -> None:
    """Whatever order they finish in, decisions are those of a prefix, and admission ends when there is enough."""
    done: set[int] = set()
    admission = AcceptedAdmission(len(rows), lambda index: index not in done, limit, wanted=wanted, size=lambda _: 4)
    opened: list[int] = []
    decided: list[int] = []
    while not admission.done and not admission.enough:
        while (index := admission.admit()) is not None:
            assert admission.visited <= limit
            admission.opened(index, Group(undecided=4, left=4))
            opened.append(index)
        assert opened, "nothing is open and nothing is admitted"
        index = opened.pop(order.randrange(len(opened)))
        done.add(index)
        admission.completed(index, rows[index])
        admission.left(index)
        while (due := admission.next_decision()) is not None:
            assert due == (len(decided), 0, rows[due[0]])
            decided.append(due[0])
            admission.decided(due[0], rows[due[0]])
    kept = sum(rows[index] for index in decided)
    assert admission.kept == kept
    assert kept >= wanted or decided == list(range(len(rows)))


def test_row_groups_that_are_retried_are_decided_before_new_ones() -> None:
    """In their order; only their new rows are decided, and one of which nothing can be retried is passed over."""
    admission = AcceptedAdmission(10, lambda index: index not in (0, 3), 4, wanted=100, size=lambda _: 4)
    complete = [(0, 4, 4), (1, 2, 2), (2, 3, 3), (3, 1, 0)]
    admission.resume(complete, retried={1, 2}, reached=3, kept=9)
    assert [admission.admit() for _ in range(3)] == [1, 2, 4]
    for index in (1, 2, 4):
        admission.opened(index, Group(undecided=4, left=4))
    assert admission.finishes(1)
    assert not admission.finishes(4)
    assert admission.next_decision() is None
    admission.completed(2, 4)
    assert admission.next_decision() is None  # 1 comes first
    admission.passed_over(1)
    assert admission.next_decision() == (1, 2, 2)
    admission.decided(1, 0)
    assert admission.next_decision() == (2, 3, 4)
    admission.decided(2, 1)
    assert admission.next_decision() == (3, 0, 1)
    admission.decided(3, 1)
    assert admission.next_decision() is None
    assert (admission.kept, admission.written) == (11, 11)


def test_a_gap_before_complete_row_groups_is_admitted() -> None:
    """A run that was killed left a hole: what comes after it cannot be decided before it, however much that is."""
    admission = AcceptedAdmission(10, lambda index: index not in (1, 2), 4, wanted=8, size=lambda _: 4)
    admission.resume([(1, 4, 0), (2, 4, 0)], retried=(), reached=0, kept=0)
    assert admission.admit() == 0


def test_without_rules_every_row_group_is_admitted_in_order() -> None:
    """As many at once as are allowed; those that are done are passed over."""
    admission = Admission(5, lambda index: index != 1, 2)
    assert [admission.admit() for _ in range(3)] == [0, 2, None]
    admission.left(0)
    assert admission.admit() == 3
    assert not admission.done
    for index in (2, 3):
        admission.left(index)
    assert admission.admit() == 4
    admission.left(4)
    assert admission.done
