from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from browser import open_page, picture, violations, wait_until
from view_helpers import HOSTILE, open_server, write_rows

import seedbed as sb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page
    from view_helpers import Server

PAGES = ("run", "rows", "row?number=3", "columns", "drops", "graph", "cost", "compare?with=small")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a dataset of 1,000,000 rows."""
    out = write_rows(tmp_path_factory.mktemp("large") / "large", 1_000_000, size=20_000)
    with open_server(out) as server:
        yield server


def visit(page: Page, server: Server, path: str) -> None:
    """Open a page of a dataset, and wait until it has what it shows."""
    if not page.url.startswith(server.address):
        page.goto(server.url)
        wait_until(page, "!location.hash.includes('token')")
    page.goto(server.page(path))
    name = path.partition("/")[2].partition("?")[0].capitalize()
    wait_until(page, "name => document.title.startsWith(name)", f"{name} ")
    page.wait_for_selector(
        ".fields" if name == "Row" else "main :is(.row, .field, .figure, .reasons, .drawing, .empty, .list)"
    )
    wait_until(page, "!document.body.innerText.includes('Reading the columns')")


@pytest.mark.parametrize("form", ["desk", "narrow", "dark", "wide"])
def test_every_page_in_every_form(server: Server, form: str) -> None:
    """On a desk, at 360 px, in the dark and at 4K each page fits its width, and axe finds nothing serious."""
    width, height = {"narrow": (360, 740), "wide": (3840, 2160)}.get(form, (1280, 800))
    with open_page(width=width, height=height, dark=form == "dark") as page:
        for path in PAGES:
            visit(page, server, f"reviews/{path}")
            picture(page, f"{path.partition('?')[0]}-{form}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert not violations(page), path


def test_a_million_rows_are_scrolled_and_filtered(large: Server, page: Page) -> None:
    """The last row is a key away, only the rows in view are in the page, and a filter finds one among all."""
    visit(page, large, "large/rows")
    table = page.get_by_role("grid")
    assert table.get_attribute("aria-rowcount") == "1000001"
    table.focus()
    page.keyboard.press("End")
    wait_until(page, "document.querySelector('.row.active')?.innerText.includes('999,999')")
    assert page.locator(".row").count() < 60
    picture(page, "million")
    page.evaluate("() => { const view = document.querySelector('.rows'); view.scrollTop = view.scrollHeight / 2; }")
    wait_until(page, "/49\\d,\\d{3}|50\\d,\\d{3}/.test(document.querySelector('.row .cell')?.innerText)")
    page.keyboard.press("/")
    page.keyboard.type("needle")
    page.keyboard.press("Enter")
    wait_until(page, "document.getElementById('count')?.innerText === '1 of 1,000,000 rows'")
    assert "a needle in the haystack" in page.locator(".row").first.inner_text()
    page.get_by_label("Filter by an SQL expression").fill("score.clarity = 5 AND number > 999990")
    page.get_by_label("Search all text").fill("")
    page.keyboard.press("Enter")
    wait_until(page, "document.getElementById('count')?.innerText === '2 of 1,000,000 rows'")
    page.get_by_label("Filter by an SQL expression").fill("nonsense(")
    page.keyboard.press("Enter")
    page.get_by_role("alert").filter(has_text="syntax error").wait_for()
    assert not violations(page)


def test_rows_by_keys_alone(server: Server, page: Page) -> None:
    """Without a mouse: to the rows, into one, to its neighbours, and back."""
    visit(page, server, "reviews/run")
    page.keyboard.press("2")
    page.wait_for_selector(".row.active")
    page.get_by_role("grid").focus()
    for key in ("j", "j", "ArrowDown", "k"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Row 2").wait_for()
    page.keyboard.press("j")
    page.get_by_role("heading", name="Row 3").wait_for()
    assert "number=3" in page.url  # a link that can be shared
    page.keyboard.press("Escape")
    page.wait_for_selector(".row")


def test_markup_in_cells_is_text(server: Server, page: Page) -> None:
    """HTML and script in a value are shown as they are written."""
    visit(page, server, "reviews/rows")
    page.get_by_label("Search all text").fill("<script>alert")
    page.keyboard.press("Enter")
    wait_until(page, "/^\\d+ of /.test(document.getElementById('count')?.innerText)")
    row = page.locator(".row").first
    row.wait_for()
    assert HOSTILE in row.inner_text()
    row.click()
    page.wait_for_selector(".field")
    assert HOSTILE in page.locator(".field").first.inner_text()
    assert page.locator("main script, main img[src=x]").count() == 0


def test_kinds_of_values(server: Server, page: Page) -> None:
    """A row shows chat as turns, code highlighted, scores as bars, and the picture."""
    visit(page, server, "reviews/row?number=0")
    assert page.locator(".chat .turn.assistant").count() >= 1
    assert page.locator("pre.code .digits").count() >= 1
    assert page.locator(".scores .bar").count() == 2
    wait_until(page, "document.querySelector('.picture img')?.naturalWidth > 0")
    page.get_by_text("prompt", exact=True).first.click()
    assert page.get_by_text("Be brief.").first.is_visible()


def test_a_row_is_followed_to_its_parent(server: Server, page: Page) -> None:
    """From a question to the document that it was made from, and back to another of its questions."""
    visit(page, server, "questions/row?number=7")
    page.get_by_role("link", name="documents 2", exact=True).click()
    page.get_by_role("heading", name="Row 2").wait_for()
    assert "questions%40documents" in page.url
    picture(page, "row-parent")
    page.get_by_role("link", name="questions 8", exact=True).click()
    page.get_by_role("heading", name="Row 8").wait_for()
    page.get_by_role("link", name="documents", exact=True).click()
    wait_until(page, "document.getElementById('count')?.innerText === '10 rows'")


def test_drops_and_a_filter_from_a_distribution(server: Server, page: Page) -> None:
    """A reason selects its rows; the command that retries them is there; a value of a column filters the rows."""
    visit(page, server, "reviews/drops")
    assert "--retry-dropped" in page.locator(".command code").first.inner_text()
    reason = page.locator(".reasons button").first
    reason.click()
    assert reason.get_attribute("aria-pressed") == "true"
    visit(page, server, "reviews/columns")
    page.get_by_role("link", name="tea", exact=True).click()
    wait_until(page, "document.querySelector('.row .cell:nth-child(2)')?.innerText === 'tea'")


def test_without_the_token(server: Server, page: Page) -> None:
    """Without the token the page says which URL to open, and shows no data."""
    page.goto(server.page("reviews/rows"))
    page.get_by_role("alert").filter(has_text="seedbed view").wait_for()
    assert page.locator(".row").count() == 0


RUN = """
import sys, trio, seedbed as sb

async def slow(context: sb.CellContext) -> str:
    await trio.sleep(0.02)
    if context.row % 10 == 3:
        raise ValueError("always")
    return f"value {context.row}"

async def more(a: str) -> str:
    return a.upper()

if __name__ == "__main__":
    columns = [sb.Column("a", slow, key="model"), sb.Column("b", more)]
    limits = {"model": sb.KeyLimits(max_parallel_requests=4)}
    config = sb.RunConfig(buffer_size=50, max_concurrent_row_groups=2, shutdown_error_rate=1.0)
    sb.build(columns, rows=int(sys.argv[2]), out=sys.argv[1], limits=limits, config=config)
"""


def test_a_live_run_is_watched_to_its_end(tmp_path: Path, page: Page) -> None:
    """The page of a run that has not begun fills as it goes, and says when it has finished."""
    out = tmp_path / "data"
    out.mkdir()
    (tmp_path / "run.py").write_text(RUN)
    with open_server(out) as server:
        page.goto(server.url)
        page.goto(server.page("data/run"))
        page.get_by_text("has not written anything yet").wait_for()
        with subprocess.Popen([sys.executable, str(tmp_path / "run.py"), str(out), "600"]) as process:
            wait_until(page, "document.querySelector('.square.lost') && document.querySelector('.square.open')")
            assert "running" in page.locator(".figures").first.inner_text()
            picture(page, "run-live")
            assert not violations(page)
            wait_until(page, "/finished/.test(document.querySelector('.figures')?.innerText)", seconds=60)
            assert process.wait() == 0
        assert "540" in page.locator(".figures").first.inner_text()
        assert page.locator(".square.lost").count() == 12


def test_a_run_that_was_killed(tmp_path: Path, page: Page) -> None:
    """The directory of a killed run shows how far it came, its open rows, and how to resume it."""
    out = tmp_path / "data"
    (tmp_path / "run.py").write_text(RUN)
    with subprocess.Popen([sys.executable, str(tmp_path / "run.py"), str(out), "5000"]) as process:
        while not (out / "batch_0000000.parquet").exists():
            assert process.poll() is None
        process.kill()
    dataset = sb.Dataset.open(out)
    with open_server(out) as server:
        visit(page, server, "data/run")
        page.get_by_text("killed or crashed").wait_for()
        picture(page, "run-crashed")
        visit(page, server, "data/rows")
        wait_until(
            page,
            "rows => Number(document.getElementById('count').innerText.replace(/\\D/g, '')) > rows",
            dataset.rows,
        )
        visit(page, server, "data/drops")
        assert "seedbed resume" in page.locator(".command code").first.inner_text()


def test_the_report_in_a_browser(built: Path, tmp_path: Path) -> None:
    """The report shows the same pages from a file, without a server, and loads nothing."""
    out = tmp_path / "report.html"
    subprocess.run([sys.executable, "-m", "seedbed.cli", "report", str(built), "-o", str(out)], check=True)
    with open_page() as page:
        for name in ("rows", "run", "columns", "row?number=0", "drops", "graph", "cost"):
            page.goto(f"file://{out}#/report/{name}")
            page.wait_for_selector("main :is(.row, .field, .figure, .reasons, .drawing)")
            picture(page, f"report-{name.partition('?')[0]}")
            assert not violations(page), name
