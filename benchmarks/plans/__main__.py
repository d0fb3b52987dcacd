"""Plans: what the engine costs, how fast it answers beside others, what fusion is worth, how it bears load.

All with a real server in a process of its own. In a full run the peers are installed by name from the package index
into an environment of their own inside the one that this runs in; what cannot be installed is named below the tables.
"""

from __future__ import annotations

import sys

from ..common import Findings, main
from . import fusion, holds, overhead, overload, served, throughput
from .server import serve


def measure(short: bool) -> Findings:
    """All of it, one after the other."""
    found = [overhead.measure(short=short), fusion.measure(short=short)]
    with serve() as port:
        found.append(throughput.measure(port, short=short))
        found.append(served.measure(port, short=short))
        found.append(overload.measure(port, short=short))
        found.append(holds.measure(port, short=short))
    return Findings(
        tables=[table for tables, _ in found for table in tables], bars=[bar for _, bars in found for bar in bars]
    )


if __name__ == "__main__":
    sys.exit(main("plans", measure))
