"""`run`, `resume` and `preview`, and how they end."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import polars as pl
import pytest
from command import REVIEWS, TEXT, recipe, seedbed, started

import seedbed as library
from seedbed.testing import serve_openai_sync

if TYPE_CHECKING:
    from pathlib import Path

SLOW = """\
import trio

async def slow(thing: str) -> str:
    await trio.sleep(30)
    return thing
"""
FAILING = """\
import seedbed

def failing(thing: str) -> str:
    if thing == "lamp":
        raise seedbed.Permanent("no lamps")
    return thing

def broken(thing: str) -> str:
    raise seedbed.Permanent("nothing works")

def filtered(frame):
    raise ValueError("no such frame")
"""


def custom(directory: Path, function: str, code: str) -> Path:
    """Write a recipe with a column that a function of `code` fills."""
    (directory / "mine.py").write_text(code, encoding="utf-8")
    return recipe(directory, f"  - {{name: mine, type: custom, function: 'mine:{function}'}}\n")


def test_the_quickstart_builds(tmp_path: Path) -> None:
    """The recipe of the quickstart generates the requested rows and shows the first of them."""
    ended = seedbed("run", REVIEWS, "-n", "20", "-o", tmp_path / "reviews", "--head", "1")
    assert ended.code == 0, ended.err
    assert "20 of 20 rows in" in ended.out
    assert "row 0" in ended.out
    assert "row 1" not in ended.out
    assert "rows 20/20 written" in ended.err
    frame = library.Dataset.open(tmp_path / "reviews").to_polars()
    assert frame.height == 20
    assert frame["facts_check"].struct.field("is_valid").all()
    assert frame["keep"].dtype == pl.Boolean


def test_json_is_one_value(tmp_path: Path) -> None:
    """With --json standard output is one JSON value with the report."""
    ended = seedbed("run", recipe(tmp_path, TEXT), "-n", "10", "-o", tmp_path / "out", "--json")
    assert ended.code == 0
    found = ended.json
    assert (found["requested"], found["written"], found["dropped"]) == (10, 10, 0)
    assert found["usage"]["review"]["calls"] == 10
    assert found["path"] == str(tmp_path / "out")


def test_the_same_seed_gives_the_same_rows(tmp_path: Path) -> None:
    """The same --seed gives the same rows, another one does not."""
    path = recipe(tmp_path)
    frames = []
    for number, seed in enumerate((8, 8, 9)):
        out = tmp_path / str(number)
        assert seedbed("run", path, "-n", "50", "-o", out, "--seed", str(seed)).code == 0
        frames.append(library.Dataset.open(out).to_polars())
    assert frames[0].equals(frames[1])
    assert not frames[0].equals(frames[2])


def test_models_can_be_replaced_by_a_script(tmp_path: Path) -> None:
    """A recipe whose endpoint is not reachable runs with --model-override, for all models or for one."""
    path = recipe(tmp_path, TEXT)
    text = path.read_text(encoding="utf-8").replace(
        "{type: scripted, input_price: 1.0, output_price: 1.0}",
        "{type: openai, base_url: 'http://127.0.0.1:9/v1', model: small, api_key_env: NOT_IN_THE_ENVIRONMENT}",
    )
    path.write_text(text, encoding="utf-8")
    assert seedbed("preview", path, "-n", "2").code == 2
    for override in ("scripted", "writer=scripted"):
        ended = seedbed("preview", path, "-n", "2", "--model-override", override, "--json")
        assert ended.code == 0, ended.err
        assert all(record["review"] for record in ended.json["records"])


def test_dropped_rows_are_reported_and_the_run_succeeds(tmp_path: Path) -> None:
    """A run that drops rows succeeds, logs the first of them with their place and counts them by reason."""
    path = custom(tmp_path, "failing", FAILING)
    ended = seedbed("run", path, "-n", "40", "-o", tmp_path / "out", "--allow-code", "--shutdown-error-rate", "1")
    assert ended.code == 0, ended.err
    assert "rows dropped" in ended.out
    assert "× mine: no lamps" in ended.out
    assert "(column=mine, row_group=0)" in ended.err


def test_an_empty_dataset_has_its_own_status(tmp_path: Path) -> None:
    """The status is that of too many errors, and the message has the command that retries the dropped rows."""
    path = custom(tmp_path, "broken", FAILING)
    out = tmp_path / "out"
    ended = seedbed("run", path, "-n", "3", "-o", out, "--allow-code")
    assert ended.code == 4
    assert "× mine: nothing works" in ended.out
    assert ended.err.splitlines()[-2:] == [
        "seedbed: the dataset is empty: 0 of 3 rows, 3 dropped",
        f"to retry them: seedbed resume {out} --allow-code --allow-path {tmp_path} --retry-dropped",
    ]
    ended = seedbed("resume", out, "--allow-code", "--allow-path", tmp_path, "--retry-dropped", "--json")
    assert (ended.code, ended.json["written"], ended.json["dropped"]) == (4, 0, 3)
    again = f"seedbed resume {out} --retry-dropped --allow-code --allow-path {tmp_path}"
    assert ended.err.splitlines()[-1] == f"to retry them: {again}"
    ended = seedbed("preview", path, "-n", "2", "--allow-code")
    assert (ended.code, ended.err.splitlines()[-1]) == (4, "seedbed: the dataset is empty: 0 of 2 rows, 2 dropped")
    assert seedbed("run", path, "-n", "0", "-o", tmp_path / "none", "--allow-code").code == 0


def test_a_filter_that_leaves_nothing(tmp_path: Path) -> None:
    """A filter that removes every row has the same status, but there is nothing to retry."""
    path = recipe(tmp_path, 'processors:\n  - {type: filter, expr: "stars > 9"}\n')
    ended = seedbed("run", path, "-n", "3", "-o", tmp_path / "out")
    assert ended.code == 4
    assert ended.err.splitlines()[-2:] == [
        "seedbed: the dataset is empty: 0 rows, 3 requested, 3 removed by 'filter'",
        "correct the processor and run the same command with --resume: no finished cell is generated again",
    ]


def test_async_code_that_blocks_is_named(tmp_path: Path) -> None:
    """A column whose async code blocks the loop is named in a warning, once."""
    code = "import time\n\nasync def rude(thing: str) -> str:\n    time.sleep(0.15)\n    return thing\n"
    path = custom(tmp_path, "rude", code)
    ended = seedbed("run", path, "-n", "3", "-o", tmp_path / "out", "--allow-code")
    assert ended.code == 0, ended.err
    (warning,) = [line for line in ended.err.splitlines() if "blocked the event loop" in line]
    assert "column 'mine'" in warning


def test_code_is_not_run_unless_allowed(tmp_path: Path) -> None:
    """A recipe that names code is rejected without --allow-code, and its module is not imported."""
    path = custom(tmp_path, "slow", "raise SystemExit('imported')")
    ended = seedbed("run", path, "-n", "1", "-o", tmp_path / "out")
    assert ended.code == 2
    assert "--allow-code" in ended.err
    assert "imported" not in ended.err
    assert not (tmp_path / "out").exists()


def test_a_trace_is_written_and_a_profile_stored(tmp_path: Path) -> None:
    """--trace writes a timeline and stores the profile that `inspect --profile` shows."""
    path = recipe(tmp_path, TEXT)
    ended = seedbed("run", path, "-n", "10", "-o", tmp_path / "out", "--trace", tmp_path / "trace.json")
    assert ended.code == 0, ended.err
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert sum(event["ph"] == "X" and event["args"]["column"] == "review" for event in events) >= 10
    shown = seedbed("inspect", tmp_path / "out", "--profile")
    assert shown.code == 0
    for part in ("queue", "slot", "permit", "call", "parse", "review"):
        assert part in shown.out
    profile = seedbed("inspect", tmp_path / "out", "--profile", "--json").json["profile"]
    assert {each["column"]: each["tasks"] for each in profile}["review"] == 10


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--max-tokens", "1", "--buffer-size", "5"), 7, "max_tokens"),
        (("--max-cost", "0"), 7, "max_cost"),
        (("--buffer-size", "0"), 2, "buffer_size must be a whole number, 1 or more, not 0"),
        (("--option", "bufer_size=3"), 2, "unknown option 'bufer_size'; did you mean 'buffer_size'?"),
        (("--option", "buffer_size"), 2, "--option takes NAME=VALUE, not 'buffer_size'"),
        (("--option", "engine=parallel"), 2, "engine must be"),
        (("--model-override", "wrter=scripted"), 2, "did you mean 'writer'?"),
        (("--model-override", "gpt"), 2, "--model-override takes scripted or local"),
        (("--rows", "many"), 2, "many"),
        (("--nonsense",), 2, "--nonsense"),
    ],
)
def test_each_failure_has_its_status(options: tuple[str, ...], code: int, message: str, tmp_path: Path) -> None:
    """Each way to end early has its exit code and one message without a traceback."""
    rows = () if "--rows" in options else ("-n", "20")
    ended = seedbed("run", recipe(tmp_path, TEXT), *rows, "-o", tmp_path / "out", *options)
    assert ended.code == code, ended.err
    assert message in ended.err
    assert "Traceback" not in ended.err


def test_too_many_errors_have_a_code(tmp_path: Path) -> None:
    """A run that fails everywhere stops with its own status and the command that resumes it."""
    path = custom(tmp_path, "broken", FAILING)
    ended = seedbed("run", path, "-n", "100", "-o", tmp_path / "out", "--allow-code")
    assert ended.code == 4, ended.err
    assert "shutdown_error_rate" in ended.err
    assert f"to resume: seedbed resume {tmp_path / 'out'} --allow-code" in ended.err


def test_a_deadline_has_a_code(tmp_path: Path) -> None:
    """A run that exceeds its deadline stops with its own status, also with --json."""
    path = custom(tmp_path, "slow", SLOW)
    ended = seedbed("run", path, "-n", "2", "-o", tmp_path / "out", "--allow-code", "--deadline", "0.1", "--json")
    assert ended.code == 5
    error = ended.json["error"]
    assert (error["kind"], error["exit_code"]) == ("DeadlineExceeded", 5)


def test_an_endpoint_that_rate_limits_everything_has_a_status(tmp_path: Path) -> None:
    """When patience with an endpoint ends, so does the run, with the key in its message."""
    path = recipe(tmp_path, TEXT)
    path.write_text(path.read_text().replace("type: scripted,", "type: scripted, capacity: 0,"))
    ended = seedbed("run", path, "-n", "2", "-o", tmp_path / "out", "--throttle-patience", "0.1")
    assert ended.code == 6, ended.err
    assert "scripted" in ended.err


def test_a_processor_that_fails_has_a_code(tmp_path: Path) -> None:
    """A processor after the batch that fails stops the run with its own code."""
    path = recipe(tmp_path, "processors:\n  - {type: schema_transform, cast: {thing: int}}\n")
    ended = seedbed("run", path, "-n", "5", "-o", tmp_path / "out")
    assert ended.code == 9, ended.err


def test_a_directory_that_is_not_empty_is_rejected(tmp_path: Path) -> None:
    """A directory that is not empty is not touched."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    ended = seedbed("run", recipe(tmp_path), "-n", "5", "-o", tmp_path / "out")
    assert ended.code == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    """--debug shows where an error came from."""
    ended = seedbed("run", tmp_path / "none.yaml", "-n", "1", "-o", tmp_path / "out", "--debug")
    assert ended.code == 2
    assert "Traceback" in ended.err
    assert "none.yaml" in ended.err


def test_ctrl_c_prints_the_command_that_resumes(tmp_path: Path) -> None:
    """Ctrl-C ends a run with 130 and the command that resumes it; that command finishes it."""
    (tmp_path / "mine.py").write_text(
        "import trio\n\nasync def slow(thing: str, stars: int) -> str:\n"
        "    import pathlib\n"
        f"    if not pathlib.Path({str(tmp_path / 'go')!r}).exists() and stars >= 4:\n"
        "        await trio.sleep(60)\n"
        "    return thing\n"
    )
    path = recipe(tmp_path, "  - {name: mine, type: custom, function: 'mine:slow'}\n")
    out = tmp_path / "out"
    options = ("--allow-code", "--buffer-size", "1", "--option", "grace=0", "-v")
    with started("run", path, "-n", "12", "-o", out, *options) as process:
        assert process.stderr is not None
        seen = []
        for line in process.stderr:  # until a row group is on disk
            seen.append(line)
            if "rows finished" in line:
                break
        process.send_signal(signal.SIGINT)
        seen += process.communicate(timeout=60)[1].splitlines(keepends=True)
    text = "".join(seen)
    assert process.returncode == 130, text
    assert f"to resume: seedbed resume {out} --allow-code --allow-path {tmp_path}" in text
    assert "Traceback" not in text
    before = library.Dataset.open(out)
    assert not before.complete
    assert 0 < before.rows < 12
    assert "to resume: seedbed resume" in seedbed("inspect", out).out
    (tmp_path / "go").touch()
    ended = seedbed("resume", out, "--allow-code", "--allow-path", tmp_path)
    assert ended.code == 0, ended.err
    assert f"rows {12}/12 written" in ended.err
    assert library.Dataset.open(out).complete
    assert library.Dataset.open(out).rows == 12


def test_resume_needs_a_dataset(tmp_path: Path) -> None:
    """A directory without a dataset cannot be resumed."""
    ended = seedbed("resume", tmp_path)
    assert ended.code == 3
    assert str(tmp_path) in ended.err


def test_preview_shows_records_and_writes_nothing(tmp_path: Path) -> None:
    """A preview prints its rows as records, or as JSON, and leaves no file behind."""
    path = recipe(tmp_path, TEXT)
    before = sorted(tmp_path.iterdir())
    ended = seedbed("preview", path, "-n", "2", cwd=tmp_path)
    assert ended.code == 0, ended.err
    for part in ("row 0", "row 1", "thing", "review"):
        assert part in ended.out
    records = seedbed("preview", path, "-n", "2", "--json").json["records"]
    assert [set(record) for record in records] == [{"thing", "stars", "good", "review"}] * 2
    assert sorted(tmp_path.iterdir()) == before


def test_closed_output_is_not_an_error(tmp_path: Path) -> None:
    """A reader that closes our output ends the command without a message."""
    with started("preview", recipe(tmp_path), "-n", "1000") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == 141
    assert "Traceback" not in errors


def test_a_pipe_gets_a_line_every_ten_seconds(tmp_path: Path) -> None:
    """Where standard error is no terminal, progress is a short line without an escape sequence."""
    ended = seedbed("run", recipe(tmp_path, TEXT), "-n", "10", "-o", tmp_path / "out")
    (line,) = [line for line in ended.err.splitlines() if line.startswith("[")]
    assert "rows 10/10 written | 40 cells durable" in line
    assert "302 tokens | cost 0.0003" in line
    assert "\x1b" not in ended.err + ended.out


def test_progress_can_be_switched_off(tmp_path: Path) -> None:
    """With --progress none a successful run writes nothing to standard error."""
    ended = seedbed("run", recipe(tmp_path), "-n", "10", "-o", tmp_path / "out", "--progress", "none", "--head", "0")
    assert ended.err == ""
    assert ended.out.startswith("10 of 10 rows in")


def test_a_dataset_grows(tmp_path: Path) -> None:
    """`resume --rows` adds rows to a finished dataset, with the same rows as one run; fewer rows are rejected."""
    path, out = recipe(tmp_path, TEXT), tmp_path / "out"
    assert seedbed("run", path, "-n", "5", "-o", out).code == 0
    ended = seedbed("resume", out, "--rows", "12", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["requested"], ended.json["written"]) == (12, 12)
    assert ended.json["usage"]["review"]["calls"] == 12
    assert seedbed("run", path, "-n", "12", "-o", tmp_path / "whole").code == 0
    grown, whole = (library.Dataset.open(each).to_polars() for each in (out, tmp_path / "whole"))
    assert grown.equals(whole)
    ended = seedbed("resume", out, "-n", "3")
    assert ended.code == 3
    assert "the dataset has 12 rows, 3 were requested; a dataset can grow but not shrink" in ended.err
    assert seedbed("run", path, "-n", "14", "-o", out, "--resume").code == 0
    assert library.Dataset.open(out).rows == 14


def test_changes_are_reported_and_accepted(tmp_path: Path) -> None:
    """An edited field is named and rejected; so is edited code, unless it is accepted."""
    path, out = custom(tmp_path, "f", "def f(thing: str) -> str:\n    return 'old'\n"), tmp_path / "out"
    run = ("run", path, "-n", "4", "-o", out, "--resume", "--allow-code")
    assert seedbed(*run, "--buffer-size", "2").code == 0
    (tmp_path / "mine.py").write_text("def f(thing: str) -> str:\n    return 'new'\n", encoding="utf-8")
    resume = ("resume", out, "--allow-code", "--allow-path", tmp_path, "--rows", "6")
    ended = seedbed(*resume)
    assert ended.code == 3
    assert "columns.mine.function: its code was edited: mine:f" in ended.err
    assert "--accept-changes" in ended.err
    ended = seedbed(*resume, "--accept-changes")
    assert ended.code == 0, ended.err
    assert library.Dataset.open(out).to_polars()["mine"].to_list() == ["old"] * 4 + ["new"] * 2
    path.write_text(path.read_text(encoding="utf-8").replace("lamp", "torch"), encoding="utf-8")
    ended = seedbed("run", path, "-n", "6", "-o", out, "--resume", "--allow-code", "--accept-changes")
    assert ended.code == 3
    assert "columns.thing.values" in ended.err


SCORED = """\
models:
  writer: {{type: openai, base_url: {url}, model: small}}
columns:
  - {{name: id, type: uniform, low: 0, high: 10, decimals: 0}}
  - {{name: b, type: llm-text, model: writer, prompt: "a text {{{{ id }}}}"}}
  - {{name: length, type: expression, expr: "{{{{ b | length }}}}", dtype: int}}
processors:
  - {{type: filter, stage: {stage}, expr: {expr}}}
"""


@pytest.mark.parametrize("stage", ["post_batch", "after_generation"])
def test_a_processor_that_failed_is_corrected(stage: str, tmp_path: Path) -> None:
    """A filter that fails after all cells were paid for is corrected and resumed without another call."""
    path, out = tmp_path / "scored.yaml", tmp_path / "out"
    with serve_openai_sync() as server:
        path.write_text(SCORED.format(url=server.url, stage=stage, expr="b / 2 > 1"), encoding="utf-8")
        run = ("run", path, "-n", "20", "-o", out)  # one row group: every call is answered before the processor runs
        ended = seedbed(*run)
        assert ended.code == 9, ended.err
        calls = server.statistics.prompts.total()
        path.write_text(SCORED.format(url=server.url, stage=stage, expr="length > 1"), encoding="utf-8")
        ended = seedbed(*run)
        assert ended.code == 2
        assert (
            f"holds a dataset of another recipe; nothing was changed\n  - to see it: seedbed inspect {out}" in ended.err
        )
        ended = seedbed(*run, "--resume")
        assert ended.code == 0, ended.err
        paid = [request for request in server.statistics.prompts if request.startswith("a text")]
        assert sum(server.statistics.prompts[each] for each in paid) == 20
        assert server.statistics.prompts.total() <= calls + 1  # of a check of the model, if any
        assert library.Dataset.open(out).rows == 20
        # The directory knows the corrected recipe.
        ended = seedbed("resume", out, "-n", "21")
        assert ended.code == 0, ended.err


def test_a_dataset_is_replaced_on_request(tmp_path: Path) -> None:
    """The same command again says that the dataset is finished; --overwrite replaces it, and asks nothing in a pipe."""
    path, out = recipe(tmp_path), tmp_path / "out"
    run = ("run", path, "-o", out)
    assert seedbed(*run, "-n", "5").code == 0
    ended = seedbed(*run, "-n", "5")
    assert ended.code == 2
    assert "is finished (5 rows requested); nothing was changed" in ended.err
    assert "--resume" in ended.err
    assert f"seedbed inspect {out}" in ended.err
    assert "--overwrite" in ended.err
    assert seedbed(*run, "-n", "3", "--overwrite").code == 0
    assert library.Dataset.open(out).rows == 3


def test_options_of_a_resume_need_one(tmp_path: Path) -> None:
    """`run --accept-changes` without --resume is rejected before anything is written."""
    ended = seedbed("run", recipe(tmp_path), "-n", "1", "-o", tmp_path / "out", "--accept-changes")
    assert ended.code == 2
    assert "accept_changes applies to an existing dataset: pass out and resume=True with it" in ended.err
    assert not (tmp_path / "out").exists()


PICKY = """\
import os
import seedbed

def shout(thing: str) -> str:
    return f"{thing}!"

def picky(shout: str, stars: float) -> str:
    if "LAMP" in shout and os.environ.get("PICKY"):
        raise seedbed.Permanent("no lamps")
    return f"{shout} {stars}"
"""


def test_retried_rows_have_the_values_of_the_processors(tmp_path: Path) -> None:
    """Rows that processors filtered and changed come back with those values, in their places."""
    (tmp_path / "mine.py").write_text(PICKY, encoding="utf-8")
    path = recipe(
        tmp_path,
        "  - {name: shout, type: custom, function: 'mine:shout'}\n"
        "  - {name: picky, type: custom, function: 'mine:picky'}\n"
        "processors:\n"
        "  - {type: filter, stage: pre_batch, expr: stars > 2}\n"
        "  - {type: schema_transform, stage: pre_batch, template: {thing: '{{ thing | upper }}'}}\n",
    )
    arguments = ("run", path, "-n", "12", "--allow-code", "--json")
    assert seedbed(*arguments, "-o", tmp_path / "whole").code == 0
    out = tmp_path / "out"
    dropping = seedbed(*arguments, "-o", out, PICKY="1")
    assert dropping.json["dropped"] > 0
    again = seedbed("resume", out, "--allow-code", "--allow-path", tmp_path, "--retry-dropped", "--json")
    assert (again.code, again.json["dropped"]) == (0, 0), again.err
    whole = library.Dataset.open(tmp_path / "whole").to_polars()
    assert library.Dataset.open(out).to_polars().equals(whole)
    assert whole["shout"].to_list() == [f"{thing}!" for thing in whole["thing"]]


def test_resume_names_the_way_to_change_a_recipe(tmp_path: Path) -> None:
    """Its recipe is the stored one: options that change it belong to `run`."""
    for option in ("--model-override=local", "--seed=3"):
        ended = seedbed("resume", tmp_path / "out", option)
        assert ended.code == 2
        assert "to change it, use seedbed run RECIPE … --resume" in ended.err
    assert "stored" not in seedbed("resume", tmp_path / "out", "--row=3").err
