from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from plan_helpers import node
from redis_deployments import make_certificates
from serving import document, taking, write

from seedbed.errors import ConfigError
from seedbed.plans.serve.processes import ServerConfig, listen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOLD = document("hold", node("s", "test::fixed_source", row_count=4), node("w", "test::sleep", "s", duration_ms=2_500))


class Server:
    """`seedbed plan serve` in a process of its own, and its workers."""

    def __init__(self, process: subprocess.Popen[str], port: int, context: ssl.SSLContext | None) -> None:
        self.process = process
        self.port = port
        self.context = context

    def connect(self) -> http.client.HTTPConnection:
        """A connection of its own, which any of the workers may accept."""
        if self.context is not None:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """The status and the body of an answer."""
        connection = self.connect()
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, None if body is None else json.dumps(body), named)
            response = connection.getresponse()
            content = response.read()
            if response.headers.get_content_type() == "application/json":
                return response.status, json.loads(content)
            return response.status, content.decode()
        finally:
            connection.close()

    def ids(self, name: str = "simple") -> list[int]:
        status, answer = self.ask("POST", f"/plans/{name}", {"user_id": 1})
        assert status == 200, answer
        return [each["id"] for each in answer["candidates"]]

    def metric(self, name: str) -> float:
        """The value of a metric, of all workers."""
        lines = self.ask("GET", "/metrics")[1].splitlines()
        return float(next((line.split()[-1] for line in lines if line.startswith(name)), 0))

    def workers(self) -> list[int]:
        """The processes that the first has started."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text("ascii")
        return [int(each) for each in text.split()]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        return self.process.wait(30)


def eventually(holds: Callable[[], object]) -> None:
    """Wait until something holds in another process."""
    ends = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends, "it never held"
        time.sleep(0.02)


@contextmanager
def serving(folder: Path, *options: str, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server of that folder, ready."""
    command = [sys.executable, "-m", "seedbed.cli", "plan", "serve", str(folder), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("serving plans at "), line
            server = Server(process, int(line.rstrip().rpartition(":")[2]), context)
            eventually(lambda: _is_ready(server))
            yield server
        finally:
            process.kill()


def _is_ready(server: Server) -> bool:
    # The socket listens before the first worker has started.
    return server.ask("GET", "/readyz")[0] == 200


def _is_ready_again(server: Server) -> bool:
    """A connection that has just ended may still count."""
    try:
        return _is_ready(server)
    except (OSError, http.client.HTTPException):
        return False


def test_several_workers_answer_behind_one_port(tmp_path: Path) -> None:
    """Their counts are summed, a worker that dies is replaced, versions and rollbacks reach all of them."""
    write(tmp_path / "simple.json", taking(3))
    with serving(tmp_path, "--workers", "2") as server:
        eventually(lambda: server.metric("seedbed_processes") == 2)
        for _ in range(20):
            assert server.ids() == [1, 2, 3]
        eventually(lambda: server.metric("seedbed_plan_requests_total") == 20)
        before = server.workers()
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        eventually(lambda: len(server.workers()) == 2 and before[0] not in server.workers())
        write(tmp_path / "simple.json", taking(2))
        eventually(lambda: all(server.ids() == [1, 2] for _ in range(20)))
        command = [sys.executable, "-m", "seedbed.cli", "plan", "rollback", str(tmp_path), "simple", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["plan"] == "simple"
        eventually(lambda: all(server.ids() == [1, 2, 3] for _ in range(20)))
        assert server.end() == 0
        eventually(lambda: not Path(f"/proc/{before[1]}").exists())


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """If it is killed, no worker holds the port."""
    write(tmp_path / "simple.json", taking(3))
    with serving(tmp_path, "--workers", "2", "--grace-ms", "0") as server:
        workers = server.workers()
        server.process.kill()
        eventually(lambda: not any(Path(f"/proc/{each}/fd/0").exists() for each in workers))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_drains(tmp_path: Path, workers: str) -> None:
    """Readiness ends at once; requests that run, and new ones during the delay, are answered; then it ends."""
    write(tmp_path / "hold.json", HOLD)
    write(tmp_path / "simple.json", taking(3))
    options = ("--drain-delay-ms", "2000", "--deadline-ms", "20000", "--workers", workers)
    with serving(tmp_path, *options) as server:
        found: list[list[int]] = []
        thread = threading.Thread(target=lambda: found.append(server.ids("hold")))
        thread.start()
        eventually(lambda: server.metric("seedbed_requests_running") == 1)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.ask("GET", "/readyz")[0] == 503)
        assert server.ids() == [1, 2, 3]
        thread.join(30)
        assert found == [[1, 2, 3, 4]]
        assert server.process.wait(30) == 0


def test_a_caller_that_disconnects_cancels_its_request(tmp_path: Path) -> None:
    """It ends by itself, or because it sends a head without an end behind its request; the server goes on."""
    wait = node("w", "test::sleep", "s", duration_ms=50_000)
    write(tmp_path / "hold.json", document("hold", node("s", "test::fixed_source", row_count=4), wait))
    request = b'POST /plans/hold HTTP/1.1\r\nhost: a\r\ncontent-length: 14\r\n\r\n{"user_id": 1}'
    with serving(tmp_path, "--deadline-ms", "60000") as server:
        for count, more in enumerate((b"", b"GET / HTTP/1.1\r\nx: " + b"x" * 100_000), 1):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as caller:
                caller.sendall(request)
                eventually(lambda: server.metric("seedbed_requests_running") == 1)
                if more:
                    caller.sendall(more)
                    with suppress(ConnectionResetError):  # what it sent was not read
                        assert caller.recv(1_000) == b""
            ended = 'seedbed_plan_requests_total{plan="hold",code="DISCONNECTED"}'
            eventually(lambda ended=ended, count=count: server.metric(ended) == count)
            assert server.metric("seedbed_requests_running") == 0


def test_connections_have_a_limit(tmp_path: Path) -> None:
    """Those above it are closed at once, even if they ask for nothing; their end makes room for others."""
    write(tmp_path / "simple.json", taking(3))
    with serving(tmp_path, "--max-connections", "4", "--header-timeout-ms", "600000") as server:
        assert server.ids() == [1, 2, 3]
        with ExitStack() as stack:
            address = ("127.0.0.1", server.port)
            idle = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(10)]
            # One more if that of the request still counted.
            eventually(lambda: len(select.select(idle, [], [], 0)[0]) in (6, 7))
        eventually(lambda: _is_ready_again(server))


def test_sighup_takes_over_changes_at_once(tmp_path: Path) -> None:
    """Without waiting for the next look at the directory; the server goes on."""
    write(tmp_path / "simple.json", taking(3))
    with serving(tmp_path) as server:
        write(tmp_path / "simple.json", taking(1))
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: server.ids() == [1])
        assert server.end(signal.SIGINT) == 0


def test_a_request_that_never_becomes_whole_ends(tmp_path: Path) -> None:
    """A connection is closed if a head or a body is not whole in time, or a head is too large; others go on."""
    write(tmp_path / "simple.json", taking(3))
    with serving(tmp_path, "--header-timeout-ms", "600") as server:
        head = b"POST /plans/simple HTTP/1.1\r\nhost: h\r\ncontent-length: 14\r\n"
        for sent in (b"", b"POST /plans/sim", head, head + b"\r\n{", head + b"x: " + b"x" * 100_000):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                connection.sendall(sent)
                with suppress(ConnectionResetError):  # what it sent was not read
                    assert connection.recv(1_000) == b""
        # An idle connection stays open, and takes a further request.
        connection = server.connect()
        for _ in range(2):
            connection.request("POST", "/plans/simple", b'{"user_id": 1}')
            assert connection.getresponse().read()
            time.sleep(0.8)
        connection.close()


def test_clients_show_a_certificate(tmp_path: Path) -> None:
    """With mutual TLS only clients with a certificate of the authority are served."""
    make_certificates(tmp_path)
    plans = tmp_path / "plans"
    plans.mkdir()
    write(plans / "simple.json", taking(3))
    files = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "server", "client")}
    tls = ["--cert-file", files["server"], "--client-ca-file", files["ca"], "--key-file", str(tmp_path / "server.key")]
    known = ssl.create_default_context(cafile=files["ca"])
    known.load_cert_chain(files["client"], tmp_path / "client.key")
    with serving(plans, *tls, context=known) as server:
        assert server.ids() == [1, 2, 3]
        server.context = ssl.create_default_context(cafile=files["ca"])
        with pytest.raises((ssl.SSLError, ConnectionError)):
            server.ids()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"host": "0.0.0.0"}, "can be reached by other machines: pass --token-env NAME or --client-ca-file"),
        ({"token_env": "SEEDBED_TEST_NOT_SET"}, "SEEDBED_TEST_NOT_SET .* is not set, or empty"),
        ({"cert_file": "c.pem"}, "both --cert-file and --key-file"),
        ({"client_ca_file": "c.pem"}, "--client-ca-file needs TLS"),
        ({"host": "no host", "token_env": "PATH"}, "cannot listen at no host"),
    ],
)
def test_what_is_unsafe_or_cannot_work_is_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Nothing listens then."""
    with pytest.raises(ConfigError, match=message):
        listen(ServerConfig(directory=str(tmp_path), port=0, **config))


def test_the_command_reports_what_cannot_be_served(tmp_path: Path) -> None:
    """A wrong folder, no registries, no password and a port that is taken end the command with a message."""
    run = [sys.executable, "-m", "seedbed.cli", "plan", "serve"]
    endpoint = {"id": "ep_a", "name": "a", "kind": "redis", "host": "h", "password_env": "SEEDBED_TEST_NOT_SET"}
    keys = [{"id": 1, "name": "id", "type": "int", "writable": False}]
    locked = tmp_path / "locked.json"
    write(locked, {"keys": keys, "endpoints": [endpoint]})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, message in (
            ([str(tmp_path / "none")], "is not a directory"),
            ([str(tmp_path), "--port", "0", "--registries", "none.toml"], "none.toml"),
            ([str(tmp_path), "--port", "0", "--registries", str(locked)], "SEEDBED_TEST_NOT_SET (password_env) is not"),
            ([str(tmp_path), "--port", port], f"cannot listen at 127.0.0.1, port {port}"),
        ):
            done = subprocess.run([*run, *arguments], capture_output=True, text=True, check=False, timeout=60)
            assert (done.returncode, message in done.stderr) == (2, True), done.stderr
