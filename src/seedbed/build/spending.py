"""What a run has spent, and whether the next call would be too much."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..errors import BudgetExceeded

if TYPE_CHECKING:
    from ..generators import Usage
    from .plan import Step


class Spending:
    """Tokens and cost, settled and in flight. Synchronous.

    A call is expected to use what its column declares or, where that is more, the most that a call of that column has
    used so far; so the run stops before the call that would pass the budget and not after it.
    """

    def __init__(self, max_tokens: int | None, max_cost: float | None) -> None:
        self.max_tokens = max_tokens
        self.max_cost = max_cost
        self.limited = max_tokens is not None or max_cost is not None
        self.tokens = 0
        self.cost = 0.0
        self._most: dict[str, tuple[int, float]] = {}
        self._reserved: list[float] = [0, 0.0]
        self._flying: Counter[str] = Counter()  # tasks that have reserved something, by column

    def _expected(self, step: Step) -> tuple[int, float]:
        tokens, cost = self._most.get(step.name, (0, 0.0))
        return max(tokens, step.tokens), cost

    @property
    def in_flight(self) -> bool:
        """Whether tasks are under way whose use is only expected; what they really use may be less."""
        return self._flying.total() > 0

    def must_wait(self, step: Step) -> bool:
        """Whether nobody knows yet what a call of this column costs and the first one is still under way."""
        return self.max_cost is not None and step.name not in self._most and self._flying[step.name] > 0

    def would_pass(self, step: Step) -> BudgetExceeded | None:
        """The error to stop with if one more task of this column might pass a budget."""
        if not self.limited or step.key is None:
            return None
        return self._over(step, *self._expected(step))

    def _over(self, step: Step, tokens: int, cost: float) -> BudgetExceeded | None:
        if self.max_tokens is not None and self.tokens + self._reserved[0] + tokens > self.max_tokens:
            return BudgetExceeded(
                f"the next call of column {step.name!r} would pass max_tokens={self.max_tokens}: "
                f"{self.tokens} used, {int(self._reserved[0])} in flight, about {tokens} more"
            )
        if self.max_cost is not None and self.cost + self._reserved[1] + cost > self.max_cost:
            return BudgetExceeded(
                f"the next call of column {step.name!r} would pass max_cost={self.max_cost:g}: "
                f"{self.cost:g} spent, {self._reserved[1]:g} in flight, about {cost:g} more"
            )
        return None

    def reserve(self, step: Step) -> tuple[int, float]:
        """A task starts; give what this returns to `settle` when it ends."""
        expected = self._expected(step)
        self._flying[step.name] += 1
        self._reserved[0] += expected[0]
        self._reserved[1] += expected[1]
        return expected

    def extend(
        self, step: Step, reserved: tuple[int, float] | None, usage: Usage, tokens: int
    ) -> tuple[int, float] | BudgetExceeded:
        """One more call of a task under way: what it has reserved from then on, or the error to stop with."""
        new = reserved is None  # the column has no key of its own, so nothing was reserved at its start
        reserved = reserved or (0, 0.0)
        cost = usage.cost / usage.calls if usage.calls else 0.0
        wanted = (max(reserved[0], usage.tokens + tokens), max(reserved[1], usage.cost + cost))
        over = self._over(step, wanted[0] - reserved[0], wanted[1] - reserved[1])
        if over is not None:
            return over
        self._flying[step.name] += new
        self._reserved[0] += wanted[0] - reserved[0]
        self._reserved[1] += wanted[1] - reserved[1]
        return wanted

    def settle(self, step: Step, reserved: tuple[int, float], usage: Usage | None, *, sent: bool = True) -> None:
        """A task ended and used what it reported or, if it was sent and reported nothing, what its column declares."""
        self._flying[step.name] -= 1
        self._reserved[0] -= reserved[0]
        self._reserved[1] -= reserved[1]
        if not self.in_flight:
            self._reserved = [0, 0.0]  # what rounding left over
        if not sent:
            return
        tokens, cost = self._most.get(step.name, (0, 0.0))
        if usage is None or not usage.calls:
            self.tokens += step.tokens
            self._most[step.name] = (tokens, cost)
            return
        self.tokens += usage.tokens
        self.cost += usage.cost
        self._most[step.name] = (max(tokens, usage.tokens), max(cost, usage.cost))
