"""`seedbed view`: a web page for datasets, and the same as one file.

It reads a dataset directory and writes nothing, runs in a process of its own, and never executes code of a directory.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder

# The argument of `python -m seedbed.view` that asks for the statistics of a directory as JSON.
STATISTICS = "--statistics"


_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


class _WithoutPandas(MetaPathFinder):
    """Hides pandas, which pyarrow imports where it is installed: 67 MB that nothing here uses."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError("the view does without pandas", name=fullname)


def save_memory() -> None:
    """Have the process of the viewer take less memory; called before anything large is imported (benchmarks/view)."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _WithoutPandas())
    if sys.platform == "linux":
        # Of glibc: two arenas for all threads; what is freed of 128 kB and more goes back to the system.
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            library.mallopt(_M_ARENA_MAX, 2)
            library.mallopt(_M_MMAP_THRESHOLD, 1 << 17)
