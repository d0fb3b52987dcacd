from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import open_page, picture, violations
from plan_helpers import node
from serving import document

from seedbed.cli import main

if TYPE_CHECKING:
    from playwright.sync_api import Page

EXAMPLES = Path(__file__).parents[2] / "examples" / "plans"


def explain(plan: Path, html: Path, *options: str) -> None:
    """Write the page of a plan as the command does."""
    registries = str(EXAMPLES / "registries.toml")
    words = ["plan", "explain", str(plan), "--registries", registries, "--html", str(html), *options]
    assert main(words) == 0


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a plan of ten nodes with a traced request."""
    html: Path = tmp_path_factory.mktemp("page") / "plan.html"
    explain(EXAMPLES / "complex_dag.json", html, "--request", '{"user_id": 1}')
    return html


def texts(page: Page, selector: str) -> list[str]:
    """The texts of all elements that match."""
    return [" ".join(each.split()) for each in page.locator(selector).all_text_contents()]


def test_a_page_draws_the_plan_and_what_a_request_waited_for(traced: Path) -> None:
    """Every node is drawn with its op and what it writes, segments are bands, and the critical path stands out."""
    with open_page() as page:
        page.goto(traced.as_uri())
        picture(page, "plan-explained")
        assert page.title() == "Plan complex_dag"
        assert page.locator("main > .scroll g.node").count() == 10
        drawn = texts(page, "#node-n3 text")
        assert drawn == ["n3", "core::vm", "writes final_score"]
        assert page.locator("polyline.segment").count() >= 1
        path = page.locator("span.hot").inner_text().split(" → ")
        assert (path[0], path[-1]) == ("n0", "n9")
        critical = {
            name.removeprefix("node-")
            for name in page.locator("g.critical").evaluate_all("found => found.map(each => each.id)")
        }
        assert critical == set(path)
        assert page.locator("path.edge.critical").count() == len(path) - 1
        rows = page.locator("tbody tr").filter(has=page.locator(".bar"))
        assert rows.count() == 10
        assert "LRANGE" in texts(page, "table td")
        assert violations(page) == []


@pytest.mark.parametrize("dark", [False, True])
def test_nodes_do_not_cover_each_other(traced: Path, *, dark: bool) -> None:
    """No two boxes overlap, none is cut off, and texts can be read on light and dark screens."""
    with open_page(dark=dark) as page:
        page.goto(traced.as_uri())
        picture(page, f"plan-explained-{'dark' if dark else 'light'}")
        boxes = [each.bounding_box() for each in page.locator("main > .scroll g.node rect").all()]
        places = [(box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]) for box in boxes if box]
        assert len(places) == 10
        for at, one in enumerate(places):
            for other in places[:at]:
                assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert violations(page) == []


def test_names_of_a_plan_cannot_break_the_page(tmp_path: Path) -> None:
    """Labels of nodes are text, whatever they hold; without a request there is no critical path."""
    label = "</td><script>document.title = 'broken'</script>"
    plan = document("hostile", node("s", "test::fixed_source", trace=label), node("t", "core::take", "s", count=1))
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    explain(tmp_path / "plan.json", tmp_path / "plan.html")
    with open_page() as page:
        page.goto((tmp_path / "plan.html").as_uri())
        assert page.title() == "Plan hostile"
        assert label in texts(page, "td")
        assert page.locator("span.hot").count() == 0
