"""The exceptions of seedbed survive pickling: worker processes and clusters send them to the run."""

from __future__ import annotations

import copy
import pickle

import pytest

from seedbed import errors

LIMITED = errors.RateLimited("quota used up", retry_after=3.0, reset="60")
WITH_ARGUMENTS = [
    errors.DatasetGenerationError(["duplicate column 'a'", "unknown model 'b'"]),
    LIMITED,
    errors.QuotaExhausted("acme/small/chat", 60.0, LIMITED),
    errors.ThreadsStuck(["a", "b"], "all 2 execution slots", 0.5),
    errors.NodeFailed("no such key", node="fetch"),
    errors.InvalidPlan([("UNKNOWN_OP", "$.nodes[0].op", "unknown op 'sortt'")]),
    errors.InvalidRequest([("MISSING_FIELD", "$.user_id", "the field 'user_id' is required")]),
]


def subclasses(kind: type[errors.SeedbedError]) -> list[type[errors.SeedbedError]]:
    """The class and every class below it."""
    return [kind, *(each for below in kind.__subclasses__() for each in subclasses(below))]


PLAIN = [kind("a message") for kind in subclasses(errors.SeedbedError) if "__init__" not in vars(kind)]


@pytest.mark.parametrize("error", [*WITH_ARGUMENTS, *PLAIN], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_an_error_survives_pickling(error: errors.SeedbedError, protocol: int) -> None:
    """Type, message, attributes and notes are the same afterwards."""
    noted = copy.copy(error)
    noted.add_note("to resume: seedbed resume out")
    for again in (pickle.loads(pickle.dumps(noted, protocol)), copy.deepcopy(noted)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again).keys() == vars(noted).keys()
        assert again.__notes__ == ["to resume: seedbed resume out"]
        for name in ("problems", "key", "columns", "node", "message", "retry_after", "reset"):
            assert getattr(again, name, None) == getattr(error, name, None)


def test_a_subclass_with_another_constructor_survives_pickling() -> None:
    """Also of a user's class, whose constructor takes what it likes."""
    again = pickle.loads(pickle.dumps(Custom(code=7, reason="busy")))
    assert (type(again), str(again), again.code) == (Custom, "busy (7)", 7)


class Custom(errors.Retryable):
    def __init__(self, *, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
