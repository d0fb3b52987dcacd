"""Several answers, a judge of each, the best of them, and pairs for training."""

from __future__ import annotations

from typing import Any

import pytest

import seedbed as sb
from seedbed.errors import ConfigError, DatasetGenerationError
from seedbed.models import ChatRequest, Scripted
from seedbed.testing import virtual_time


def judged(request: ChatRequest) -> str:
    """The score of a text is the digit in it."""
    (line,) = (line for line in request.messages[-1].content.splitlines() if line.startswith("text"))
    return f'{{"good": {line[-1]}}}'


def build(*specs: Any, answers: Any = "", rows: int = 1) -> list[dict[str, Any]]:
    """The rows of a recipe with a writer and a judge."""
    models = {"m": Scripted(answers=answers), "j": Scripted(model="j", answers=judged)}
    with virtual_time():
        found: list[dict[str, Any]] = (
            sb.preview(sb.Recipe(columns=specs, models=models), rows=rows).to_polars().to_dicts()
        )
    return found


VERDICTS = sb.Judge("verdicts", model="j", each="answers", scores={"good": "1 to 9"}, explain=False)
BEST = sb.BestOf("best", of="answers", by="verdicts.good")
PAIR = sb.PreferencePair("pair", of="answers", by="verdicts.good", min_margin=2)


def written(*scores: int) -> Any:
    """A model that writes texts of these scores, one after the other."""
    given = iter(scores)
    return lambda _: f"text {next(given)}"


def test_the_best_answer_and_a_pair_by_a_judge_of_each() -> None:
    """Each answer is judged in a call of its own; the best, the worst and their margin are columns."""
    (row,) = build(
        sb.LLMText("answers", model="m", prompt="Go.", n=4), VERDICTS, BEST, PAIR, answers=written(3, 7, 2, 7)
    )
    assert row["verdicts"] == [{"good": 3}, {"good": 7}, {"good": 2}, {"good": 7}]
    assert row["best"] == "text 7"
    assert row["pair"] == {"chosen": "text 7", "rejected": "text 2", "margin": 5.0}


def test_no_clear_winner_is_no_pair() -> None:
    """Below the margin the pair is null, and the best is the first of those with the highest score."""
    (row,) = build(sb.LLMText("answers", model="m", prompt="Go.", n=2), VERDICTS, BEST, PAIR, answers=written(4, 4))
    assert (row["best"], row["pair"]) == ("text 4", None)


def test_nulls_and_lists_of_other_lengths() -> None:
    """Nulls have no score; a list of verdicts that does not fit drops its row."""
    items = [["a", None, "b"], None, [], ["a"], ["a", "b"]]
    scores = [[1.0, 9.0, 2.0], [1.0], [], [None], [1.0]]

    @sb.column(dtype=list[str])
    def answers(row: int) -> Any:
        return items[row]

    @sb.column(dtype=list[float])
    def score(row: int) -> Any:
        return scores[row]

    @sb.column
    def row(rows: range) -> list[int]:
        return list(rows)

    recipe = sb.Recipe(columns=[row, answers, score, sb.BestOf("best", of="answers", by="score")])
    preview = sb.preview(recipe, rows=5)
    assert preview.to_polars()["best"].to_list() == ["b", None, None, None]
    (drop,) = preview.report.dropped
    assert "'answers' and 'score' must be lists of one length, not 2 and 1" in drop.reason


def test_check_knows_the_fields_of_verdicts_and_pairs() -> None:
    """A misspelled score, and a field that a pair does not have."""
    wrong = sb.BestOf("best", of="answers", by="verdicts.god")
    with pytest.raises(DatasetGenerationError) as raised:
        build(
            sb.LLMText("answers", model="m", prompt="Go.", n=2),
            VERDICTS,
            wrong,
            PAIR,
            sb.Expression("x", expr="pair.winner"),
        )
    assert "unknown field 'god'" in str(raised.value)
    assert "unknown field 'winner' of 'pair'" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"each": "a", "n": 2}, "each cannot be combined with n"),
        ({"each": "a", "of": "a"}, "each cannot be combined with of: a"),
    ],
)
def test_what_each_excludes_is_named(options: dict[str, Any], message: str) -> None:
    """Combinations that have no meaning."""
    with pytest.raises(ConfigError, match=message):
        sb.Judge("x", model="j", scores={"good": "1 to 9"}, **options)


def test_a_judge_of_something_that_is_no_list_drops_the_row() -> None:
    """With what was found; a null or empty list needs no call."""
    recipe = sb.Recipe(
        columns=[sb.Category("answers", values=["text 1"]), VERDICTS], models={"j": Scripted(answers=judged)}
    )
    (drop,) = sb.preview(recipe, rows=1).report.dropped
    assert "'answers' is no list but 'text 1'" in drop.reason
