"""Progress in a notebook: the panel as the output of the cell, updated in place."""

from __future__ import annotations

import importlib
import io
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from .display import Display
from .lines import progress_line
from .panel import draw

if TYPE_CHECKING:
    from .progress import ProgressState

_WIDTH = 110
_HEIGHT = 40
# Without a color of its own the text has that of the page, light or dark.
_FORMAT = '<pre style="line-height:1.25;overflow-x:auto;font-family:Menlo,Consolas,monospace">{code}</pre>'


def in_notebook() -> bool:
    """True in a kernel of Jupyter or the like, which shows rich output; false in IPython on a terminal."""
    find_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return find_shell is not None and getattr(find_shell(), "kernel", None) is not None


class Notebook(Display):
    """Shows the panel as HTML, and its numbers as one line of text where HTML cannot be shown."""

    interval = 0.5
    wants_rows = True

    def __init__(self, state: ProgressState, *, title: str) -> None:
        super().__init__(state)
        self._title = title
        self._shown: Any = None  # the handle of the output of the cell

    def show(self) -> None:
        if self._shown is None:
            display = importlib.import_module("IPython.display").display  # the kernel's own, no dependency
            self._shown = display(self._contents(), raw=True, display_id=True)
        else:
            self._shown.update(self._contents(), raw=True)

    def show_end(self) -> None:
        if self._shown is not None:  # else the run ended before its first event, and the error has the reason
            self.show()

    def _contents(self) -> dict[str, str]:
        console = Console(file=io.StringIO(), record=True, width=_WIDTH, highlight=False, force_jupyter=False)
        console.print(draw(self.state, title=self._title, width=_WIDTH, height=_HEIGHT))
        page = console.export_html(inline_styles=True, code_format=_FORMAT)
        return {"text/html": page, "text/plain": progress_line(self.state)}
