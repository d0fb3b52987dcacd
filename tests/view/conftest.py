"""Datasets to look at, and a server that shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from browser import page  # noqa: F401 - a fixture
from view_helpers import HOSTILE, open_server, write_rows

import seedbed as sb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from view_helpers import Server


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with every kind of value, hostile text among them, and with dropped rows."""
    out = tmp_path_factory.mktemp("view") / "reviews"
    writer = sb.Scripted(answers={"fails": "[[400]]", "code": "```python\nx = 1  # one\n```"}, reasoning="because")
    recipe = sb.Recipe(
        name="reviews",
        seed=7,
        models={"writer": writer},
        columns=[
            sb.Category("topic", values=["tea", "bread", "fails", HOSTILE]),
            sb.LLMText("question", model="writer", prompt="Ask about {{ topic }}.", system="Be brief.", trace=True),
            sb.LLMCode("program", model="writer", language="python", prompt="Some code for {{ topic }}"),
            sb.Judge("quality", model="writer", of="question", scores={"clarity": "1 to 5", "depth": "1 to 5"}),
            sb.Image("picture", model="writer", prompt="{{ topic }}"),
            sb.Expression("good", "quality.clarity >= 3"),
        ],
        run={"buffer_size": 20, "shutdown_error_rate": 1.0},
    )
    sb.build(recipe, rows=120, out=out)
    return out


@pytest.fixture(scope="session")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two stages: documents, and three questions for each at the root."""
    out = tmp_path_factory.mktemp("view") / "questions"
    ask = sb.LLMText("question", model="writer", prompt="Question {{ _k }} about {{ topic }}.")
    recipe = sb.Recipe(
        seed=7,
        models={"writer": sb.Scripted()},
        stages=[
            sb.Stage(name="documents", rows=10, columns=[sb.Category("topic", values=["tea", "bread", "rain"])]),
            sb.Stage(name="questions", from_="documents", each=3, columns=[ask]),
        ],
    )
    sb.build(recipe, out=out)
    return out


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 5,000 rows."""
    return write_rows(tmp_path_factory.mktemp("view") / "small", 5_000)


@pytest.fixture(scope="session")
def server(built: Path, small: Path, staged: Path) -> Iterator[Server]:
    """A server of the three datasets."""
    with open_server(built, small, staged) as opened:
        yield opened
