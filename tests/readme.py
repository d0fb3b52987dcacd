"""Fill the table of README.md that compares seedbed with others: `python tests/readme.py`.

Its figures are those of benchmarks/peers/measured.json. To bring them up to date, replace that file by the one that
`nox -s bench_peers` writes, benchmarks/results/peers.json, and run this. tests/test_readme.py compares the two.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
MEASURED = ROOT / "benchmarks" / "peers" / "measured.json"
BLOCK = re.compile(r"(<!-- measured: .*? -->\n).*?(<!-- end of measured -->)", re.DOTALL)
CALLS_PER_ROW = 4
HERE = "here"  # the version of the checkout that ran the benchmark
WALL = "wall ÷ ideal"
CPU = "CPU per call, ms"
MEMORY = "peak memory, MB"


def peers_table(figures: Mapping[str, Any]) -> str:
    """The table in Markdown: a line for each peer, with the most rows that it was measured with."""
    rows: list[Mapping[str, Any]] = figures["tables"][0]["rows"]
    peers = {row[""]: [each for each in rows if each[""] == row[""]] for row in rows}
    limits = sorted({row["at once"] for row in rows})
    has_memory = all(MEMORY in row for row in rows)
    walls = [f"{limit} calls at once" for limit in limits]
    lines = [["", "calls", *walls, "CPU per call", *(["peak memory"] if has_memory else [])]]
    lines.append(["---"] * len(lines[0]))
    for name, measured in peers.items():
        most = max(row["rows"] for row in measured)
        of_most = [row for row in measured if row["rows"] == most]
        by_limit = {row["at once"]: f"{row[WALL]:.2f} ×" for row in of_most}
        version = of_most[0]["version"]
        line = [
            f"{name} {version}" if re.match(r"\d", version) else name,
            f"{most * CALLS_PER_ROW:,}",
            *(by_limit.get(limit, "–") for limit in limits),
            f"{_span([row[CPU] for row in of_most])} ms",
        ]
        if has_memory:
            line.append(f"{max(row[MEMORY] for row in of_most):,.0f} MB")
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + _note(peers)


def _note(peers: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Whether the figures of seedbed are older than what the table stands in."""
    version = next((row["version"] for row in peers.get("seedbed", ())), HERE)
    if version == HERE:
        return ""
    return f"\nThe figures of seedbed are those of version {version}; the command below measures this checkout.\n"


def _span(values: Sequence[float | str]) -> str:
    """The least and the largest of figures, or a text that already states both."""
    texts = [value if isinstance(value, str) else f"{value:.2f}" for value in sorted(values)]
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]}–{texts[-1]}"


def filled(text: str) -> str:
    """The text of README.md with the current table."""
    table = peers_table(json.loads(MEASURED.read_text(encoding="utf-8")))
    return BLOCK.sub(lambda found: f"{found[1]}{table}{found[2]}", text)


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
