from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

from seedbed.cli import main

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = """
models:
  writer: {type: scripted, latency: 0.01}
columns:
  - {name: topic, type: category, values: [tea, bread]}
  - {name: text, type: llm-text, model: writer, prompt: "Write about {{ topic }}."}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of two columns, one by a model."""
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def test_run_with_view_and_report(recipe: Path, tmp_path: Path) -> None:
    """`run --view --report FILE` serves the page during the run, ends it with the run, and writes the report."""
    out, report = tmp_path / "data", tmp_path / "report.html"
    command = [sys.executable, "-m", "seedbed.cli", "run", str(recipe), "-n", "400", "-o", str(out)]
    command += ["--view", "--report", str(report), "--progress", "none", "--head", "0"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stderr is not None
        url = process.stderr.readline().removeprefix("view: ").strip()
        address = url.split("/")[2]
        with closing(HTTPConnection(address, timeout=20)) as connection:
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert f"report: {report}" in output
    assert report.stat().st_size < 2_000_000
    with closing(HTTPConnection(address, timeout=5)) as connection, pytest.raises(OSError, match="refused"):
        connection.request("GET", "/")


def test_a_view_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that is missing is named."""
    assert main(["view", str(tmp_path / "missing")]) == 2
    assert "missing" in capsys.readouterr().err


def test_a_port_that_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A port that is taken, or that is none, is named with the reason."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port in (taken.getsockname()[1], 99_999):
            assert main(["view", str(tmp_path), "--port", str(port)]) == 2
            assert f"the view cannot be served at port {port}: " in capsys.readouterr().err


def test_columns_of_inspect(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`inspect --columns` prints statistics of each column, and has them as JSON."""
    out = str(tmp_path / "data")
    assert main(["run", str(recipe), "-n", "30", "-o", out, "--progress", "none", "--head", "0"]) == 0
    capsys.readouterr()
    assert main(["inspect", out, "--columns", "-n", "0"]) == 0
    text = capsys.readouterr().out
    assert "near-dup." in text
    assert "tea (" in text
    assert main(["inspect", out, "--columns", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["columns"]
    assert [field["name"] for field in found["fields"]] == ["topic", "text"]
