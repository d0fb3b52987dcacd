"""A real kernel: the notebook of the examples, and an interrupt while a cell builds."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from hosts import PATIENCE, PYTHONPATH
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyter_client import BlockingKernelClient, KernelManager

DISPLAYS = ("auto", "panel", "lines", "none")
EXAMPLES = Path(__file__).parents[3] / "examples"

# Of what jupyter is made of.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def kernel_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel imports what the tests import, and leaves its files here."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def outputs(cell: Any) -> str:
    """All that a cell shows as text."""
    return "".join(each.get("text", "") or each.get("data", {}).get("text/plain", "") for each in cell.outputs)


def test_the_notebook_runs() -> None:
    """Every cell of the notebook runs; a build that blocks the kernel's loop says once why it is in a thread."""
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3").execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [outputs(cell) for cell in code]
    assert shown[1].count("build_async") == 1
    assert "thread of its own" in shown[1]
    assert "build_async" not in "".join(shown[2:])
    assert [text.splitlines()[-1] for text in shown[3:]] == ["20", "20", "True"]


def test_a_build_shows_the_panel_in_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """One output, updated in place, as HTML and as a line of text; `progress` chooses lines or nothing in its place."""
    monkeypatch.delenv("SEEDBED_PROGRESS")
    source = """
        import seedbed as sb
        recipe = sb.Recipe(name="<b>", columns=[sb.Uniform("n", low=0, high=1), sb.Expression("x", "n")])
        sb.preview(recipe, rows=3, progress={progress!r});
    """
    cells = [nbformat.v4.new_code_cell(textwrap.dedent(source).format(progress=each)) for each in DISPLAYS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3").execute()
    auto, panel, lines, none = (cell.outputs for cell in notebook.cells)
    for outputs in (auto[-1:], panel):
        (shown,) = outputs
        assert shown.output_type == "display_data"
        assert "&lt;b&gt;" in shown.data["text/html"]
        assert "3 of 3 rows written" in shown.data["text/html"]
        assert "rows 3/3 written" in shown.data["text/plain"]
    assert [each.output_type for each in lines] == ["stream"]
    assert "rows 3/3 written" in lines[0].text
    assert none == []


class Kernel:
    """A kernel that runs one cell after the other."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager = manager
        self._client = client

    def run(self, code: str, *, interrupt_at: str | None = None) -> str:
        """Run a cell and return all that it said; interrupted, as the stop button does, when it says that."""
        said = ""

        def listen(message: dict[str, Any]) -> None:
            nonlocal said, interrupt_at
            content = message["content"]
            said += content.get("text", "") + "\n".join(content.get("traceback", []))
            if interrupt_at is not None and interrupt_at in said:
                interrupt_at = None
                self._manager.interrupt_kernel()

        self._client.execute_interactive(textwrap.dedent(code), timeout=PATIENCE, output_hook=listen)
        return said


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """A kernel of its own for each test."""
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=PATIENCE)
    try:
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


SETUP = """
    import trio
    import seedbed as sb

    async def numbers(rows: range) -> list[int]:
        return list(rows)

    async def waits(n: int) -> int:
        if n >= 2 and hold:
            print("waiting", flush=True)
            while True:  # a kernel notices an interrupt of an async cell only when something happens in its loop
                await trio.sleep(0.01)
        return n

    hold = True
    columns = [sb.Column("n", numbers, kind="from_scratch"), sb.Column("x", waits)]
    config = sb.RunConfig(buffer_size=2, max_concurrent_row_groups=1, grace=0)
"""


@pytest.mark.parametrize(
    ("call", "raised"),
    [
        ("sb.build(columns, rows=6, out=out, config=config)", "Interrupted"),
        ("await sb.build_async(columns, rows=6, out=out, config=config)", "CancelledError"),
    ],
)
def test_an_interrupt_stops_the_build_which_can_be_resumed(
    call: str, raised: str, kernel: Kernel, tmp_path: Path
) -> None:
    """The stop button ends a cell that builds, either way; the kernel lives, and the next cell resumes."""
    kernel.run(SETUP)
    kernel.run(f"out = {str(tmp_path / 'out')!r}")
    said = kernel.run(call, interrupt_at="waiting")
    assert raised in said
    assert "2 of 6" in kernel.run("dataset = sb.Dataset.open(out); print(dataset.rows, 'of 6', dataset.complete)")
    said = kernel.run("hold = False; print(sb.resume(out, columns).to_polars()['x'].to_list())")
    assert "[0, 1, 2, 3, 4, 5]" in said
    said = kernel.run("print((await sb.build_async(columns, rows=2, out=out + '2')).rows, 'rows')")
    assert "2 rows" in said
