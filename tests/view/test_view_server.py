from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from view_helpers import HOSTILE, Server, open_server, write_rows

import seedbed as sb
from seedbed.view.report import make_report, write_report

if TYPE_CHECKING:
    from pathlib import Path


def test_datasets_and_their_overview(server: Server) -> None:
    """The server lists its datasets by their names, with columns and what kind of value each shows."""
    assert [each["name"] for each in server.get("datasets")["datasets"]] == ["questions", "reviews", "small"]
    overview = server.get("d/reviews/overview")
    shown = {column["name"]: column["shown"] for column in overview["columns"]}
    assert shown == {
        "topic": "text",
        "question": "text",
        "question__trace": "chat",
        "program": "code",
        "quality": "scores",
        "picture": "image",
        "good": "boolean",
    }
    assert overview["rows"] + overview["dropped"] == 120
    assert overview["complete"]


def test_a_page_anywhere(server: Server) -> None:
    """Rows are numbered over all parts; a page has those of its offset, and the last one is short."""
    found = server.get("d/small/rows", offset=2_990, limit=20)
    assert found["numbers"] == list(range(2_990, 3_010))
    assert [row[0] for row in found["rows"]] == found["numbers"]
    assert server.get("d/small/rows", offset=4_995, limit=50)["numbers"] == list(range(4_995, 5_000))
    assert server.get("d/small/rows", offset=90_000)["rows"] == []


def test_filter_search_and_order(server: Server) -> None:
    """An expression, full text and an order select rows, alone and together."""
    found = server.get("d/small/rows", text="NEEDLE in")
    assert (found["numbers"], found["total"], found["done"]) == ([777], 1, True)
    found = server.get("d/small/rows", where="score.clarity = 5 AND number < 100", limit=3)
    assert (found["numbers"], found["total"]) == ([4, 9, 14], 20)
    assert server.get("d/small/rows", sort="number", descending="1", limit=2)["numbers"] == [4_999, 4_998]
    assert server.get("d/small/rows", sort="text", where="number IN (1, 5, 777)")["numbers"] == [777, 1, 5]
    found = server.get("d/small/rows", text="kettle", where="topic = 'rain'", sort="number", descending="1", limit=1)
    assert found["numbers"][0] % 2 == 1


@pytest.mark.parametrize(
    "where",
    [
        "nonsense(",
        "true; DROP TABLE x",
        "true) OR (true",
        "(SELECT count(*) FROM read_text('/etc/passwd')) > 0",
        "(SELECT count(*) FROM read_csv('https://example.com/x.csv')) > 0",
        "unknown_column = 1",
        "number",
    ],
)
def test_filters_that_are_refused(server: Server, where: str) -> None:
    """A filter is one expression over the columns; it reaches no file, no network, and no statement."""
    status, _, body = server.request(
        f"/api/d/small/rows?where={where.replace(' ', '%20').replace(';', '%3B').replace('(', '%28')}",
        {"Authorization": f"Bearer {server.token}"},
    )
    if where == "number":  # DuckDB takes a number as a truth value
        assert status in (200, 400)
        return
    assert status == 400
    assert "root:" not in body.decode()
    assert json.loads(body)["error"]


def test_a_row_in_full(server: Server) -> None:
    """A row has its cells, the prompts that it was generated from, and its neighbours in the search it came from."""
    overview = server.get("d/reviews/overview")
    names = [column["name"] for column in overview["columns"]]
    found = server.get("d/reviews/row", number=3)
    row = dict(zip(names, found["cells"], strict=True))
    prompt = found["prompts"]["question"]
    assert prompt == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"Ask about {row['topic']}."},
    ]
    assert (found["previous"], found["next"]) == (2, 4)
    found = server.get("d/small/row", number=9, where="score.clarity = 5")
    assert (found["previous"], found["next"]) == (4, 14)


def test_where_a_row_comes_from(server: Server) -> None:
    """A row has the model, attempts and tokens of each column, its parent, and its children, with links to them."""
    origin = server.get("d/reviews/row", number=0)["origin"]
    cells = {cell["column"]: cell for cell in origin["cells"]}
    assert cells["question"]["model"] == "writer"
    assert cells["question"]["attempts"] == 1
    assert cells["question"]["output_tokens"] > 0
    names = [column["name"] for column in server.get("d/questions/overview")["columns"]]
    found = server.get("d/questions/row", number=7)
    row = dict(zip(names, found["cells"], strict=True))
    (parent,) = found["origin"]["parents"]
    assert (parent["dataset"], parent["number"]) == ("questions@documents", row["_parent"])
    found = server.get("d/questions@documents/row", number=parent["number"])
    assert [child["number"] for child in found["origin"]["children"]] == [6, 7, 8]


def test_pictures_are_served_from_their_folder_only(server: Server, built: Path, tmp_path: Path) -> None:
    """A picture is what the path in a cell leads to, as bytes with its media type; other paths are not read."""
    bearer = {"Authorization": f"Bearer {server.token}"}
    status, headers, body = server.request("/api/d/reviews/cell?number=0&column=picture", bearer)
    assert (status, headers["content-type"]) == (200, "image/png")
    assert body.startswith(b"\x89PNG")
    writer_out = tmp_path / "hostile"
    recipe = sb.Recipe(
        seed=1,
        models={"m": sb.Scripted()},
        columns=[
            sb.Category("where", values=["x"]),
            sb.Image("picture", model="m", prompt="{{ where }}"),
        ],
    )
    sb.build(recipe, rows=1, out=writer_out)
    picture = writer_out / str(sb.Dataset.open(writer_out).to_polars()["picture"][0])
    picture.unlink()
    picture.symlink_to("/etc/passwd")
    with open_server(writer_out) as other:
        bearer = {"Authorization": f"Bearer {other.token}"}
        status, _, body = other.request("/api/d/hostile/cell?number=0&column=picture", bearer)
        assert status == 422
        assert b"root:" not in body


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Host": "example.com"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Origin": "https://example.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "document"}, 403),
    ],
)
def test_requests_of_others_are_refused(server: Server, headers: dict[str, str], status: int) -> None:
    """Without the token, from another origin or site, or under another name, the server answers nothing."""
    given = (
        {"Authorization": f"Bearer {server.token}", **headers}
        if headers and "Authorization" not in headers
        else headers
    )
    found, _, body = server.request("/api/datasets", given)
    assert found == status
    assert b"reviews" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_the_server_is_read_only(server: Server, method: str) -> None:
    """It answers GET and HEAD."""
    assert server.request("/api/datasets", {"Authorization": f"Bearer {server.token}"}, method=method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/%2e%2e/server.py",
        "/..%2fserver.py",
        "/web/../../server.py",
        "//etc/passwd",
        "/__init__.py",
        "/api/d/..%2f..%2fetc/overview",
        "/api/d/%2fetc/overview",
        "/api/d/reviews%00/overview",
    ],
)
def test_paths_lead_nowhere_else(server: Server, path: str) -> None:
    """Files and datasets are looked up by name: no path reaches another one."""
    status, _, body = server.request(path, {"Authorization": f"Bearer {server.token}"})
    assert status == 404
    assert b"root:" not in body
    assert b"import" not in body


def test_headers_that_bind_the_page(server: Server) -> None:
    """The page may run its own modules only, load from nowhere else, and be framed by nobody."""
    status, headers, _ = server.request("/")
    policy = headers["content-security-policy"]
    assert status == 200
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_a_dataset_that_changes_under_the_reader(tmp_path: Path) -> None:
    """Rows that are added appear, a dataset that was replaced is read anew, and one that is gone is said to be."""
    out = write_rows(tmp_path / "data", 100, size=50)
    with open_server(out) as server:
        assert server.get("d/data/rows")["total"] == 100
        shutil.rmtree(out)
        write_rows(out, 60, size=50, topic="bread")
        found = server.get("d/data/rows", where="topic = 'bread'")
        assert (found["total"], found["of"]) == (30, 60)
        (out / "batch_0000001.parquet").unlink()
        status, _, body = server.request("/api/d/data/rows?offset=55", {"Authorization": f"Bearer {server.token}"})
        assert status in (400, 422)
        assert "batch_0000001" in json.loads(body)["error"]
        shutil.rmtree(out)
        status, _, body = server.request("/api/d/data/rows", {"Authorization": f"Bearer {server.token}"})
        assert (status, json.loads(body)["waiting"]) == (404, True)


def test_huge_cells_are_cut(tmp_path: Path) -> None:
    """A table and a row get the beginning of a huge cell; all of it is there on request."""
    out = tmp_path / "data"
    sb.build([sb.Column("text", _huge)], rows=2, out=out)
    with open_server(out) as server:
        (cell,) = server.get("d/data/rows")["rows"][0]
        assert len(cell["cut"]) == 300
        (cell,) = server.get("d/data/row", number=1)["cells"]
        assert len(cell["cut"]) == 200_000
        bearer = {"Authorization": f"Bearer {server.token}"}
        assert len(server.request("/api/d/data/cell?number=1&column=text", bearer)[2]) == 5_000_000


async def _huge() -> str:
    return "x" * 5_000_000


def test_columns_named_like_those_of_the_database(tmp_path: Path) -> None:
    """Pages, cells, filters and orders are right for columns whose names DuckDB or its queries here use."""
    names = ("file_index", "File_Row_Number", "__row")
    columns = [sb.Column(name, _backwards, kind="from_scratch", dtype=int) for name in names]
    sb.build(columns, rows=100, out=tmp_path / "data", config=sb.RunConfig(buffer_size=10))
    with open_server(tmp_path / "data") as server:
        found = server.get("d/data/rows", offset=8, limit=4)
        assert found["rows"] == [[number] * 3 for number in (991, 990, 989, 988)]
        assert server.get("d/data/rows", where="file_index = 915 OR __row = 999")["numbers"] == [0, 84]
        assert server.get("d/data/rows", sort="File_Row_Number", limit=2)["numbers"] == [99, 98]
        bearer = {"Authorization": f"Bearer {server.token}"}
        assert server.request("/api/d/data/cell?number=57&column=file_index", bearer)[2] == b"942"


def _backwards(rows: range) -> list[int]:
    return [1_000 - 1 - row for row in rows]


def test_cost_of_stages(tmp_path: Path) -> None:
    """Each stage has its part of the cost, on the page of whichever stage."""
    model = {"type": "scripted", "input_price": 1000, "output_price": 1000}
    stages = [
        {"name": "docs", "columns": [{"name": "text", "type": "llm-text", "model": "m", "prompt": "Write."}]},
        {"name": "asked", "from": "docs", "each": 2}
        | {"columns": [{"name": "question", "type": "llm-text", "model": "m", "prompt": "Ask about {{ text }}"}]},
    ]
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"models": {"m": model}, "stages": stages}), encoding="utf-8")
    dataset = sb.build(sb.load_recipe(recipe), rows=6, out=tmp_path / "data")
    assert list(dataset.stage("docs").report.usage) == ["text"]
    with open_server(tmp_path / "data") as server:
        found = server.get("d/data/cost")
        assert {each["stage"]: each["calls"] for each in found["stages"]} == {"docs": 6, "asked": 12}
        assert sum(each["cost"] for each in found["stages"]) == pytest.approx(found["models"][0]["cost"])
        assert server.get("d/data@docs/cost") == found
    # The page of a report has the rows of one stage, and no links to others.
    assert b'"stages":[],"conflicts"' in make_report(tmp_path / "data")


def test_datasets_below_the_current_folder(tmp_path: Path) -> None:
    """Without a directory the server finds datasets below the current one, and follows no link."""
    write_rows(tmp_path / "one", 10)
    write_rows(tmp_path / "deep" / "two", 10)
    (tmp_path / "link").symlink_to(tmp_path / "one")
    with open_server(cwd=tmp_path) as server:
        assert [each["name"] for each in server.get("datasets")["datasets"]] == ["deep/two", "one"]
        assert server.get("d/deep/two/rows")["total"] == 10


def test_compare_and_statistics(server: Server) -> None:
    """Rows of one number are side by side; statistics are those of all rows."""
    found = server.get("match", a="small", b="reviews", limit=2)
    assert found["numbers"] == [0, 1]
    assert len(found["rows"]) == 2
    fields = {field["name"]: field for field in server.get("d/small/statistics")["fields"]}
    assert (fields["score.clarity"]["minimum"], fields["score.clarity"]["maximum"]) == (1, 5)
    assert fields["topic"]["distinct"] == 2


def test_drops_cost_and_graph(server: Server) -> None:
    """Drops have reasons and the command that retries them; cost is by column and model; the graph has figures."""
    drops = server.get("d/reviews/drops")
    assert drops["total"] == sum(reason["rows"] for reason in drops["reasons"]) > 0
    assert drops["retry"][:2] == ["seedbed", "resume"]
    cost = server.get("d/reviews/cost")
    assert {each["column"] for each in cost["columns"]} >= {"question", "program", "quality"}
    assert [each["model"] for each in cost["models"]] == ["writer"]
    drawing = server.get("d/reviews/graph")["drawing"]
    assert {box["name"] for box in drawing["boxes"]} >= {"topic", "question", "good"}
    assert ["topic", "question"] in [edge["ends"] for edge in drawing["edges"]]


def test_rows_of_open_row_groups(tmp_path: Path) -> None:
    """Rows that only the journal has follow the finished ones, and full text finds them."""
    out = tmp_path / "data"
    columns = [sb.Column("name", _named), sb.Column("fails", _fails)]
    with pytest.raises(sb.BuildError):
        sb.build(columns, rows=40, out=out, config=sb.RunConfig(buffer_size=10, shutdown_error_rate=0.5))
    with open_server(out) as server:
        found = server.get("d/data/rows")
        assert found["total"] > 0
        assert found["open"]
        assert server.get("d/data/rows", text="row name")["total"] == found["total"]


async def _named(context: sb.CellContext) -> str:
    return f"row name {context.row}"


async def _fails(name: str) -> str:
    raise ValueError(name)


def test_the_report_is_one_file(built: Path, tmp_path: Path) -> None:
    """`seedbed report` writes one page with its data, in which no text of a cell ends an element."""
    out = tmp_path / "report.html"
    command = [sys.executable, "-m", "seedbed.cli", "report", str(built), "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    text = out.read_text()
    assert HOSTILE not in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert out.stat().st_size < 2_000_000


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    """Missing folders are created; what is in the way is named."""
    dataset = write_rows(tmp_path / "data", 10)
    assert write_report(dataset, tmp_path / "new" / "report.html") > 0
    with pytest.raises(sb.StoreError, match=r"cannot be written to .*number"):
        write_report(dataset, tmp_path / "new" / "report.html" / "number")


def test_an_event_log_of_someone_else(tmp_path: Path) -> None:
    """Of a log that holds anything, the pages show what has the form of a log, and nothing fails."""
    out = write_rows(tmp_path / "data", 10)
    folder = out / ".seedbed" / "history"
    folder.mkdir()
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    columns = [
        {"name": "text", "kind": "cell", "prompt": endless},
        {"name": 3},
        7,
        {"name": "x", "kind": "no"},
    ]
    lines = [{"title": HOSTILE, "columns": columns}, {"t": "soon"}, {"t": None}, {"columns": 5}, {"report": 1}]
    (folder / "run_0001.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with open_server(out) as server:
        assert server.get("d/data/overview")["title"] == HOSTILE
        assert [box["name"] for box in server.get("d/data/graph")["drawing"]["boxes"]] == ["text"]
        assert server.get("d/data/row", number=1)["prompts"] == {}
        assert server.get("d/data/cost")["wasted"] == []
