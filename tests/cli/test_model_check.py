"""`seedbed run` and `resume` check each model with one small call before anything is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from seedbed.cli import main
from seedbed.cli.exit_codes import ExitCode
from seedbed.testing import Reply, serve_openai_sync

if TYPE_CHECKING:
    from pathlib import Path

    from seedbed.testing import ServerRequest

RECIPE = """\
models:
  m: {{type: openai, base_url: "{url}", model: small, input_price: 1.0}}
  e: {{type: openai, base_url: "{url}", model: vectors}}
columns:
  - {{name: thing, type: category, values: [kettle, lamp]}}
  - {{name: review, type: llm-text, model: m, prompt: "Review the {{{{ thing }}}}."}}
  - {{name: vector, type: embedding, model: e, of: thing}}
"""
CLOSED = "http://127.0.0.1:9/v1"


def written(directory: Path, url: str) -> str:
    """A recipe with a chat and an embedding model at this URL."""
    path = directory / "recipe.yaml"
    path.write_text(RECIPE.format(url=url), encoding="utf-8")
    return str(path)


def test_an_unreachable_server_is_one_sentence_for_each_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written, and the status is that of `models check`."""
    out = tmp_path / "out"
    assert main(["run", written(tmp_path, CLOSED), "-n", "5", "-o", str(out)]) == ExitCode.MODEL
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("contacts")]
    assert [line.partition(": no connection to 127.0.0.1:9")[0] for line in lines] == [
        "seedbed: model 'small'",
        "model 'vectors'",
    ]
    assert lines[1].endswith(
        "; check the base_url of model 'e' and that its server is running, or begin without this check: "
        "--no-model-check (check_models=False)"
    )
    assert not out.exists()


def test_a_wrong_key_is_found_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cause, the server's text and the fix, once; --no-model-check leaves it to the run."""
    out = tmp_path / "out"
    with serve_openai_sync(script=lambda _: Reply(status=401, body={"error": "no such key"})) as server:
        path = written(tmp_path, server.url)
        assert main(["run", path, "-n", "5", "-o", str(out)]) == ExitCode.MODEL
        assert server.statistics.requests == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.count("model 'small' answered 401: no such key; check its key") == 1
        assert "rows 0/0" not in shown.err
        assert not out.exists()
        assert main(["run", path, "-n", "5", "-o", str(out), "--no-model-check"]) == ExitCode.STOPPED
        shown = capsys.readouterr()
        assert (shown.out + shown.err).count("no such key") == 1
    with serve_openai_sync() as server:
        assert main(["run", written(tmp_path, server.url), "-n", "5", "-o", str(tmp_path / "new")]) == ExitCode.OK


def test_the_check_counts_and_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One call per model, whose usage is that of the run; a finished dataset needs none."""
    out = tmp_path / "out"
    with serve_openai_sync(record=True) as server:
        assert main(["run", written(tmp_path, server.url), "-n", "3", "-o", str(out), "--json"]) == ExitCode.OK
        prompts = [request.prompt for request in server.requests]
        assert (len(prompts), prompts.count("Say OK."), prompts.count("hello")) == (8, 1, 1)
        found = json.loads(capsys.readouterr().out)
        assert (found["model_usage"]["m"]["calls"], found["usage"]["review"]["calls"]) == (4, 3)
        assert main(["resume", str(out), "--json"]) == ExitCode.OK
        assert server.statistics.requests == 8
        assert json.loads(capsys.readouterr().out)["model_usage"]["m"]["calls"] == 4


@pytest.mark.parametrize("status", [429, 500, 400])
def test_other_failures_pass(status: int, tmp_path: Path) -> None:
    """A server that is busy or rejects the small call itself is no mistake of the configuration."""

    def script(request: ServerRequest) -> Reply | None:
        is_small = request.prompt in {"Say OK.", "hello"}
        return Reply(status=status, body={"error": "not now"}) if is_small else None

    with serve_openai_sync(script=script) as server:
        path = written(tmp_path, server.url)
        assert main(["run", path, "-n", "3", "-o", str(tmp_path / "out"), "--progress", "none"]) == ExitCode.OK
