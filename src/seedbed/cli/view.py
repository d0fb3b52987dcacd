"""`seedbed view` and `seedbed report`: datasets as a web page, and as one file."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from .exit_codes import ExitCode
from .options import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def view(
    *directories: Path,
    port: int = 0,
    open_browser: Annotated[bool, Parameter(name="--open", negative="--no-open", show_default=False)] = False,
    machine: Machine = Machine(),
) -> int:
    """Show datasets as a web page on this machine, whether their builds run, have finished or have crashed.

    The page only reads. Its URL has a token and works on this machine only; Ctrl-C ends it.

    Parameters
    ----------
    directories
        The directories of datasets; without any, all datasets below the current directory.
    port
        The port, by default a free one.
    open_browser
        Open the page in the browser.

    """
    import webbrowser

    from ..errors import ConfigError
    from . import output

    server = import_server()
    if missing := [path for path in directories if not path.is_dir()]:
        raise ConfigError(f"there is no directory {str(missing[0])!r}")

    def announce(url: str) -> None:
        if machine.json:
            output.print_json({"url": url})
        else:
            output.print_line(f"{url}\nCtrl-C ends the view.")
        if open_browser:
            webbrowser.open(url)

    with suppress(KeyboardInterrupt):  # that is how it ends
        server.serve(directories, folder=None if directories else Path(), port=port, announce=announce)
    return ExitCode.OK


def report(
    directory: Path,
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    machine: Machine = Machine(),
) -> int:
    """Write one self-contained page about a dataset: the figures of `seedbed view`, and a sample of its rows.

    Parameters
    ----------
    directory
        The directory of a dataset, finished or not.
    out
        The file to write, such as report.html.

    """
    from ..view.report import write_report
    from . import output

    size = write_report(directory, out)
    if machine.json:
        output.print_json({"path": str(out), "bytes": size})
    else:
        output.print_line(f"{out}: {size / 1000:,.0f} kB")
    return ExitCode.OK


@contextmanager
def open_view(directory: Path) -> Iterator[None]:
    """Serve the page of a dataset from a process of its own during the block, which creates the dataset.

    On a terminal the page stays after the block, until Ctrl-C.
    """
    import subprocess
    import sys
    from importlib.util import find_spec

    from ..errors import ConfigError
    from . import output

    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise ConfigError(f"--view needs {name}: pip install 'seedbed[view]'")
    # In a session of its own: Ctrl-C is for the run, whose end the page still shows.
    process = subprocess.Popen(
        [sys.executable, "-m", "seedbed.view", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise ConfigError("the view could not be started; `seedbed view` in another terminal shows why")
        output.print_line(f"view: {url}", error=True)
        yield
        if sys.stdin.isatty() and sys.stderr.isatty():
            output.print_line("the view stays open; Ctrl-C ends it", error=True)
            with suppress(KeyboardInterrupt):
                process.wait()
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def import_server() -> ModuleType:
    """The server of the page; `ConfigError` if its extra is not installed."""
    from ..errors import ConfigError
    from ..view import save_memory

    save_memory()
    try:
        from ..view import server
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise ConfigError(f"the view needs {error.name}: pip install 'seedbed[view]'") from error
    return server
