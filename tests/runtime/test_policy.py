"""The throttle policy, step by step and under random orders of events."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from seedbed.runtime.policy import Sent, ThrottlePolicy, Verdict


def fill(policy: ThrottlePolicy, now: float = 0.0) -> list[Sent]:
    """Send until the limit is reached."""
    return [policy.sent(now) for _ in range(policy.limit - policy.in_flight)]


def accept_windows(policy: ThrottlePolicy, windows: int, now: float = 0.0) -> None:
    """Accept so many windows' worth of calls, the limit always reached."""
    for _ in range(windows):
        for sent in fill(policy, now):
            policy.accepted(sent, now + 0.05)


def cut(policy: ThrottlePolicy, capacity: int) -> None:
    """Rate-limit calls above the capacity until the limit falls to it."""
    sends = fill(policy)
    epoch = policy.epoch
    above = iter(sends[capacity:])
    while policy.epoch == epoch:
        policy.rate_limited(next(above), 0.01)
    for sent in above:
        policy.rate_limited(sent, 0.01)
    for sent in sends[:capacity]:
        policy.accepted(sent, 0.05)


@pytest.mark.parametrize(("ceiling", "limit"), [(32, 16), (16, 16), (8, 8), (1, 1)])
def test_the_first_limit_is_16_or_the_ceiling(ceiling: int, limit: int) -> None:
    """A new policy begins at 16 parallel calls, or at its ceiling if that is lower."""
    assert ThrottlePolicy(ceiling).limit == limit


def test_level_counts_calls_that_the_server_processes() -> None:
    """A level is the number of calls on the wire at the send, without those that are rate-limited later."""
    policy = ThrottlePolicy(32)
    first, second, third = (policy.sent(0.0) for _ in range(3))
    assert [first.level, second.level, third.level] == [1, 2, 3]
    policy.rate_limited(second, 0.01)
    assert [first.level, third.level] == [1, 2]
    policy.accepted(first, 0.05)
    assert policy.sent(0.06).level == 2


def test_mean_latency_is_of_accepted_calls() -> None:
    """The mean latency is unknown until a call was accepted; rate limits and errors do not change it."""
    policy = ThrottlePolicy(32)
    policy.rate_limited(policy.sent(0.0), 0.001)
    policy.finished(policy.sent(0.0))
    assert policy.mean_latency is None
    policy.accepted(policy.sent(1.0), 1.5)
    assert policy.mean_latency == 0.5
    policy.accepted(policy.sent(2.0), 4.0)
    assert 0.5 < policy.mean_latency < 2.0


def test_acceptances_grow_the_limit_at_first() -> None:
    """Before any congestion each acceptance adds one, up to the ceiling."""
    policy = ThrottlePolicy(20)
    accept_windows(policy, 1)
    assert policy.limit == 20


def test_an_unused_limit_does_not_grow() -> None:
    """Acceptances below the limit say nothing about a higher one."""
    policy = ThrottlePolicy(64)
    for _ in range(200):
        policy.accepted(policy.sent(0.0), 0.05)
    assert policy.limit == 16


def test_time_at_the_limit_doubles_it() -> None:
    """A tenth of a second at the limit without a rate limit doubles it, although no call has been answered yet."""
    policy = ThrottlePolicy(100)
    assert policy.grows_at is None
    fill(policy, 1.0)
    assert policy.grows_at == pytest.approx(1.1)
    policy.tick(1.05)
    assert policy.limit == 16
    policy.tick(policy.grows_at)
    assert policy.limit == 32
    assert policy.grows_at is None
    refused = fill(policy, 2.0)[-1]
    policy.rate_limited(refused, 2.05)
    assert policy.grows_at == pytest.approx(2.15)


def test_one_decrease_per_epoch() -> None:
    """All rate limits of one burst are one signal: the limit falls to the capacity, once."""
    policy = ThrottlePolicy(32)
    accept_windows(policy, 2)
    assert policy.limit == 32
    cut(policy, 20)
    assert policy.limit == 20
    assert policy.epoch == 1


def test_rate_limits_of_an_earlier_epoch_are_ignored() -> None:
    """A call sent before the last decrease and rate-limited after it does not change the limit."""
    policy = ThrottlePolicy(32)
    accept_windows(policy, 6)
    old = fill(policy)
    for sent in old[20:]:
        policy.rate_limited(sent, 0.01)
    for sent in old[5:20]:
        policy.accepted(sent, 0.05)
    assert (policy.limit, policy.epoch) == (20, 1)
    new = fill(policy)
    # Each at a level above the one before, so that none of them is evidence together with another.
    for sent in (new[5], new[7], new[9]):
        policy.rate_limited(sent, 0.06)
    assert (policy.limit, policy.epoch) == (20, 1)
    policy.rate_limited(old[4], 0.07)
    assert (policy.limit, policy.epoch) == (20, 1)


def test_rests_after_a_decrease_then_probes() -> None:
    """After a decrease the limit stays for four windows, then grows by one, two, four as long as all is accepted."""
    policy = ThrottlePolicy(64)
    cut(policy, 10)
    limits = []
    for _ in range(9):
        accept_windows(policy, 1)
        limits.append(policy.limit)
    # The first window of the rest is the ten that were accepted with the refusals.
    assert limits == [10, 10, 10, 11, 13, 17, 25, 41, 64]


def test_rests_longer_when_the_level_proves_right() -> None:
    """A second decrease to the same level doubles the rest; one to another level starts anew."""
    policy = ThrottlePolicy(64)

    def windows_until_growth() -> int:
        limit, windows = policy.limit, 0
        while policy.limit == limit:
            accept_windows(policy, 1)
            windows += 1
        return windows

    def grow_and_cut(capacity: int) -> int:
        while policy.limit < capacity + 4:
            accept_windows(policy, 1)
        cut(policy, capacity)
        return windows_until_growth()

    cut(policy, 10)
    first = windows_until_growth()
    rests = [grow_and_cut(10) for _ in range(5)]
    assert rests[0] > 1.5 * first
    assert rests[1] > 1.5 * rests[0]
    assert rests[-1] == rests[-2] <= 17
    assert grow_and_cut(30) < rests[-1] / 3


def test_rate_limits_for_the_level_hold_their_permit() -> None:
    """A permit rate-limited for its level is held for one mean latency, at most a second."""
    policy = ThrottlePolicy(32)
    accept_windows(policy, 2)
    assert policy.rate_limited(fill(policy)[-1], 0.01).hold == pytest.approx(policy.mean_latency)
    slow = ThrottlePolicy(32)
    slow.accepted(slow.sent(0.0), 30.0)
    assert slow.rate_limited(fill(slow, 30.0)[-1], 30.1).hold == 1.0


def test_random_rate_limits_hold_no_permit() -> None:
    """If all levels are rate-limited at random, a permit is released at once and the backoff stays short."""
    policy = ThrottlePolicy(32)
    refusals: list[Verdict] = []
    for _ in range(20):
        for index, sent in enumerate(fill(policy)):
            if index % 10 == 9:
                refusals.append(policy.rate_limited(sent, 0.01))
            else:
                policy.accepted(sent, 0.05)
    assert policy.limit == 32
    assert refusals[-1].hold == 0.0
    assert refusals[-1].by_chance in {2, 3}
    assert not any(refusal.pause for refusal in refusals)


def test_a_server_that_accepts_nothing_is_paused() -> None:
    """If nothing is accepted, the limit falls to 1 and the verdict is a pause until a call is accepted."""
    policy = ThrottlePolicy(32)
    pauses = []
    for _ in range(60):
        sends = fill(policy)
        pauses += [policy.rate_limited(sent, 0.01).pause for sent in sends]
    assert policy.limit == 1
    assert not any(pauses[:16])
    assert all(pauses[40:])
    accept_windows(policy, 2)
    assert not policy.rate_limited(policy.sent(0.0), 0.01).pause


def test_slow_windows_count_as_congestion_with_the_option() -> None:
    """With the option a window twice as slow as the fastest lowers the limit by a tenth; at 1 it is the new norm."""
    policy = ThrottlePolicy(16, latency_congestion=True)

    def window(latency: float) -> int:
        for sent in fill(policy):
            policy.accepted(sent, latency)
        return policy.limit

    assert window(0.1) == 16
    assert window(0.15) == 16
    assert window(0.25) == 14
    limits = [window(0.25) for _ in range(100)]
    assert min(limits) == 1
    assert limits[-1] == 16


class PolicyMachine(RuleBasedStateMachine):
    """Any order of events leaves the policy within its bounds and true to its rules."""

    on_wire = Bundle("on_wire")

    @initialize(ceiling=st.integers(1, 200), latency_congestion=st.booleans())
    def make(self, ceiling: int, latency_congestion: bool) -> None:
        self.policy = ThrottlePolicy(ceiling, latency_congestion=latency_congestion)
        self.latency_congestion = latency_congestion
        self.now = 0.0
        self.in_flight = 0
        # Whether the limit was reached since it last grew or was cut, or since a window began.
        self.used = False

    def observe(self) -> None:
        self.used = self.used or self.policy.in_flight >= self.policy.limit

    @rule(target=on_wire)
    def send(self) -> Sent:
        self.in_flight += 1
        sent = self.policy.sent(self.now)
        assert sent.level == self.in_flight
        assert sent.epoch == self.policy.epoch
        self.observe()
        return sent

    @rule(target=on_wire, share=st.floats(0.5, 1.5))
    def send_many(self, share: float) -> object:
        return multiple(*(self.send() for _ in range(int(self.policy.limit * share) - self.policy.in_flight)))

    @rule(sent=consumes(on_wire))
    def accept(self, sent: Sent) -> None:
        before, epoch = self.policy.limit, self.policy.epoch
        self.observe()
        self.policy.accepted(sent, self.now)
        self.in_flight -= 1
        if self.policy.limit > before:
            assert self.used
        if self.policy.limit < before:
            assert self.latency_congestion
            assert self.policy.epoch == epoch + 1

    @rule(sent=consumes(on_wire))
    def finish(self, sent: Sent) -> None:
        before = self.policy.limit, self.policy.epoch
        self.policy.finished(sent)
        self.in_flight -= 1
        assert (self.policy.limit, self.policy.epoch) == before

    @rule(sent=consumes(on_wire))
    def refuse(self, sent: Sent) -> None:
        before, epoch = self.policy.limit, self.policy.epoch
        refusal = self.policy.rate_limited(sent, self.now)
        self.in_flight -= 1
        assert 0.0 <= refusal.hold <= 1.0
        assert refusal.by_chance >= 0
        assert self.policy.limit <= before
        if sent.epoch != epoch:
            # The same signal as the decrease that began the epoch.
            assert (self.policy.limit, self.policy.epoch) == (before, epoch)
        if self.policy.limit < before:
            assert self.policy.epoch == epoch + 1
            assert self.policy.limit <= max(1, sent.level - 1)

    @rule(seconds=st.floats(0.0, 5.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.policy.grows_at is not None)
    @rule()
    def tick(self) -> None:
        before = self.policy.limit
        assert self.policy.grows_at is not None
        self.now = max(self.now, self.policy.grows_at)
        self.policy.tick(self.now)
        assert self.policy.limit in {before, min(2 * before, self.policy.ceiling)}
        if self.policy.limit > before:
            assert self.used
        assert self.policy.grows_at is None

    @invariant()
    def within_bounds(self) -> None:
        if hasattr(self, "policy"):
            assert 1 <= self.policy.limit <= self.policy.ceiling
            assert self.policy.in_flight == self.in_flight >= 0


TestPolicyMachine = PolicyMachine.TestCase
