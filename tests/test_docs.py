"""The examples of README.md and docs/ do what they say, and their links lead somewhere."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import reference

from seedbed import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# An indented block (in a list) is an example too; `<!-- not-run: why -->` on the line above keeps one from being run.
BLOCK = re.compile(
    r"^(?:<!-- not-run(?:: (?P<why>.+?))? -->(?P<kept>)\n)?(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\]\((?!https?:|mailto:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")


@attrs.frozen
class Example:
    page: str  # relative to the repository
    line: int  # of the first line of code
    code: str
    skipped: str | None  # why it is not run

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def examples(page: str, text: str) -> list[Example]:
    """Find the python blocks of a page."""
    return [
        Example(
            page,
            text.count("\n", 0, found.start("code")) + 1,
            re.sub(f"^{found['indent']}", "", found["code"], flags=re.MULTILINE),
            None if found["kept"] is None else found["why"] or "marked as not run",
        )
        for found in BLOCK.finditer(text)
    ]


class Run:
    """The blocks of one page, run in order, in one namespace and one directory."""

    def __init__(self, directory: Path, found: list[Example]) -> None:
        self.directory = directory
        self._left = [example for example in found if example.skipped is None]
        # A module that can be found by its name, since classes and type hints look theirs up.
        self._module = ModuleType(f"example_{directory.name}")

    def through(self, example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run every block up to `example` that has not been run yet, so that each can be asked for alone."""
        monkeypatch.chdir(self.directory)
        monkeypatch.setitem(sys.modules, self._module.__name__, self._module)
        while self._left and self._left[0].line <= example.line:
            block = self._left.pop(0)
            # The empty lines make a traceback point into the page.
            code = compile("\n" * (block.line - 1) + block.code, str(ROOT / block.page), "exec")
            exec(code, self._module.__dict__)


EXAMPLES = {
    str(path.relative_to(ROOT)): examples(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    for path in PAGES
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One run for each page, shared by the tests of its blocks."""
    return {
        page: Run(tmp_path_factory.mktemp(re.sub(r"\W", "_", page), numbered=False), found)
        for page, found in EXAMPLES.items()
    }


@pytest.mark.parametrize("example", [example for found in EXAMPLES.values() for example in found], ids=str)
def test_example_runs(example: Example, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """An example runs as it stands, after those above it on its page."""
    if example.skipped is not None:
        pytest.skip(example.skipped)
    runs[example.page].through(example, monkeypatch)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Every link to a file of the repository, and to a heading in it, has its target."""
    for link in LINK.finditer(path.read_text(encoding="utf-8")):
        target = (path.parent / link["path"]).resolve() if link["path"] else path
        assert target.exists(), f"{path.relative_to(ROOT)} links to {link['path']}, which does not exist"
        # The site has nothing else.
        assert path.name == "README.md" or target.is_relative_to(ROOT / "docs"), f"{link['path']} is outside of docs/"
        if link["anchor"]:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert link["anchor"] in anchors, f"{path.relative_to(ROOT)}: {link['path']} has no #{link['anchor']}"


@pytest.mark.parametrize("path", reference.pages(), ids=lambda path: path.stem)
def test_generated_parts_are_current(path: Path) -> None:
    """The generated parts of a page are what the classes say."""
    how = "run `python tests/reference.py` (CONTRIBUTING.md, “Document a field”)"
    assert path.read_text(encoding="utf-8") == reference.render(path), f"{path.name} is stale: {how}"


def test_every_page_is_linked() -> None:
    """Whoever starts at docs/index.md can reach every page of docs/."""
    seen, ahead = set(), [ROOT / "docs" / "index.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        ahead += [
            (page.parent / link["path"]).resolve()
            for link in LINK.finditer(page.read_text(encoding="utf-8"))
            if link["path"]
        ]
    lost = {str(page.relative_to(ROOT)) for page in PAGES[1:]} - {str(page.relative_to(ROOT)) for page in seen}
    assert not lost, f"no link leads to {', '.join(sorted(lost))}"


def test_the_site_has_every_page_in_order() -> None:
    """The navigation of the site has the pages of docs/index.md in the same order."""
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^(?:- |  )\[.*", index, re.MULTILINE)
    linked = [link["path"] for line in listed for link in LINK.finditer(line)]
    assert list(navigated(site["project"]["nav"])) == ["index.md", *linked]


def navigated(nav: list[Any] | dict[str, Any] | str) -> Iterator[str]:
    """The pages of a navigation, in order."""
    match nav:
        case str():
            yield nav
        case list() | dict():
            for each in nav.values() if isinstance(nav, dict) else nav:
                yield from navigated(each)


def test_every_error_is_documented() -> None:
    """The page of errors names every exception that seedbed has."""
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    names = [
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, BaseException)
    ]
    assert not [name for name in names if f"`{name}`" not in page]


PAGE = """
```python
items = [1]
```
<!-- not-run: needs a server -->
```python
raise SystemExit
```
- in a list:
  ```python
  if items:
      items.append(2)
  ```
```console
not python
```
<!-- not-run -->
```python
raise SystemExit
```
```python
raise ValueError(items)
```
"""


def test_blocks_are_found() -> None:
    """Blocks are found with their line, their code at the margin, and why they are not run."""
    assert examples("page.md", PAGE) == [
        Example("page.md", 3, "items = [1]\n", None),
        Example("page.md", 7, "raise SystemExit\n", "needs a server"),
        Example("page.md", 11, "if items:\n    items.append(2)\n", None),
        Example("page.md", 19, "raise SystemExit\n", "marked as not run"),
        Example("page.md", 22, "raise ValueError(items)\n", None),
    ]


def test_blocks_share_a_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block uses the names of the blocks above it, and its traceback points into the page."""
    found = examples("page.md", PAGE)
    run = Run(tmp_path, found)
    with pytest.raises(ValueError, match=r"\[1, 2\]") as caught:
        run.through(found[-1], monkeypatch)
    assert Path.cwd() == tmp_path
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(ROOT / "page.md"), 22)
