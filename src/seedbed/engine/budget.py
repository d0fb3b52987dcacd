"""The usage budget: tokens and cost, settled and in flight, checked before each call."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..errors import BudgetExceeded
from .tasks import NO_USAGE

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from ..observe.report import Usage
    from .tasks import Step


class Budget:
    """Limits on tokens and cost. Synchronous.

    A call is expected to use what its column declares or, where that is more, the most that a call of that column has
    used so far, so the run stops before the call that could exceed a limit. A call whose usage is not known yet is
    expected to use more than nothing: `metered` are the keys whose calls use tokens, `priced` those whose calls cost.
    """

    def __init__(
        self,
        max_tokens: int | None,
        max_cost: float | None,
        *,
        metered: AbstractSet[str] = frozenset(),
        priced: AbstractSet[str] = frozenset(),
    ) -> None:
        self.max_tokens = max_tokens
        self.max_cost = max_cost
        self.limited = max_tokens is not None or max_cost is not None
        self.tokens = 0
        self.cost = 0.0
        self._metered = metered
        self._priced = priced
        self._most: dict[str, tuple[int, float]] = {}
        self._before: dict[str, tuple[int, float]] = {}  # mean usage of a call in earlier runs
        self._reserved: list[float] = [0, 0.0]
        self._in_flight: Counter[str] = Counter()  # tasks that have reserved something, by column

    def take_over(self, column: str, usage: Usage) -> None:
        """Count the usage of a column in earlier runs."""
        self.tokens += usage.tokens
        self.cost += usage.cost
        if usage.calls:
            most = self._before.get(column, (0, 0.0))
            self._before[column] = (max(most[0], usage.tokens // usage.calls), max(most[1], usage.cost / usage.calls))

    def _expected(self, step: Step) -> tuple[int, float]:
        tokens, cost = self._most.get(step.name) or self._before.get(step.name, (0, 0.0))
        return max(tokens, step.tokens), cost

    @property
    def in_flight(self) -> bool:
        """True if tasks run whose usage is only expected; it may turn out to be less."""
        return self._in_flight.total() > 0

    def must_wait(self, step: Step) -> bool:
        """True if the cost of a call of this column is not known yet and the first one is in flight."""
        return self.max_cost is not None and step.name not in self._most and self._in_flight[step.name] > 0

    def would_exceed(self, step: Step) -> BudgetExceeded | None:
        """The error to stop with if one more task of this column could exceed a limit."""
        assert step.key is not None
        expected = self._expected(step)
        return self._exceeds(step, expected) or self._used_up(step, expected, step.key)

    def _exceeds(self, step: Step, more: tuple[int, float]) -> BudgetExceeded | None:
        tokens, cost = more
        if self.max_tokens is not None and self.tokens + self._reserved[0] + tokens > self.max_tokens:
            return self._exceeded(step, "max_tokens", f"about {tokens} more")
        if self.max_cost is not None and self.cost + self._reserved[1] + cost > self.max_cost:
            return self._exceeded(step, "max_cost", f"about {cost:g} more")
        return None

    def _used_up(self, step: Step, expected: tuple[int, float], key: str) -> BudgetExceeded | None:
        """The error to stop with if the usage of the next call is unknown and nothing is left."""
        nothing_left = self.max_tokens is not None and self.tokens + self._reserved[0] >= self.max_tokens
        if nothing_left and not expected[0] and key in self._metered:
            return self._exceeded(step, "max_tokens", "its usage is not known yet")
        nothing_left = self.max_cost is not None and self.cost + self._reserved[1] >= self.max_cost
        if nothing_left and not expected[1] and key in self._priced:
            return self._exceeded(step, "max_cost", "its model has a price")
        return None

    def _exceeded(self, step: Step, budget: str, more: str) -> BudgetExceeded:
        if budget == "max_tokens":
            limit = f"{self.max_tokens}: {self.tokens} used, {int(self._reserved[0])} in flight"
        else:
            limit = f"{self.max_cost:g}: {self.cost:g} used, {self._reserved[1]:g} in flight"
        return BudgetExceeded(f"the next call of column {step.name!r} could exceed {budget}={limit}, {more}")

    def reserve(self, step: Step) -> tuple[int, float]:
        """A task starts; give what this returns to `settle` when it ends."""
        expected = self._expected(step)
        self._in_flight[step.name] += 1
        self._reserved[0] += expected[0]
        self._reserved[1] += expected[1]
        return expected

    def extend(
        self, step: Step, reserved: tuple[int, float] | None, usage: Usage, tokens: int, key: str
    ) -> tuple[int, float] | BudgetExceeded:
        """One more call of a running task: what the task has reserved from then on, or the error to stop with."""
        new = reserved is None  # the column has no key of its own, so nothing was reserved at its start
        reserved = reserved or (0, 0.0)
        cost = usage.cost / usage.calls if usage.calls else 0.0
        wanted = (max(reserved[0], usage.tokens + tokens), max(reserved[1], usage.cost + cost))
        exceeded = self._exceeds(step, (wanted[0] - reserved[0], wanted[1] - reserved[1]))
        if exceeded is None and (new or key != step.key):  # the column's own key was checked when the task started
            exceeded = self._used_up(step, wanted, key)
        if exceeded is not None:
            return exceeded
        self._in_flight[step.name] += new
        self._reserved[0] += wanted[0] - reserved[0]
        self._reserved[1] += wanted[1] - reserved[1]
        return wanted

    def settle(self, step: Step, reserved: tuple[int, float], usage: Usage | None, *, sent: bool = True) -> None:
        """A task ended and used what it reported or, if it was sent and reported nothing, what its column declares."""
        self._in_flight[step.name] -= 1
        self._reserved[0] -= reserved[0]
        self._reserved[1] -= reserved[1]
        if not self.in_flight:
            self._reserved = [0, 0.0]  # without rounding errors
        if not sent:
            return
        tokens, cost = self._most.get(step.name, (0, 0.0))
        if usage is None or usage == NO_USAGE:
            self.tokens += step.tokens
            self._most[step.name] = (tokens, cost)
            return
        self.tokens += usage.tokens
        self.cost += usage.cost
        self._most[step.name] = (max(tokens, usage.tokens), max(cost, usage.cost))
