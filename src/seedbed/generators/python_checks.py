"""Verdicts on Python code: what the parser says, and ruff where it is installed."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, Permanent
from .verdict import Message, checked, not_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..recipe.validation import Validation

# Rules of ruff whose finding would fail when the code runs; all others are advice.
_ERRORS = ("invalid-syntax", "E9", "F5", "F6", "F7", "F82", "PLE")
_RUFF_SECONDS = 120.0
# The parser warns through a filter that all threads share; only one of ours may set it aside at a time.
_quiet = threading.Lock()


def python_checker(spec: Validation) -> Callable[[list[Any]], list[dict[str, Any]]]:
    """What gives verdicts on several texts at once: ruff is started once for all of them."""
    ruff = None if spec.lint is False else _find_ruff()
    if spec.lint and ruff is None:
        raise ConfigError(f"column {spec.name!r}: lint is true, but ruff is not installed: install seedbed[lint]")
    if ruff is not None:
        _try_rules(spec, ruff)

    def check(texts: list[Any]) -> list[dict[str, Any]]:
        found = [_parse(text) for text in texts]
        sound = {index: texts[index] for index, messages in enumerate(found) if not messages}
        if ruff is not None and sound:
            for index, messages in _lint(spec, ruff, sound).items():
                found[index] += messages
        return [checked(messages) for messages in found]

    return check


def _parse(text: Any) -> list[Message]:
    if not isinstance(text, str):
        return [not_text(text)]
    try:
        with _quiet, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return [Message(code="invalid-syntax", message=error.msg, line=error.lineno, column=error.offset)]
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL, or nested beyond what the parser can hold
        return [Message(code="invalid-syntax", message=str(error) or "nested too deeply")]
    return []


def _find_ruff() -> str | None:
    # Beside this Python first: an environment need not be activated to be used.
    beside = str(Path(sys.executable).parent)
    return shutil.which("ruff", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))


def _command(spec: Validation, ruff: str, *what: str) -> list[str]:
    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    # Isolated: what is valid must not depend on a configuration file in some folder above.
    flags = ["--isolated", "--no-cache", "--exit-zero", "--output-format=json", f"--target-version={version}"]
    return [ruff, "check", *flags, f"--select={','.join(spec.rules)}", *what]


def _try_rules(spec: Validation, ruff: str) -> None:
    try:
        # The command is ruff, with rules that the spec made sure are letters and digits.
        done = subprocess.run(
            _command(spec, ruff, "-"), input="", capture_output=True, text=True, timeout=_RUFF_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"column {spec.name!r}: ruff cannot be run: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())[:300]
        raise ConfigError(f"column {spec.name!r}: ruff refuses rules {', '.join(spec.rules)}: {said}")


def _lint(spec: Validation, ruff: str, texts: Mapping[int, str]) -> dict[int, list[Message]]:
    with tempfile.TemporaryDirectory(prefix="seedbed-lint-") as folder:
        for index, text in texts.items():
            Path(folder, f"{index}.py").write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
        try:
            done = subprocess.run(
                _command(spec, ruff, folder), capture_output=True, text=True, timeout=_RUFF_SECONDS, check=True
            )
            findings: Sequence[Mapping[str, Any]] = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise Permanent(f"column {spec.name!r}: ruff could not be asked: {error}") from error
    found: dict[int, list[Message]] = {}
    for each in findings:
        found.setdefault(int(Path(each["filename"]).stem), []).append(_message(each))
    return found


def _message(finding: Mapping[str, Any]) -> Message:
    code = finding.get("code") or "invalid-syntax"  # older versions name no code for syntax errors
    place = finding.get("location") or {}
    return Message(
        severity="error" if code.startswith(_ERRORS) else "warning",
        code=code,
        message=finding["message"],
        line=place.get("row"),
        column=place.get("column"),
    )
