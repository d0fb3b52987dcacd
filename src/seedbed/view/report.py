"""One file about a dataset: the pages of the viewer with their data, sampled where it would be too large.

It is the same page: its modules are written into it as data URLs, and `api.js` answers from the data beside them.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from ..store.dataset import Dataset
from ..store.history import history_runs
from . import reading
from .queries import Database, Table
from .web import web_files

if TYPE_CHECKING:
    from pathlib import Path

    from .reading import Described

# The most bytes of data, rows of the sample, snapshots of the run, and drops that are listed.
_BYTES, _ROWS, _POINTS, _DROPS = 1_600_000, 500, 200, 500
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def write_report(directory: Path, out: Path) -> int:
    """Write the report of a dataset to a file; return how many bytes it has."""
    content = make_report(directory)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return out.write_bytes(content)
    except OSError as error:
        raise StoreError(f"the report cannot be written to {str(out)!r}: {error.strerror or error}") from error


def make_report(directory: Path) -> bytes:
    """The report of a dataset as a page."""
    dataset, described = Dataset.open(directory), reading.describe(directory)
    table = Table(Database([directory]), dataset, types=described.types())
    data: dict[str, Any] = {
        # Without links to other stages: their rows are not in the page.
        "overview": {**reading.overview(directory, table, described), "running": False, "stages": []},
        "statistics": reading.statistics(directory),
        "drops": reading.drops(directory, dataset),
        "cost": reading.cost(directory, dataset),
        "graph": {"drawing": reading.graph(directory, dataset, described), "rows": dataset.rows},
        "run": _run(directory, described),
    }
    data["drops"]["rows"] = data["drops"]["rows"][:_DROPS]
    count = min(_ROWS, table.rows)
    while True:
        numbers = [at * table.rows // count for at in range(count)] if count else []
        data["rows"] = {"numbers": numbers, "rows": table.page(numbers)}
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
        if len(text.encode("utf-8", "replace")) <= _BYTES or count == 0:
            return _page(text, title=data["overview"]["title"])
        count //= 2


def _run(directory: Path, described: Described) -> dict[str, Any]:
    runs = history_runs(directory)
    lines = reading.run_lines(directory, runs[-1]) if runs else []
    points = [line for line in lines if "t" in line]
    step = max(1, len(points) // _POINTS)
    # Of all but the last one only what is drawn over time.
    kept = [
        {"t": point["t"], "keys": point.get("keys", {}), "rows": point.get("rows")} for point in points[:-1:step]
    ] + points[-1:]
    report = next((line["report"] for line in lines if "report" in line), None)
    state = {**reading.state(directory), "running": False}
    return {
        "run": 1 if points else 0,
        "runs": [],
        "header": described.header,
        "points": kept,
        "report": report,
        **state,
    }


def _page(data: str, *, title: str) -> bytes:
    files = web_files()
    modules = {
        f"view/{name}": f"data:text/javascript;base64,{base64.b64encode(content).decode()}"
        for name, content in files.items()
        if name.endswith(".js")
    }
    icon = base64.b64encode(files["icon.svg"]).decode()
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{_escaped(title)} · seedbed</title>
<link rel="icon" href="data:image/svg+xml;base64,{icon}">
<style>{files["style.css"].decode()}</style>
<script type="application/json" id="data">{_inline(data)}</script>
<script type="importmap">{json.dumps({"imports": modules})}</script>
<script type="module">import "view/app.js";</script>
<body>
<a class="skip" href="#main">Skip to content</a>
<header id="top"></header>
<main id="main" tabindex="-1"><p class="quiet">Loading …</p></main>
<noscript>This page needs JavaScript.</noscript>
</body>
</html>
""".encode("utf-8", "replace")


def _inline(text: str) -> str:
    """JSON that cannot end the element that it is in."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
