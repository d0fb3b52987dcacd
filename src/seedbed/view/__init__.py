"""`seedbed view`: a web page for datasets, and the same as one file.

It reads a dataset directory and writes nothing, runs in a process of its own, and never executes code of a directory.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

# The argument of `python -m seedbed.view` that asks for the statistics of a directory as JSON.
STATISTICS = "--statistics"


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError("the view does without pandas", name=fullname)


def leave_out_pandas() -> None:
    """In the process of the viewer: pyarrow imports pandas where it is installed, 67 MB that nothing here uses."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _WithoutPandas())
