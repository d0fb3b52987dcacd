"""Pages in a real browser: Debian's Chromium, driven by Playwright, which brings no browser of its own here.

A folder of tests that needs one imports the fixture `page` in its conftest.py. While a page is open, an asyncio loop
runs in the thread of the test, so build datasets in fixtures of a wider scope, or in another thread or process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import ConsoleMessage, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Without those about the background, Chromium looks for hosts of its maker at every start.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Where pictures of pages are stored; CI stores the folder with its output.
PICTURES = Path(os.environ.get("SEEDBED_SCREENSHOTS") or Path(__file__).with_name("output"))


@contextmanager
def open_page(*, width: int = 1280, height: int = 800, dark: bool = False, **context: Any) -> Iterator[Page]:
    """Open a page in a browser of its own; what it logs as an error, or loads from another host, fails the test."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - not needed to collect tests

    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **context
        )
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: wrong.append(f"uncaught: {error}"))
        page.on(
            "console", lambda said: wrong.append(said.text) if said.type == "error" and not _is_answer(said) else None
        )
        page.on("request", lambda request: None if _is_local(request.url) else wrong.append(f"loads {request.url}"))
        try:
            yield page
        finally:
            browser.close()
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of 1280 × 800."""
    with open_page() as opened:
        yield opened


def wait_until(page: Page, expression: str, argument: Any = None, *, seconds: float = 30) -> None:
    """Wait until an expression of JavaScript, or a function of `argument`, is true on the page.

    Playwright's own `wait_for_function` evaluates text in the page, which a content security policy refuses.
    """
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression, argument):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {expression}\n{page.inner_text('body')[:2000]}"
        page.wait_for_timeout(30)


def picture(page: Page, name: str) -> None:
    """Store a picture of what a page shows."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")


def violations(page: Page) -> list[str]:
    """What axe finds serious or critical on a page, for people who use a screen reader or no mouse."""
    # As a function of the protocol, not as a script of the page, which its content security policy would refuse.
    found = page.evaluate(
        f"async () => {{ const module = {{exports: {{}}}}; {_axe()};"
        "return (await (module.exports.run ? module.exports : axe).run(document)).violations }"
    )
    return [
        f"{each['id']}: {each['help']}: {json.dumps([node['html'][:200] for node in each['nodes'][:3]])}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def _axe() -> str:
    """The source of axe-core: of the folder that SEEDBED_AXE names, else fetched by npm."""
    folder = Path(os.environ.get("SEEDBED_AXE") or Path(tempfile.gettempdir()) / "seedbed-axe")
    source = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not source.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("axe-core is not installed, and neither is npm")
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "axe-core@4"]
        subprocess.run(command, check=True, timeout=120)
    return source.read_text(encoding="utf-8")


def _is_answer(said: ConsoleMessage) -> bool:
    """True for what Chromium logs of an answer such as 404, which a page may expect."""
    return said.text.startswith("Failed to load resource: the server responded")


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "about", "file") or parts.hostname in ("127.0.0.1", "localhost")
