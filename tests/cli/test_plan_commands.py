"""`seedbed plan check|run|bench|explain|list`, each in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from command import COMMAND, ENVIRONMENT, ROOT, seedbed, started

from seedbed import errors
from seedbed.cli.exit_codes import ExitCode, exit_code

if TYPE_CHECKING:
    from pathlib import Path

    from command import Ended

PLANS = ROOT / "examples" / "plans"
MEMORY = ("--registries", PLANS / "registries.toml")
REQUEST = ("--request", '{"user_id": 1, "request_id": "mine"}')
NAMES = sorted(path.stem for path in PLANS.glob("*.json"))
COMMANDS = ("check", "run", "bench", "explain", "list")


def node(number: int, op: str, *inputs: int, **params: Any) -> dict[str, Any]:
    """A node n<number> of a document."""
    return {"node_id": f"n{number}", "op": op, "inputs": [f"n{each}" for each in inputs], "params": params}


def write_plan(path: Path, *nodes: dict[str, Any], **fields: Any) -> Path:
    """A plan file; its last node is the output."""
    document = {
        "schema_version": 1,
        "plan_name": path.stem,
        "nodes": nodes,
        "outputs": [nodes[-1]["node_id"]],
        "expr_table": {},
        "pred_table": {},
        **fields,
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def error_line(ended: Ended, code: str) -> str:
    """The single line of an error with this code."""
    (line,) = ended.err.splitlines()
    assert line.startswith(f"seedbed: {code}: ")
    assert ended.out == ""
    return line


def test_every_plan_command_has_help() -> None:
    """A command prints its usage, and the overview of plan commands lists it with a sentence."""
    overview = seedbed("plan", "--help").out
    for name in COMMANDS:
        assert f"seedbed plan {name}" in seedbed("plan", name, "--help").out
        assert re.search(rf"^\W*{name} +\w", overview, re.MULTILINE)


def test_help_does_not_load_the_plan_engine() -> None:
    """The help of plan commands imports neither trio, numpy nor polars."""
    code = (
        "import sys; from seedbed.cli import main; [main(['plan', name, '--help']) for name in sys.argv[1:]];"
        "found = {'polars', 'numpy', 'trio'} & set(sys.modules); sys.exit(str(found) if found else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code, *COMMANDS], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_every_plan_error_has_an_exit_code() -> None:
    """Each error of a request has its own exit status; an invalid plan or request is bad input."""
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.PlanError)]
    codes = {kind: exit_code(kind.__new__(kind)) for kind in kinds}
    wrong = {errors.PlanError, errors.InvalidPlan, errors.InvalidRequest}
    assert {codes.pop(kind) for kind in wrong} == {ExitCode.BAD_INPUT}
    assert len(set(codes.values())) == len(codes) == 5
    for kind, code in codes.items():
        assert kind.code in code.meaning


@pytest.mark.parametrize("name", NAMES)
def test_every_example_runs_without_a_server(name: str) -> None:
    """The registries beside the examples are sufficient."""
    ended = seedbed("plan", "run", PLANS / f"{name}.json", *MEMORY, "-r", '{"user_id": 9}', "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.json["candidates"]


def test_fusion_does_not_change_the_answer() -> None:
    """All modes give the same candidates."""
    arguments = ("plan", "run", PLANS / "complex_dag.json", *MEMORY, *REQUEST, "--json", "--fusion")
    off, auto = (seedbed(*arguments, fusion).json["candidates"] for fusion in ("off", "auto"))
    assert off == auto


def test_run_shows_candidates() -> None:
    """The output is a table of ids and fields, and the id of the request."""
    ended = seedbed("plan", "run", PLANS / "mixed_pipeline.json", *MEMORY, *REQUEST)
    assert ended.code == 0
    head, *rows, last = ended.out.splitlines()
    assert head.split() == ["id", "country", "final_score"]
    assert last == f"request mine: {len(rows)} candidates"
    scores = [float(row.split()[-1]) for row in rows]
    assert scores == sorted(scores, reverse=True)


def test_run_reads_the_request_from_standard_input() -> None:
    """A dash stands for standard input."""
    ended = subprocess.run(
        [*COMMAND, "plan", "run", str(PLANS / "simple_viewer.json"), *map(str, MEMORY), "--request", "-", "--json"],
        input='{"user_id": "2"}',
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [each["id"] for each in json.loads(ended.stdout)["candidates"]] == [2]


def test_run_traces_every_node() -> None:
    """With --trace the result has when and where each node ran, and the critical path."""
    ended = seedbed("plan", "run", PLANS / "complex_dag.json", *MEMORY, *REQUEST, "--trace", "--json")
    trace = ended.json["trace"]
    assert sorted(each["node"] for each in trace["nodes"]) == [f"n{number}" for number in range(10)]
    assert {each["where"] for each in trace["nodes"]} <= {"loop", "inline", "thread"}
    assert (trace["critical_path"][0], trace["critical_path"][-3:]) == ("n0", ["n7", "n8", "n9"])
    shown = seedbed("plan", "run", PLANS / "complex_dag.json", *MEMORY, *REQUEST, "--trace").out
    assert re.search(r"^critical path: n0 → .* → n9$", shown, re.MULTILINE)


def test_params_change_the_answer() -> None:
    """Overrides of the request reach the expressions."""
    request = '{"user_id": 1, "param_overrides": {"media_age_penalty_weight": 2.0}}'
    ended = seedbed("plan", "run", PLANS / "complex_dag.json", *MEMORY, "-r", request, "--json")
    assert all(each["fields"]["final_score"] == each["id"] * 2 for each in ended.json["candidates"])


def test_a_plan_in_python_needs_permission(tmp_path: Path) -> None:
    """FILE.py:FUNCTION runs the file only with --allow-code, and its result is that of the JSON file."""
    spy = tmp_path / "spy.py"
    spy.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n", encoding="utf-8")
    rejected = seedbed("plan", "run", f"{spy}:anything", *REQUEST)
    assert rejected.code == 2
    assert "--allow-code" in rejected.err
    assert not (tmp_path / "ran").exists()
    function = f"{PLANS / 'diamond.py'}:diamond"
    written = seedbed("plan", "run", function, "--allow-code", *MEMORY, *REQUEST, "--json").json
    assert (
        written["candidates"]
        == seedbed("plan", "run", PLANS / "diamond.json", *MEMORY, *REQUEST, "--json").json["candidates"]
    )
    missing = seedbed("plan", "check", f"{PLANS / 'diamond.py'}:dimond", "--allow-code")
    assert missing.code == 2
    assert "there are: diamond" in missing.err
    assert "FILE.py:FUNCTION" in seedbed("plan", "check", PLANS / "diamond.py", "--allow-code").err


def test_custom_ops_of_a_plan_file_run(tmp_path: Path) -> None:
    """A plan file may define ops and import modules beside it."""
    tmp_path.joinpath("beside.py").write_text("FACTOR = 3\n", encoding="utf-8")
    file = tmp_path / "own.py"
    file.write_text(
        """\
from beside import FACTOR
from seedbed.plans.builder import plan
from seedbed.plans.ops import OpRegistry, default_ops
from seedbed.plans.opspec import Rows, op

@op("own::times", gives=Rows.NEW, writes=frozenset({1}))
def times(inputs, params, ctx):
    return ctx.new_rows([each * FACTOR for each in inputs[0].ids().tolist()])

ops = default_ops().copy()
ops.add(times)

@plan(ops=ops)
def tripled(ctx):
    return ctx.fixed_source(row_count=2).op("own::times")
""",
        encoding="utf-8",
    )
    ended = seedbed("plan", "run", f"{file}:tripled", "--allow-code", *REQUEST, "--json")
    assert [each["id"] for each in ended.json["candidates"]] == [3, 6]


def test_check_reports_all_problems(tmp_path: Path) -> None:
    """Each problem is a line with its code and its JSON path, or a JSON value with --json; the status is 2."""
    path = write_plan(tmp_path / "bad.json", node(0, "core::viewer"), node(1, "core::tkae", 0, count=0), extra=1)
    ended = seedbed("plan", "check", path)
    assert ended.code == 2
    found = [line.split(": ")[:2] for line in ended.out.splitlines()]
    assert ["UNKNOWN_FIELD", "$.extra"] in found
    assert ["UNKNOWN_OP", "$.nodes[1].op"] in found
    assert ["MISSING_FIELD", "$.nodes[0].params.endpoint"] in found
    data = seedbed("plan", "check", path, "--json")
    assert (data.code, data.json["ok"]) == (2, False)
    assert [[each["code"], each["path"]] for each in data.json["problems"]] == found
    good = seedbed("plan", "check", PLANS / "diamond.json", "--json").json
    assert good == {"ok": True, "problems": [], "plan": "diamond", "nodes": 4, "outputs": ["n3"]}


def test_invalid_input_is_reported_before_a_run(tmp_path: Path) -> None:
    """Invalid plans, requests, registries and files are reported in a sentence, with status 2 and no traceback."""
    path = write_plan(tmp_path / "bad.json", node(0, "core::nothing"))
    for ended, part in (
        (seedbed("plan", "run", path, *REQUEST), "INVALID_PLAN"),
        (seedbed("plan", "run", PLANS / "diamond.json", "-r", '{"user_id": -1}'), "INVALID_REQUEST"),
        (seedbed("plan", "run", PLANS / "diamond.json", "-r", "nonsense"), "INVALID_REQUEST"),
        (seedbed("plan", "run", tmp_path / "missing.json", *REQUEST), "missing.json"),
        (seedbed("plan", "run", PLANS / "diamond.json", *REQUEST, "--registries", tmp_path / "no.toml"), "no.toml"),
        (seedbed("plan", "run", PLANS / "diamond.json", *REQUEST, "--registries", path), "registries"),
        (seedbed("plan", "run", PLANS / "diamond.json", *REQUEST, "--fusion", "some"), "some"),
        (seedbed("plan", "bench", PLANS / "diamond.json", *REQUEST, "--requests", "0"), "1"),
        (seedbed("plan", "list", tmp_path / "nowhere"), "not a directory"),
    ):
        assert ended.code == 2, ended
        assert part in ended.err
        assert "Traceback" not in ended.err
    data = seedbed("plan", "run", path, *REQUEST, "--json").json["error"]
    assert (data["code"], data["exit_code"]) == ("INVALID_PLAN", 2)
    assert data["problems"][0]["path"] == "$.nodes[0].op"


def test_run_errors_are_one_line_with_their_code(tmp_path: Path) -> None:
    """An error of a request has its code, its node and its own exit status."""
    sleep = write_plan(tmp_path / "sleep.json", node(0, "test::sleep", duration_ms=60_000))
    fails = write_plan(tmp_path / "fails.json", node(0, "test::sleep", duration_ms=0, fail_after_sleep=True))
    late = seedbed("plan", "run", sleep, *REQUEST, "--deadline-ms", "20")
    assert late.code == 13
    assert "'n0'" in error_line(late, "DEADLINE_EXCEEDED")
    slow = seedbed("plan", "run", sleep, *REQUEST, "--node-timeout-ms", "20")
    assert slow.code == 14
    assert "20 ms" in error_line(slow, "NODE_TIMEOUT")
    failed = seedbed("plan", "run", fails, *REQUEST)
    assert failed.code == 15
    assert "fail_after_sleep" in error_line(failed, "NODE_FAILED")
    closed = tmp_path / "closed.toml"
    text = (PLANS / "registries.toml").read_text(encoding="utf-8")
    # Nothing listens on port 1.
    closed.write_text(text.replace('"memory"\nseed_file = "users.toml"', '"127.0.0.1"\nport = 1'), encoding="utf-8")
    away = seedbed("plan", "run", PLANS / "diamond.json", "--registries", closed, *REQUEST, "--json")
    assert away.code == 16
    assert away.json["error"]["code"] == "ENDPOINT_UNAVAILABLE"
    assert away.json["error"]["node"] == "n0"


def test_a_partial_answer_names_unfinished_nodes(tmp_path: Path) -> None:
    """With --partial a missed deadline is no error: finished outputs are shown, and unfinished nodes are named."""
    nodes = [node(0, "test::fixed_source", row_count=2), node(1, "test::sleep", 0, duration_ms=60_000)]
    path = write_plan(tmp_path / "half.json", *nodes, outputs=["n0", "n1"])
    ended = seedbed("plan", "run", path, *REQUEST, "--partial", "--deadline-ms", "200")
    assert ended.code == 0
    assert ended.err == "unfinished: n1\n"
    assert ended.out.splitlines()[-1] == "request mine: 2 candidates"


def test_bench_counts_and_measures() -> None:
    """Every request is counted once, and percentiles are in order."""
    arguments = ("plan", "bench", PLANS / "complex_dag.json", *MEMORY, *REQUEST, "--requests", "60", "-c", "8")
    found = seedbed(*arguments, "--json").json
    assert (found["requests"], found["concurrency"], found["answered"], found["errors"]) == (60, 8, 60, {})
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert found["throughput_per_second"] == pytest.approx(60 / found["seconds"])
    shown = seedbed(*arguments).out
    assert "60 requests, 8 at once" in shown
    assert re.search(r"p50 [\d.,]+ ms, p99 [\d.,]+ ms", shown)


def test_bench_counts_errors_by_code(tmp_path: Path) -> None:
    """Rejections do not fail the command; if no request was answered, the status is that of the error."""
    path = write_plan(tmp_path / "sleep.json", node(0, "test::sleep", duration_ms=5))
    limits = ("--max-concurrent-requests", "1", "--max-queue", "0")
    ended = seedbed("plan", "bench", path, *REQUEST, "-n", "40", "-c", "8", *limits, "--json")
    assert ended.code == 0
    assert ended.json["answered"] >= 1
    assert ended.json["errors"] == {"OVERLOADED": 40 - ended.json["answered"]}
    none = seedbed("plan", "bench", path, *REQUEST, "-n", "10", "--deadline-ms", "0", "--json")
    assert (none.code, none.json["answered"], none.json["errors"]) == (13, 0, {"DEADLINE_EXCEEDED": 10})
    assert none.json["p50_ms"] is None


def test_explain_shows_segments_endpoints_writes_and_costs() -> None:
    """Every node has a segment, nodes that read from a server name it, and the costs of `auto` are listed."""
    found = seedbed("plan", "explain", PLANS / "complex_dag.json", *MEMORY, "--json").json
    nodes = {each["node"]: each for each in found["nodes"]}
    assert nodes["n0"]["endpoint"] == "ep_0001"
    assert nodes["n0"]["runs"] == "loop"
    assert nodes["n3"]["writes"] == ["final_score"]
    assert nodes["n7"]["needs"] == ["n3", "n6"]
    assert nodes["n7"]["segment"] == nodes["n8"]["segment"] == nodes["n9"]["segment"]
    assert sorted(name for segment in found["segments"] for name in segment["nodes"]) == sorted(nodes)
    assert found["costs"]["hop_us"] > 0
    assert "core::sort" in found["costs"]["ops"]
    assert "trace" not in found
    assert found["endpoints"][0]["at"] == "memory"
    apart = seedbed("plan", "explain", PLANS / "complex_dag.json", "--fusion", "off", "--json").json
    assert len(apart["segments"]) == 10


def test_explain_shows_the_critical_path_after_a_run() -> None:
    """With a request, the plan runs, and the critical path follows the table of nodes."""
    shown = seedbed("plan", "explain", PLANS / "diamond.json", *MEMORY, *REQUEST).out
    assert re.search(r"^n3 +core::concat +n1, n2 ", shown, re.MULTILINE)
    assert re.search(r"^critical path: n0 → n[12] → n3$", shown, re.MULTILINE)
    assert "a hop to a thread and back" in shown
    drawn = seedbed("plan", "explain", PLANS / "mixed_pipeline.json", "--mermaid").out
    assert drawn.startswith("graph TD\n")
    assert drawn.count("subgraph") == drawn.count("    end\n") == 1
    assert "node_n0 --> node_n1\n" in drawn


def test_list_has_plans_ops_and_registries(tmp_path: Path) -> None:
    """Files that are not plans are left out, invalid plans are listed with their problems."""
    shown = seedbed("plan", "list", PLANS, *MEMORY)
    assert (shown.code, shown.err) == (0, "")
    assert re.search(r"complex_dag\.json +complex_dag +10 +n9 +valid", shown.out)
    assert re.search(r"^core::take +1 +count: integer at least 1 +prefix", shown.out, re.MULTILINE)
    assert re.search(r"^2001 +final_score +float", shown.out, re.MULTILINE)
    assert re.search(r"^ep_0001 +redis_default +redis +memory", shown.out, re.MULTILINE)
    write_plan(tmp_path / "bad.json", node(0, "core::nothing"))
    tmp_path.joinpath("other.json").write_text("[1]", encoding="utf-8")
    tmp_path.joinpath("broken.json").write_text("{", encoding="utf-8")
    tmp_path.joinpath("code.py").write_text((PLANS / "diamond.py").read_text(encoding="utf-8"), encoding="utf-8")
    plans = seedbed("plan", "list", tmp_path, "--json").json["plans"]
    assert [(each["plan"], each["problems"][0]["code"]) for each in plans] == [
        (str(tmp_path / "bad.json"), "UNKNOWN_OP")
    ]
    allowed = seedbed("plan", "list", tmp_path, "--allow-code", "--json").json["plans"]
    assert [each["plan"] for each in allowed] == [str(tmp_path / "bad.json"), f"{tmp_path / 'code.py'}:diamond"]
    code = "from seedbed.plans import plan\n\n\n@plan\ndef mine(ctx):\n    raise KeyError('inside')\n"
    for name, text in (("exits.py", "raise SystemExit(0)\n"), ("raises.py", "1 / 0\n"), ("inside.py", code)):
        tmp_path.joinpath(name).write_text(text, encoding="utf-8")
    shown = seedbed("plan", "list", tmp_path, "--allow-code", "--json")
    assert [
        (each["plan"].removeprefix(f"{tmp_path}/"), each["problems"][0]["message"])
        for each in shown.json["plans"]
        if each["problems"] and each["problems"][0]["code"] == "RAISED"
    ] == [
        ("exits.py", f"ConfigError: the plan file {str(tmp_path / 'exits.py')!r} is not a file of plans: it exits (0)"),
        ("inside.py:mine", "KeyError: 'inside'"),
        ("raises.py", "ZeroDivisionError: division by zero"),
    ]
    assert "RAISED: ZeroDivisionError" in seedbed("plan", "list", tmp_path, "--allow-code").out
    exits = seedbed("plan", "check", f"{tmp_path / 'exits.py'}:any", "--allow-code")
    assert (exits.code, "it exits (0)" in exits.err) == (2, True)


def test_a_deadline_does_not_wait_for_a_thread(tmp_path: Path) -> None:
    """A thread that continues after the deadline delays nothing: the command ends long before the thread would."""
    plan = write_plan(tmp_path / "busy.json", node(0, "fixed_source"), node(1, "busy_cpu", 0, busy_wait_ms=3_600_000))
    ended = seedbed("plan", "run", plan, "--request", '{"user_id": 1}', "--deadline-ms", "50")
    assert ended.code == ExitCode.REQUEST_DEADLINE
    assert "node 'n1'" in error_line(ended, "DEADLINE_EXCEEDED")


def test_ctrl_c_ends_a_run_in_a_sentence(tmp_path: Path) -> None:
    """An interrupted request is reported in one line, with status 130."""
    file = tmp_path / "waits.py"
    file.write_text(
        """\
import trio
from seedbed.plans.builder import plan
from seedbed.plans.ops import OpRegistry
from seedbed.plans.opspec import Rows, op

@op("own::wait", gives=Rows.NEW, inputs=(0, 0))
async def wait(inputs, params, ctx):
    print("running", flush=True)
    await trio.sleep_forever()

@plan(ops=OpRegistry(wait))
def waits(ctx):
    return ctx.op("own::wait")
""",
        encoding="utf-8",
    )
    with started("plan", "run", f"{file}:waits", "--allow-code", *REQUEST) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        _, told_in = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told_in == "seedbed: interrupted\n"
