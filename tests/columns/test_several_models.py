"""Columns with several models: the next one is called where one is not available, or its answers do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import seedbed as sb
from seedbed.errors import BuildStopped, ConfigError, RateLimited, Retryable
from seedbed.recipe.file import recipe_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import trio.testing

PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


class Fails:
    """Answers of a model that raises for its first calls, as many as `times`, and counts all of them."""

    def __init__(self, error: Callable[[], Exception], times: int = 10**9) -> None:
        self.calls = 0
        self._error, self._times = error, times

    def __call__(self, _: Any) -> str:
        self.calls += 1
        if self.calls <= self._times:
            raise self._error()
        return "from small"


def text(**fields: Any) -> sb.LLMText:
    """A column of text that two models may answer."""
    return sb.LLMText("answer", models=["small", "large"], prompt="Say {{ n }}.", **fields)


def recipe(column: Any, small: Any, large: Any = "from large", **run: Any) -> sb.Recipe:
    """A recipe with that column, and the two models."""
    given = {"small": small, "large": large}
    return sb.Recipe(
        seed=1,
        columns=[sb.UUID("n"), column],
        models={
            name: sb.Scripted(model=name, answers=each) if callable(each) or isinstance(each, str) else each
            for name, each in given.items()
        },
        run={"backoff_base": 0.01, "max_concurrent_row_groups": 1, **run},
    )


async def built(what: sb.Recipe, tmp_path: Path, rows: int = 4) -> tuple[list[str], list[str], sb.Dataset]:
    """The answers and the models that gave them."""
    dataset = await sb.build_async(what, rows=rows, out=tmp_path / "out")
    origins = dataset.provenance()["answer__provenance"].to_list()
    return dataset.to_polars()["answer"].to_list(), [each["model"] for each in origins], dataset


async def test_a_server_that_refuses_connections_is_passed_over(tmp_path: Path) -> None:
    """The next model answers at once; no attempt fails, no row is dropped, and few cells try the first again."""
    gone = sb.OpenAICompatible(base_url="http://127.0.0.1:9/v1", model="small")
    answers, models, dataset = await built(recipe(text(), gone), tmp_path, rows=12)
    assert answers == ["from large"] * 12
    assert models == ["large"] * 12
    assert dataset.report.errors == {}
    assert dataset.report.attempts["answer"] == 12


async def test_a_call_that_fails_once_is_sent_again(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """One failure is not enough for the next model."""
    small = Fails(lambda: Retryable("status 503"), times=1)
    answers, models, _ = await built(recipe(text(), small), tmp_path)
    assert answers == ["from small"] * 4
    assert models == ["small"] * 4


async def test_a_model_that_fails_is_passed_over_for_a_while(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """After two failures the next model answers, and other cells do not wait for the first."""
    small = Fails(lambda: Retryable("status 503"))
    answers, models, _ = await built(recipe(text(), small, engine="sequential"), tmp_path, rows=20)
    assert answers == ["from large"] * 20
    assert models == ["large"] * 20
    assert small.calls == 2


async def test_a_model_that_is_back_is_called_again(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """When `fallback_after` is over, one cell tries it for all."""
    small = Fails(lambda: Retryable("status 503"), times=2)
    what = recipe(text(), small, sb.Scripted(model="large", answers="from large", latency=1.0), engine="sequential")
    answers, _, _ = await built(what, tmp_path, rows=30)
    assert answers[0] == "from large"
    assert answers[-1] == "from small"
    assert 10 <= answers.count("from large") <= 12


async def test_a_model_that_is_rate_limited_for_long_is_passed_over(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The cells do not wait for the hour that the server asks for: they start with a permit of the next model."""
    small = Fails(lambda: RateLimited("later", reset=3600))
    answers, models, dataset = await built(recipe(text(), small, throttle_patience=7200), tmp_path, rows=100)
    assert answers == ["from large"] * 100
    assert models == ["large"] * 100
    assert small.calls <= 32  # those that were in flight when the first of them was rate-limited
    assert dataset.report.seconds < 60


async def test_a_short_rate_limit_is_waited_for(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A cell goes back to its lane and calls the same model again."""
    small = Fails(lambda: RateLimited("later", retry_after=1.0), times=2)
    answers, _, _ = await built(recipe(text(), small), tmp_path)
    assert answers == ["from small"] * 4


async def test_answers_that_do_not_fit_are_escalated(tmp_path: Path) -> None:
    """When its repairs are used up, the next model is asked anew; tokens and cost of both count."""
    seen: list[list[str]] = []

    def large(request: Any) -> str:
        seen.append([message.content for message in request.messages])
        return '{"age": 7}'

    column = sb.LLMStructured("answer", models=["small", "large"], prompt="Say {{ n }}.", schema=PERSON, max_repairs=1)
    answers, models, dataset = await built(recipe(column, lambda _: "no idea", large), tmp_path, rows=2)
    assert answers == [{"age": 7}] * 2
    assert models == ["large"] * 2
    assert [len(messages) for messages in seen] == [1, 1]  # not the conversation with the first
    origins = dataset.provenance()["answer__provenance"].to_list()
    assert [each["calls"] for each in origins] == [3, 3]
    assert dataset.report.model_usage["small"].calls == 4


async def test_an_attempt_that_failed_leaves_its_answers_to_the_next(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The next attempt asks only the model that failed: what the first one answered is known."""
    asked: list[str] = []

    def small(_: Any) -> str:
        asked.append("small")
        return "no idea"

    def large(_: Any) -> str:
        asked.append("large")
        if asked.count("large") < 2:
            raise Retryable("status 503")
        return '{"age": 7}'

    column = sb.LLMStructured("answer", models=["small", "large"], prompt="Say {{ n }}.", schema=PERSON, max_repairs=0)
    answers, _, dataset = await built(recipe(column, small, large), tmp_path, rows=1)
    assert answers == [{"age": 7}]
    assert asked == ["small", "large", "large"]
    (origin,) = dataset.provenance()["answer__provenance"].to_list()
    assert (origin["model"], origin["attempts"], origin["calls"]) == ("large", 2, 2)


async def test_the_last_error_is_the_reason_of_a_drop(tmp_path: Path) -> None:
    """If no model gives an answer that fits, the row is dropped with the error of the last one, and what it cost."""
    column = sb.LLMStructured("answer", models=["small", "large"], prompt="Say {{ n }}.", schema=PERSON, max_repairs=0)
    names = ("small", "large")
    priced = {name: sb.Scripted(model=name, answers="no idea", output_price=1.0) for name in names}
    good = sb.Recipe(
        seed=1, columns=[sb.Category("n", values=["a", "b"]), column], models=priced, run={"backoff_base": 0.01}
    )
    with pytest.raises(sb.BuildError):
        await sb.build_async(good, rows=1, out=tmp_path / "out")
    dataset = sb.Dataset.open(tmp_path / "out")
    (dropped,) = dataset.dropped().to_dicts()
    assert dropped["_code"] == "bad_output"
    assert dropped["_cost"] == pytest.approx(dataset.report.usage["answer"].cost)
    assert dropped["_cost"] > 0


async def test_a_misconfigured_model_stops_the_run(tmp_path: Path) -> None:
    """A wrong key is not what fallbacks are for: nothing is dropped, and the error says what to do."""
    reply = sb.testing.Reply(status=401, body={"error": "bad key"})
    async with sb.testing.serve_openai(script=lambda _: reply) as server:
        wrong = sb.OpenAICompatible(base_url=server.url, model="small")
        with pytest.raises(BuildStopped, match="401"):
            await sb.build_async(recipe(text(), wrong), rows=3, out=tmp_path / "out")
    assert sb.Dataset.open(tmp_path / "out").drops == ()


async def test_embeddings_and_images_fall_back(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Every column with `model` may have `models`."""
    columns = [
        sb.Category("n", values=["a"]),
        sb.Embedding("vector", models=["small", "large"], of="n"),
        sb.Image("picture", models=["small", "large"], prompt="{{ n }}"),
    ]
    gone = sb.OpenAICompatible(base_url="http://127.0.0.1:9/v1", model="small")
    what = sb.Recipe(seed=1, columns=columns, models={"small": gone, "large": sb.Scripted(model="large")})
    dataset = await sb.build_async(what, rows=3, out=tmp_path / "out")
    for name in ("vector", "picture"):
        assert {each["model"] for each in dataset.provenance()[f"{name}__provenance"].to_list()} == {"large"}


def test_model_and_models_exclude_each_other() -> None:
    """One of the two is required, and an alias is listed once."""
    with pytest.raises(ConfigError, match="give the alias of a model in model, or several in models"):
        sb.LLMText("x", prompt="hi")
    with pytest.raises(ConfigError, match="exclude each other"):
        sb.LLMText("x", model="a", models=["a", "b"], prompt="hi")
    with pytest.raises(ConfigError, match="twice"):
        sb.LLMText("x", models=["a", "a"], prompt="hi")
    with pytest.raises(sb.DatasetGenerationError, match="large"):
        sb.preview(sb.Recipe(columns=[text()], models={"small": sb.Scripted()}), rows=1)


def test_a_recipe_with_several_models_survives_its_file() -> None:
    """`models` is written and read like any field."""
    assert "models:" in recipe_text(recipe(text(), "x"))
