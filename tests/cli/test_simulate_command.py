"""`seedbed simulate` as a user types it."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from command import TEXT, recipe, seedbed, started


def test_it_prints_duration_usage_and_bottleneck(tmp_path: Path) -> None:
    """The headline, the bottleneck, use, limits, the timeline, and what was assumed."""
    ended = seedbed("simulate", recipe(tmp_path, TEXT), "-n", "64", "--latency", "writer=1", "--seeds", "2")
    assert ended.code == 0, ended.err
    assert "64 of 64 rows in" in ended.out
    assert "(simulated, 2 seeds)" in ended.out
    assert "bottleneck: writer: max_parallel_requests=32 is used up" in ended.out
    assert "row-group admission" in ended.out
    assert "32 ┤" in ended.out
    assert "review (writer): output tokens lognormal(150, 0.5)" in ended.out


def test_a_very_large_run_is_scaled(tmp_path: Path) -> None:
    """The headline says from how many rows."""
    ended = seedbed("simulate", recipe(tmp_path, TEXT), "-n", "1000000000", "--latency", "writer=1", "--seeds", "1")
    assert ended.code == 0, ended.err
    assert "1,000,000,000 of 1,000,000,000 rows in 361d" in ended.out
    assert "(simulated, 1 seed; scaled from 4,998 rows)" in ended.out


def test_variants_are_a_table(tmp_path: Path) -> None:
    """Each variant has a line with its time, cost and bottleneck."""
    ended = seedbed(
        "simulate", recipe(tmp_path, TEXT), "-n", "64", "--latency", "writer=1", "--seeds", "1",
        "--vary", "models.writer.max_parallel_requests=16,64",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert "unchanged" in ended.out
    assert "models.writer.max_parallel_requests=16" in ended.out
    assert "× 2.0" in ended.out or "× 1.9" in ended.out


def test_json_for_machines(tmp_path: Path) -> None:
    """The JSON has the whole result, and every option of profiles applies."""
    profile = tmp_path / "profile.yaml"
    profile.write_text("writer: {latency: 9, tokens: 10/20, calls: 1.0}\n", encoding="utf-8")
    ended = seedbed(
        "simulate", recipe(tmp_path, TEXT), "-n", "10", "--json", "--profile", profile,
        "--latency", "writer=uniform(1,2)", "--rate-limited", "writer=0.1", "--failed", "writer=0.0",
        "--capacity", "writer=8", "--tokens", "review=normal(30,1)/40", "--html", tmp_path / "page.html",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    (column,) = ended.json["columns"]
    assert column["profile"]["latency"] == {"uniform": [1.0, 2.0]}
    assert column["profile"]["capacity"] == 8
    assert column["output_tokens"]["mean"] == 400
    assert ended.json["assumptions"] == []
    assert ended.json["seconds"]["mean"] > 1
    assert "calls in flight" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_measured_by_a_probe_and_from_a_run(tmp_path: Path) -> None:
    """A probe or an earlier run provides the fields that are not given; the usage of a probe is printed."""
    path = recipe(tmp_path, TEXT)
    probed = seedbed("simulate", path, "-n", "10", "--probe", "3", "--seeds", "1")
    assert probed.code == 0, probed.err
    assert "measured with 3 real rows: 3 calls" in probed.out
    assert "assumed" not in probed.out
    assert seedbed("run", path, "-n", "5", "-o", tmp_path / "data", "--trace", tmp_path / "trace.json").code == 0
    for source in (tmp_path / "data", tmp_path / "trace.json"):
        ended = seedbed("simulate", path, "-n", "10", "--from", source, "--seeds", "1", "--json")
        assert ended.code == 0, ended.err
        assert ended.json["columns"][0]["origins"]["latency"] == "measured"


def test_a_run_that_would_end_early(tmp_path: Path) -> None:
    """The reason is printed, and the simulation itself succeeds."""
    ended = seedbed("simulate", recipe(tmp_path, TEXT), "-n", "50", "--max-tokens", "500", "--tokens", "writer=10/90")
    assert ended.code == 0
    assert "the run would end early: the next call of column 'review' could exceed max_tokens=500" in ended.out


def _children(parent: int) -> list[Path]:
    """The directories in /proc of the processes that a process started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if f"\nPPid:\t{parent}\n" in (process / "status").read_text():
                found.append(process)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_its_processes(tmp_path: Path, number: int) -> None:
    """The command ends as a run does, and none of the processes that simulate its seeds is left."""
    with started("simulate", recipe(tmp_path, TEXT), "-n", "240k", "--seeds", "2") as process:
        while len(children := _children(process.pid)) < 2 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "seedbed: interrupted\n")
    assert len(children) == 2
    assert not any(child.exists() for child in children)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--latency", "writer"], "--latency takes NAME=VALUE, not 'writer'"),
        (["--latency", "wirter=1"], "belongs to neither a model nor a column; did you mean 'writer'?"),
        (["--rate-limited", "writer=often"], "the profile of 'writer': 'often' is neither a number nor a distribution"),
        (["--vary", "buffer_size"], "PATH=VALUE,VALUE"),
        (["--vary", "models.writer.nope=1"], "unknown field 'nope'"),
        (["--profile", "no-such-file.yaml"], "cannot be read"),
        (["--from", "no-such-directory"], "cannot be read"),
        (["--seeds", "0"], "seeds must be 1 or more"),
    ],
)
def test_invalid_input_is_reported(tmp_path: Path, options: list[str], message: str) -> None:
    """A sentence on standard error and status 2."""
    ended = seedbed("simulate", recipe(tmp_path, TEXT), "-n", "5", *options)
    assert ended.code == 2
    assert message in ended.err
