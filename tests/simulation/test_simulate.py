"""`seedbed.simulate`: the predicted times, usage and limits."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import pytest
import trio
from recipes import chain, model

import seedbed as sb
from seedbed.simulation.result import simulation_data

# Without the overhead of the engine, times are exact.
simulate = partial(sb.simulate, seeds=1, overhead=0.0)


def test_duration_is_work_divided_by_parallel_calls() -> None:
    """Constant calls of a second, four at a time: 20 rows of two calls take ten seconds."""
    found = simulate(chain("question", "answer"), rows=20, calls={"writer": {"latency": 1.0}})
    assert found.seconds == pytest.approx(10.0, abs=0.01)
    assert found.base.total.calls.mean == 40
    assert found.base.written.mean == 20


def test_no_model_is_called_and_no_key_is_needed() -> None:
    """The model's address leads nowhere and its key is not set: a build fails, a simulation does not."""
    with pytest.raises(sb.DatasetGenerationError, match="SEEDBED_TEST_NO_SUCH_KEY"):
        sb.preview(chain("question"), rows=1)
    assert simulate(chain("question"), rows=3).base.written.mean == 3


def test_tokens_and_cost_by_column_and_model() -> None:
    """The tokens of a profile are counted and priced by column."""
    recipe = chain("question", "answer", input_price=1.0, output_price=10.0)
    found = simulate(recipe, rows=10, calls={"writer": {"tokens": "300/100"}, "answer": {"output_tokens": 50}})
    question, answer = found.base.columns
    assert (question.column, question.model) == ("question", "writer")
    assert question.input_tokens.mean == 3_000
    assert question.cost.mean == pytest.approx((3_000 * 1.0 + 1_000 * 10.0) / 1e6)
    assert answer.output_tokens.mean == 500
    assert found.cost == pytest.approx(question.cost.mean + answer.cost.mean)
    assert found.base.models["writer"].calls.mean == 20


def test_prompts_are_rendered_to_count_their_tokens() -> None:
    """Without a number in the profile, rendered prompts are counted."""
    recipe = sb.Recipe(
        models={"writer": model()},
        columns=[
            sb.LLMText("long", model="writer", prompt="word " * 400),
            sb.LLMText("short", model="writer", prompt="x"),
        ],
    )
    tokens = {each.column: each.input_tokens.mean for each in simulate(recipe, rows=100).base.columns}
    assert tokens["long"] == pytest.approx(100 * 500, rel=0.01)
    assert tokens["short"] == 100


def test_max_tokens_bounds_answers() -> None:
    """No answer is longer than the column's max_tokens."""
    text = sb.LLMText("a", model="writer", prompt="x", parameters={"max_tokens": 7})
    found = simulate(sb.Recipe(models={"writer": model()}, columns=[text]), rows=5)
    assert found.base.total.output_tokens.mean == 35


def test_the_model_is_the_bottleneck_until_it_is_not() -> None:
    """A higher limit of the model that holds the run up makes it faster, as the variants show."""
    found = simulate(
        chain("question"),
        rows=64,
        calls={"writer": {"latency": 1.0}},
        vary={"models.writer.max_parallel_requests": [8, 16]},
    )
    assert "writer: max_parallel_requests=4 is used up" in found.bottleneck
    assert [each.estimate.seconds.mean for each in found.variants] == [pytest.approx(8.0), pytest.approx(4.0)]
    assert [each.changes for each in found.variants] == [
        {"models.writer.max_parallel_requests": 8},
        {"models.writer.max_parallel_requests": 16},
    ]
    (use,) = found.base.keys
    assert use.models == ("writer",)
    assert use.busy > 0.95
    assert use.at_limit > 0.95


def test_row_group_admission_can_be_the_bottleneck() -> None:
    """With one row of one row group at a time a model with a high limit is idle."""
    config = sb.RunConfig(buffer_size=1, max_concurrent_row_groups=1)
    found = simulate(
        chain("question", max_parallel_requests=64), rows=20, config=config, calls={"writer": {"latency": 1.0}}
    )
    assert found.seconds == pytest.approx(20.0, abs=0.1)
    assert "max_concurrent_row_groups=1" in found.bottleneck


def test_the_submission_budget_can_be_the_bottleneck() -> None:
    """A budget of two tasks limits a model that allows 64 calls to two."""
    found = simulate(
        chain("question", max_parallel_requests=64),
        rows=40,
        config=sb.RunConfig(max_submitted_tasks=2),
        calls={"writer": {"latency": 1.0}},
    )
    assert "max_submitted_tasks=2" in found.bottleneck


def test_execution_slots_can_be_the_bottleneck() -> None:
    """Sync functions hold their slots for the latency of their profile."""

    @sb.column
    def slow(topic: str) -> str:
        raise AssertionError("it must not run")

    recipe = sb.Recipe(columns=[sb.Category("topic", values=["tea"]), slow])
    config = sb.RunConfig(max_active_tasks=2)
    found = simulate(recipe, rows=20, config=config, calls={"slow": {"latency": 1.0}})
    assert found.seconds == pytest.approx(10.0, abs=0.1)
    assert "max_active_tasks=2" in found.bottleneck


def test_requests_per_minute_pace_a_run() -> None:
    """A request a second, however many may be in flight."""
    recipe = chain("question", max_parallel_requests=64, requests_per_minute=60)
    found = simulate(recipe, rows=180, calls={"writer": {"latency": 0.1}})
    assert found.seconds == pytest.approx(180, rel=0.1)
    assert "per minute are used up" in found.bottleneck


def test_rate_limits_and_failures_are_drawn() -> None:
    """Rate-limited calls are sent again and drop nothing; failed ones are retried in salvage rounds."""
    profile = sb.CallProfile(latency=0.5, rate_limited=0.2, failed=0.05)
    found = simulate(chain("question"), rows=200, calls={"writer": profile})
    (use,) = found.base.keys
    assert use.rate_limited == pytest.approx(50, abs=30)
    assert found.base.written.mean + found.base.dropped.mean == 200
    assert found.base.total.calls.mean == pytest.approx(200, abs=10)


def test_a_server_rate_limits_above_its_capacity() -> None:
    """With a capacity below the ceiling the throttle finds it, and the bottleneck names it."""
    profile = {"latency": 1.0, "capacity": 8, "error_latency": 0.01}
    found = simulate(chain("question", max_parallel_requests=64), rows=400, calls={"writer": profile})
    assert found.seconds == pytest.approx(50, rel=0.25)
    assert "its server rate-limits above about 8 of 64 parallel calls" in found.bottleneck


def test_a_run_that_would_end_early_has_a_reason() -> None:
    """A budget that ends the real run ends the simulated one, and the result has its message."""
    found = simulate(
        chain("question"), rows=100, config=sb.RunConfig(max_tokens=1_000), calls={"writer": {"tokens": "10/90"}}
    )
    assert "max_tokens=1000" in (found.base.stopped or "")
    assert found.base.total.calls.mean == 10
    assert "the run would end early" in str(found)


def test_timeouts_of_a_model_apply() -> None:
    """A call that takes longer than the model's timeout fails after it."""
    found = simulate(
        chain("question", timeout=2.0),
        rows=4,
        config=sb.RunConfig(salvage_max_rounds=0, shutdown_error_window=100),
        calls={"writer": {"latency": 5.0}},
    )
    assert found.base.dropped.mean == 4
    assert found.seconds == pytest.approx(2.0, abs=0.01)


def test_the_engine_itself_takes_time() -> None:
    """If calls are faster than the thread that sends them, the run waits for the thread."""
    recipe, calls = chain("question", max_parallel_requests=64), {"writer": {"latency": 0.001}}
    assert simulate(recipe, rows=1_000, calls=calls, overhead=0.01).seconds == pytest.approx(10.0, rel=0.05)


def test_spread_over_seeds() -> None:
    """Each seed draws anew, and the result has the lowest and the highest."""
    found = sb.simulate(chain("question"), rows=50, seeds=3, calls={"writer": {"latency": "lognormal(1, 0.5)"}})
    spread = found.base.seconds
    assert found.base.seeds == 3
    assert spread.low < spread.mean < spread.high


def test_the_same_seed_draws_the_same_tokens() -> None:
    """What is drawn depends on the seed and not on the order in which tasks happen to run."""
    one, other = (simulate(chain("question"), rows=100) for _ in range(2))
    assert one.base.total.output_tokens == other.base.total.output_tokens


def test_assumptions_are_listed() -> None:
    """Latencies and tokens that are neither given nor measured are listed."""
    found = simulate(chain("question"), rows=2)
    assert found.base.assumptions == ("question (writer): latency, output tokens",)
    found = simulate(chain("question"), rows=2, calls={"writer": {"latency": 1.0, "tokens": 3}})
    assert found.base.assumptions == ()


def test_a_scripted_model_declares_its_profile() -> None:
    """The simulation uses the behaviour that a recipe declares for a scripted model."""
    recipe = sb.Recipe(
        models={"writer": sb.Scripted(latency=200.0, max_parallel_requests=1)},
        columns=[sb.LLMText("a", model="writer", prompt="x")],
    )
    # Its timeout is for calls that hang, not for those that take long.
    assert simulate(recipe, rows=3).seconds == pytest.approx(600.0)


def test_columns_without_a_recipe() -> None:
    """The engine's own columns can be simulated too: those with a key are calls."""

    def row(rows: range) -> list[int]:
        raise AssertionError("it must not run")

    async def ask(row: int) -> str:
        raise AssertionError("it must not run")

    columns = [sb.Column("row", row, kind="from_scratch"), sb.Column("ask", ask, key="server")]
    limits = {"server": sb.KeyLimits(max_parallel_requests=2)}
    found = simulate(columns, rows=10, limits=limits, calls={"ask": {"latency": 1.0}})
    assert found.seconds == pytest.approx(5.0, abs=0.01)
    assert found.base.keys[0].name == "server"


def test_inside_running_event_loops() -> None:
    """It works where an event loop runs: asyncio's as in a notebook, and trio's."""
    recipe = chain("question")

    async def cell() -> float:
        return simulate(recipe, rows=4, calls={"writer": {"latency": 1.0}}).seconds

    assert asyncio.run(cell()) == pytest.approx(1.0)
    assert trio.run(cell) == pytest.approx(1.0)


def test_seeds_in_processes() -> None:
    """Several processes give the same as one."""
    recipe = chain("question")
    here = sb.simulate(recipe, rows=40, seeds=2, processes=1)
    there = sb.simulate(recipe, rows=40, seeds=2, processes=2)
    assert there.base.total == here.base.total


def test_a_failure_in_a_process_is_raised_here() -> None:
    """Settings are checked before processes are started."""
    with pytest.raises(sb.ConfigError, match="belongs to neither a model nor a column; did you mean 'writer'"):
        sb.simulate(chain("question"), rows=40, seeds=2, processes=2, calls={"wirter": {"latency": 1}})


def test_the_result_as_json_and_as_text() -> None:
    """All of it can be written as JSON, and its text has headline, bottleneck, variants and assumptions."""
    found = simulate(chain("question"), rows=4, vary={"run.buffer_size": [2]})
    data = json.loads(json.dumps(simulation_data(found)))
    assert data["rows"] == 4
    assert data["variants"][0]["changes"] == {"run.buffer_size": 2}
    assert data["columns"][0]["origins"]["latency"] == "assumed"
    assert len(data["timeline"][0]["in_flight"]) == len(data["timeline"][0]["limit"])
    text = str(found)
    assert "4 of 4 rows" in text
    assert "bottleneck:" in text
    assert "run.buffer_size=2" in text
    assert "question (writer): latency lognormal(1.5, 0.5)" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds must be 1 or more, not 0"),
        ({"overhead": 2}, "overhead must be seconds between 0 and 1, not 2"),
        ({"probe": -1}, "probe must be a number of rows, not -1"),
        ({"rows": -1}, "rows must be a number of rows"),
        ({"run_code": ["nope"]}, "unknown column 'nope' in run_code"),
        ({"calls": {"writer": 3}}, "must be a mapping such as latency: 0.8, not 3"),
        ({"calls": {"writer": {"latencey": 3}}}, "unknown 'latencey'; did you mean 'latency'"),
        ({"calls": {"writer": {"latency": "normal(1)"}}}, "normal needs two numbers"),
        ({"calls": {"writer": {"latency": "gamma(1,2)"}}}, "unknown distribution 'gamma'"),
        ({"calls": {"writer": {"latency": "soon"}}}, "neither a number nor a distribution"),
        ({"calls": {"writer": {"latency": {"choice": [1, "soon"]}}}}, "latency must be a number, 0 or more"),
        ({"calls": {"writer": {"tokens": -1}}}, "output_tokens must be a number, 0 or more, or a distribution"),
        ({"calls": {"writer": {"retry_after": "soon"}}}, "'soon' is neither a number nor a distribution"),
        ({"calls": {"writer": {"retry_after": -1}}}, "retry_after must be a number, 0 or more, not -1"),
        ({"calls": {"writer": {"rate_limited": 2}}}, "rate_limited must be a number from 0 to 1, not 2"),
        ({"calls": {"writer": {"rate_limited": 0.8, "failed": 0.8}}}, "add up to more than 1"),
        ({"calls": {"writer": {"skipped": 0.5}}}, "has skipped, which only columns have"),
        ({"vary": {"models.nope.model": ["x"]}}, "unknown model 'nope'"),
        ({"vary": {"models.writer.speed": [1]}}, "unknown field 'speed'"),
        ({"vary": {"columns.nope.model": ["x"]}}, "unknown column 'nope'"),
        ({"vary": {"run.buffersize": [1]}}, "unknown option 'buffersize'; did you mean 'buffer_size'"),
        ({"vary": {"profile.writer.speed": [1]}}, "unknown field 'speed'"),
        ({"vary": {"speed": [1]}}, "cannot be varied"),
        ({"vary": {"run.buffer_size": list(range(1, 70))}}, "69 variants"),
        ({"vary": {"run.buffer_size": []}}, "must be varied over a list of values"),
        ({"measured_from": "no/such/file"}, "cannot be read"),
    ],
)
def test_invalid_input_is_rejected(options: dict[str, object], message: str) -> None:
    """The message names the problem, before anything runs."""
    given: dict[str, object] = {"rows": 2, "seeds": 1, **options}
    with pytest.raises(sb.ConfigError, match=message):
        sb.simulate(chain("question"), **given)  # type: ignore[arg-type]


def test_no_rows_take_no_time() -> None:
    """Nothing to do is a result like any other."""
    found = simulate(chain("question"), rows=0)
    assert found.seconds == 0
    assert found.base.total.calls.mean == 0
    assert str(found).startswith("0 of 0 rows in 0.0s")


def test_the_sequential_engine_takes_the_sum_of_its_calls() -> None:
    """The engine that the recipe names is the one that is simulated."""
    config = sb.RunConfig(engine="sequential")
    found = simulate(chain("question"), rows=6, config=config, calls={"writer": {"latency": 1.0}})
    assert found.seconds == pytest.approx(6.0, abs=0.01)


def test_a_process_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has its status and its last line."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(sb.SeedbedError, match="ended with status 1: no output"):
        sb.simulate(chain("question"), rows=4, seeds=2, processes=2)


def test_a_run_that_ends_before_its_first_sample() -> None:
    """Calls that take no time leave no samples; the throttle is reported with its ceiling."""
    found = simulate(chain("question"), rows=3, calls={"writer": {"latency": 0}})
    assert [load.limit for load in found.base.keys] == [4.0]
    assert found.bottleneck.startswith("none")


def test_a_column_that_runs_once_per_key() -> None:
    """It calls once for each key; where the key is a placeholder, every cell does, and a note says so."""

    def calls(key: str) -> tuple[float, tuple[str, ...]]:
        columns = [
            sb.Category("account", values=["a", "b", "c"]),
            sb.LLMText("note", model="writer", prompt="About {{ account }}"),
            sb.LLMText("profile", model="writer", prompt="{{ account }} {{ note }}", once_per=key),
        ]
        found = simulate(sb.Recipe(seed=1, columns=columns, models={"writer": sb.Scripted()}), rows=60)
        used = {column.column: column.calls.mean for column in found.base.columns}
        return used["profile"], found.base.notes

    assert calls("account") == (3, ())
    made, notes = calls("note")
    assert made == 60
    assert any("once_per of column 'profile' reads placeholders" in note for note in notes)
