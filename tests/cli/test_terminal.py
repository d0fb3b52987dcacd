"""The live panel, in a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from typing import TYPE_CHECKING

from command import ENVIRONMENT, REVIEWS, TEXT, recipe, started

import seedbed as library

if TYPE_CHECKING:
    from pathlib import Path


def open_terminal(rows: int = 40, columns: int = 110) -> tuple[int, int]:
    """Make a terminal of that size: our side, and the side that the command gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return ours, theirs


def everything(terminal: int) -> str:
    """Read until the other side is closed."""
    found = b""
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # how Linux says that a terminal's other side is gone
            break
        if not data:
            break
        found += data
    os.close(terminal)
    return found.decode()


TERMINAL = {**ENVIRONMENT, "TERM": "xterm-256color", "NO_COLOR": ""}
TERMINAL.pop("COLUMNS")


def test_a_terminal_gets_the_panel(tmp_path: Path) -> None:
    """The panel is drawn in place, with bars, keys and the result; the cursor is visible afterwards."""
    ours, theirs = open_terminal()
    with started(
        "run", REVIEWS, "-n", "60", "-o", tmp_path / "out", stdout=theirs, stderr=theirs, env=TERMINAL
    ) as process:
        os.close(theirs)
        text = everything(ours)
        assert process.wait(timeout=60) == 0, text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert text.count("\x1b[1A") > 20  # drawn over more than once
    assert text.index("\x1b[?25l") < text.index("\x1b[?25h")
    for part in ("reviews", "━", "60/60  100%", "in flight", "× 429", "tokens/s", "60 of 60 rows written", "row 0"):
        assert part in plain
    assert re.search(r"critic\s+\d+/8 in flight", plain)


def test_log_lines_stay_above_the_panel(tmp_path: Path) -> None:
    """The panel does not overwrite log lines."""
    (tmp_path / "mine.py").write_text(
        "import seedbed\n\ndef mine(thing: str) -> str:\n    print('printed by a column')\n"
        "    if thing == 'lamp':\n        raise seedbed.Permanent('no lamps')\n    return thing\n"
    )
    path = recipe(tmp_path, TEXT + "  - {name: mine, type: custom, function: 'mine:mine'}\n")
    ours, theirs = open_terminal()
    options = ("--allow-code", "--shutdown-error-rate", "1")
    with started(
        "run", path, "-n", "10", "-o", tmp_path / "out", *options, stdout=theirs, stderr=theirs, env=TERMINAL
    ) as process:
        os.close(theirs)
        text = everything(ours)
        assert process.wait(timeout=60) == 0, text
    # A line that is printed begins where the panel began: after going up and erasing.
    assert re.search(r"\x1b\[2K\r?(?:\x1b\[[0-9;]*m)*WARNING: row \d+ dropped", text) or "\nWARNING: row" in text
    assert "printed by a column" in text


def test_a_closed_terminal_does_not_end_the_run(tmp_path: Path) -> None:
    """The run finishes and its dataset is complete although the panel cannot be drawn."""
    ours, theirs = open_terminal()
    with started("run", REVIEWS, "-n", "40", "-o", tmp_path / "out", "--json", stderr=theirs, env=TERMINAL) as process:
        os.close(theirs)
        while b"in flight" not in os.read(ours, 1 << 16):
            pass
        os.close(ours)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
    assert '"written": 40' in out
    assert library.Dataset.open(tmp_path / "out").rows == 40


def test_overwriting_asks_on_a_terminal(tmp_path: Path) -> None:
    """No other answer than yes replaces a dataset."""
    path, out = recipe(tmp_path), tmp_path / "out"
    with started("run", path, "-n", "5", "-o", out) as process:
        assert process.wait() == 0
    for answer, code, rows in (("n", 2, 5), ("y", 0, 3)):
        ours, theirs = open_terminal()
        command = ("run", path, "-n", "3", "-o", out, "--overwrite", "--progress", "none")
        with started(*command, stdin=theirs, stderr=theirs, env=ENVIRONMENT) as process:
            os.close(theirs)
            os.write(ours, f"{answer}\n".encode())
            shown = everything(ours)
            assert process.wait() == code, shown
        assert "holds a finished dataset of 5 rows. Replace it? [y/N]" in " ".join(shown.split())
        assert library.Dataset.open(out).rows == rows
