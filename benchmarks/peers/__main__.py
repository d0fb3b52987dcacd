"""One table of peers: DataDesigner, Hamilton with aiohttp, aiohttp by hand, and seedbed.

All make the same dataset: a column that is drawn, B and C from it, D from both and E from D, each cell of them a call
with the same prompt, from the same kind of server. Peers are installed by name from the package index, each into an
environment of its own inside the one that this runs in; one that cannot be installed, or whose newest version wants
to be called in another way, is named below the table.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ..common import Findings, Table, WrongResultError, main
from .environments import make_environment
from .processes import run_peer
from .work import Work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .work import Taken


@attrs.frozen
class Peer:
    """A program beside this one, and what must be installed for it."""

    name: str
    module: str
    requirements: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Setting:
    """How much is measured."""

    rounds: Mapping[int, int]  # by rows: how often each peer runs, and the best of them counts
    at_once: tuple[int, ...]
    latency: float


PEERS = (
    Peer("aiohttp by hand", "with_aiohttp", ("aiohttp",)),
    Peer("Hamilton + aiohttp", "with_hamilton", ("sf-hamilton", "aiohttp")),
    Peer("DataDesigner", "with_data_designer", ("data-designer",)),
)
# The slowest peer takes minutes for 2,000 rows.
FULL = Setting(rounds={500: 2, 2_000: 1}, at_once=(32, 128), latency=0.05)
SHORT = Setting(rounds={50: 1}, at_once=(32,), latency=0.005)


def install(peer: Peer) -> tuple[Path | None, str]:
    """The peer's interpreter and its version; None and the reason if it cannot be installed or does not run."""
    python, why = make_environment(peer.module, peer.requirements)
    if python is None:
        return None, why
    tell = f"from importlib.metadata import version; print(version({peer.requirements[0]!r}))"
    done = subprocess.run([str(python), "-c", tell], capture_output=True, text=True, check=True)
    version = done.stdout.strip()
    try:
        run_peer(python, peer.module, rows=1, at_once=SHORT.at_once[0], latency=SHORT.latency)
    except WrongResultError as wrong:
        return None, f"{version}: {str(wrong).splitlines()[-1]}"
    return python, version


def figures(taken: list[Taken], work: Work, latency: float) -> dict[str, Any]:
    """The least of each figure, whichever round it was in."""
    return {
        "wall ÷ ideal": min(each.wall for each in taken) / work.ideal(latency),
        "CPU per call, ms": min(each.cpu for each in taken) / work.calls * 1000,
        "peak memory, MB": min(each.memory for each in taken),
    }


def compare(pythons: Mapping[Peer, Path], setting: Setting, rows: int, at_once: int) -> dict[Peer, dict[str, Any]]:
    """Run all peers in turn, some rounds."""
    taken: dict[Peer, list[Taken]] = {peer: [] for peer in pythons}
    for _ in range(setting.rounds[rows]):
        for peer, python in pythons.items():
            took = run_peer(python, peer.module, rows=rows, at_once=at_once, latency=setting.latency)
            print(f"{rows:,} rows, {at_once} at once: {peer.name}: {took.wall:.1f} s", file=sys.stderr, flush=True)
            taken[peer].append(took)
    work = Work(url="", rows=rows, at_once=at_once)
    return {peer: figures(each, work, setting.latency) for peer, each in taken.items()}


def measure(short: bool) -> Findings:
    """Install the peers and run them all."""
    setting = SHORT if short else FULL
    found = {peer: install(peer) for peer in PEERS}
    pythons = {Peer("seedbed", "with_seedbed", ()): Path(sys.executable)}
    pythons |= {peer: python for peer, (python, _) in found.items() if python is not None}
    table: list[dict[str, Any]] = []
    for rows in setting.rounds:
        for at_once in setting.at_once:
            for peer, row in compare(pythons, setting, rows, at_once).items():
                version = found[peer][1] if peer in found else "here"
                table.append({"": peer.name, "version": version, "rows": rows, "at once": at_once, **row})
    rounds = ", ".join(f"best of {rounds} with {rows:,} rows" for rows, rounds in setting.rounds.items())
    title = f"The diamond, {setting.latency * 1000:.0f} ms a call; {rounds}"
    tables = [Table(title=title, rows=table)]
    missing = [{"": peer.name, "reason": why} for peer, (python, why) in found.items() if not python]
    if missing:
        tables.append(Table(title="Not measured", rows=missing))
    return Findings(tables=tables, bars=[])


if __name__ == "__main__":
    sys.exit(main("peers", measure))
