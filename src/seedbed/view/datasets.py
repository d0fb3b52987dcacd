"""The datasets that the viewer shows, and what it answers about them."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from asyncio.subprocess import PIPE
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ..errors import ManifestError, SeedbedError
from ..models.openai import media_type_of
from ..store.files import PRIVATE, read_file
from ..store.history import history_runs
from ..store.manifest import is_dataset
from . import STATISTICS, reading
from .queries import LONG, Database, Query, QueryError, Search, Table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from starlette.requests import Request

    from ..store.dataset import Dataset
    from .reading import Signature

# Rows of one page of a table at most, bytes of a picture, and datasets in one folder that are listed.
_PAGE, _PICTURE, _DATASETS = 500, 20 << 20, 500
# Seconds between two looks at the files of a live run, and that a page of hits is waited for.
_POLL, _WAIT = 0.25, 15.0
# Seconds after which rows of open row groups are read again.
_JOURNAL_PAUSE = 2.0
_SEARCHES = 6
# Parents and children of a row that are linked.
_RELATIVES = 50


class Opened:
    """One dataset directory; read again when it has changed. Its methods may be called from any thread."""

    def __init__(self, directory: Path, database: Database, stage: str = "") -> None:
        self.directory = directory
        self.stage = stage
        self._database = database
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._signatures: tuple[Signature, Signature] | None = None
        self._read_at = 0.0
        self._table: Table | None = None
        self._described = reading.Described()
        self._searches: OrderedDict[Query, Search] = OrderedDict()
        self._statistics: tuple[Signature, dict[str, Any]] | None = None

    def current(self) -> tuple[Table, reading.Described]:
        """The rows as they are now; `ManifestError` while there is no dataset."""
        with self._lock:
            found, now = reading.signatures(self.directory), time.monotonic()
            known = self._signatures
            # A journal grows all the time: its rows are read again after a while, those of the dataset at once.
            is_old = known is not None and found != known and now - self._read_at >= _JOURNAL_PAUSE
            if self._table is None or known is None or found[0] != known[0] or is_old:
                dataset = reading.open_stage(self.directory, self.stage)
                self._described = described = reading.describe(self.directory)
                stage = dataset.stage_name
                rows = [] if dataset.complete else reading.read_open_rows(self.directory, described, stage)
                self._table = Table(self._database, dataset, rows, described.types())
                self._signatures, self._read_at = found, now
                for search in self._searches.values():
                    search.stop()
                self._searches.clear()
            return self._table, self._described

    @property
    def folder(self) -> Path:
        """The folder of the manifest, which is another one for a stage that is not at the root."""
        if self.stage:
            with suppress(SeedbedError, OSError):
                return self.current()[0].dataset.path
        return self.directory

    def search(self, query: Query) -> Search:
        """The search of a query, started if it is new."""
        table, _ = self.current()
        with self._lock:
            search = self._searches.pop(query, None)
            if search is None:
                table.check(query)
                search = Search(table, query)
                threading.Thread(target=search.run, daemon=True).start()
            self._searches[query] = search
            while len(self._searches) > _SEARCHES:
                self._searches.popitem(last=False)[1].stop()
            return search

    def statistics(self) -> tuple[Signature, dict[str, Any] | None]:
        """The state of the rows, and their statistics if they are known."""
        found, _ = reading.signatures(self.directory)
        known = self._statistics
        return found, known[1] if known is not None and known[0] == found else None

    def remember(self, signature: Signature, found: dict[str, Any]) -> None:
        """Remember the statistics of the rows in this state."""
        self._statistics = (signature, found)


class Viewer:
    """What the server knows: the datasets by their names, and what answers about them."""

    def __init__(self, directories: Sequence[Path], *, folder: Path | None = None) -> None:
        """Serve these directories or, with `folder`, those below it."""
        self._folder = folder
        self._database = Database([folder] if folder is not None else directories)
        names = [each.resolve().name or "dataset" for each in directories]
        self._opened = {
            name if names.count(name) == 1 else f"{name}-{at}": Opened(directory, self._database)
            for at, (name, directory) in enumerate(zip(names, directories, strict=True), 1)
        }
        self._stages: dict[str, Opened] = {}
        self._adding = threading.Lock()
        self._counting = asyncio.Lock()
        self.stopping = asyncio.Event()

    def warm(self) -> None:
        """Read the manifests of the directories, so that the first page is quick."""
        for opened in list(self._opened.values()):
            with suppress(SeedbedError, OSError):
                opened.current()

    def routes(self) -> list[Route]:
        def route(path: str, answer: Callable[[Request], Any]) -> Route:
            async def answered(request: Request) -> Response:
                try:
                    found = await run_in_threadpool(answer, request)
                except QueryError as error:
                    return JSONResponse({"error": str(error)}, status_code=400)
                except LookupError as error:
                    return JSONResponse({"error": str(error.args[0]) if error.args else "not found"}, status_code=404)
                except ManifestError as error:
                    return JSONResponse({"error": str(error), "waiting": True}, status_code=404)
                except (SeedbedError, OSError, ValueError) as error:
                    return JSONResponse({"error": str(error)}, status_code=422)
                return found if isinstance(found, Response) else JSONResponse(found)

            return Route(f"/api/{path}", answered, methods=["GET"])

        return [
            route("datasets", self._datasets),
            route("d/{name:path}/overview", self._overview),
            route("d/{name:path}/rows", self._rows),
            route("d/{name:path}/row", self._row),
            route("d/{name:path}/cell", self._cell),
            route("d/{name:path}/drops", lambda request: reading.drops(*self._dataset(request))),
            route("d/{name:path}/cost", lambda request: reading.cost(*self._dataset(request))),
            route("d/{name:path}/graph", self._graph),
            Route("/api/d/{name:path}/statistics", self._statistics, methods=["GET"]),
            Route("/api/d/{name:path}/run", self._run, methods=["GET"]),
            route("match", self._match),
        ]

    def _find(self, name: str) -> Opened:
        if self._folder is not None and name not in self._opened:
            self._look()
        if name not in self._opened:
            # A stage is named after its dataset: `reviews@documents`.
            root, _, stage = name.rpartition("@")
            if root not in self._opened or stage not in self._opened[root].current()[0].dataset.stages:
                raise LookupError(f"there is no dataset {name!r} here")
            opened = self._opened[root]
            with self._adding:
                self._stages.setdefault(name, Opened(opened.directory, self._database, stage))
            return self._stages[name]
        return self._opened[name]

    def _look(self) -> None:
        """Find the datasets below the folder, not deeper than three levels; links are not followed."""
        assert self._folder is not None
        pending, seen = [(self._folder, 0)], 0
        while pending and len(self._opened) < _DATASETS and seen < 20_000:
            folder, depth = pending.pop(0)
            seen += 1
            if is_dataset(folder):
                name = folder.relative_to(self._folder).as_posix()
                self._opened.setdefault(folder.resolve().name if name == "." else name, Opened(folder, self._database))
            elif depth < 3:
                with suppress(OSError):
                    pending += [
                        (each, depth + 1)
                        for each in sorted(folder.iterdir())
                        if not each.name.startswith(".") and not each.is_symlink() and each.is_dir()
                    ]

    def _dataset(self, request: Request) -> tuple[Path, Dataset]:
        opened = self._find(request.path_params["name"])
        return opened.directory, opened.current()[0].dataset

    def _datasets(self, _request: Request) -> Any:
        if self._folder is not None:
            self._look()
        listed = []
        for name, opened in sorted(self._opened.items()):
            try:
                table, described = opened.current()
                listed.append({"name": name, **reading.overview(opened.directory, table, described)})
            except (SeedbedError, OSError) as error:
                listed.append({"name": name, "path": str(opened.directory), "error": str(error)})
        return {"datasets": listed, "folder": None if self._folder is None else str(self._folder)}

    def _overview(self, request: Request) -> Any:
        opened = self._find(request.path_params["name"])
        table, described = opened.current()
        found = reading.overview(opened.directory, table, described)
        return {**found, "open_rows": len(table.open_rows), "runs": history_runs(opened.directory)}

    def _rows(self, request: Request) -> Any:
        opened = self._find(request.path_params["name"])
        query, given = _query(request), request.query_params
        offset, limit = _whole(given.get("offset"), 0), min(_PAGE, _whole(given.get("limit"), 50))
        table, _ = opened.current()
        if query.is_plain:
            numbers = list(range(offset, min(table.total, offset + limit)))
            found, done = table.total, True
        else:
            search = opened.search(query)
            search.wait(offset + limit, _WAIT)
            if search.error is not None:
                raise QueryError(search.error)
            numbers, found, done = search.numbers(offset, limit), search.found, search.done
        groups = {
            number: table.open_rows[number - table.rows]["_row_group"] for number in numbers if number >= table.rows
        }
        return {
            "total": found,
            "of": table.total,
            "done": done,
            "offset": offset,
            "numbers": numbers,
            "open": groups,
            "rows": table.page(numbers),
        }

    def _row(self, request: Request) -> Any:
        opened = self._find(request.path_params["name"])
        table, described = opened.current()
        number, query = _whole(request.query_params.get("number"), 0), _query(request)
        if number >= table.total:
            raise LookupError(f"row {number:,} is not in the dataset, which has {table.total:,} rows")
        cells = table.page([number], longest=LONG)[0]
        row = dict(zip(table.kinds, map(_value, cells), strict=True))
        is_stored = number < table.rows
        neighbours: list[int | None] = [
            number - 1 if number else None,
            number + 1 if number + 1 < table.total else None,
        ]
        if not query.is_plain:
            search = opened.search(query)
            search.wait(1 << 62, _WAIT)
            at = search.position(number)
            if at is not None:
                before, after = search.numbers(at - 1, 1) if at else [], search.numbers(at + 1, 1)
                neighbours = [before[0] if before else None, after[0] if after else None]
        return {
            "number": number,
            "total": table.total,
            "part": table.dataset.parts[table.place(number)[0]].name if is_stored else None,
            "cells": cells,
            "prompts": described.prompts(row),
            "origin": self._origin(opened, table, number, row) if is_stored else None,
            "previous": neighbours[0],
            "next": neighbours[1],
        }

    def _origin(self, opened: Opened, table: Table, number: int, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """Where a row came from, with its parents and children in other stages."""
        found = reading.origin(table, number)
        dataset = table.dataset
        if not dataset.stages:
            return found
        root = next(name for name, each in self._opened.items() if each.directory == opened.directory)
        parents: list[dict[str, Any]] = []
        children: list[dict[str, Any]] = []
        for stage in dataset.stages:
            name = f"{root}@{stage}"
            if stage == dataset.parent_stage:
                wanted = row.get("_parent")
                numbers = wanted if isinstance(wanted, list) else [wanted]
                listed = ", ".join(str(each) for each in numbers[:_RELATIVES] if isinstance(each, int))
                parents += self._relatives(name, stage, f"_row IN ({listed})") if listed else []
            elif self._find(name).current()[0].dataset.parent_stage == dataset.stage_name and "_row" in row:
                kind = self._find(name).current()[0].kinds.get("_parent")
                where = f"_parent = {row['_row']}" if kind == "number" else f"list_contains(_parent, {row['_row']})"
                children += self._relatives(name, stage, where)
        return {**(found or {}), "parents": parents, "children": children}

    def _relatives(self, name: str, stage: str, where: str) -> list[dict[str, Any]]:
        """Rows of another stage, as links."""
        search = self._find(name).search(Query(where=where))
        search.wait(_RELATIVES, _WAIT)
        numbers = search.numbers(0, _RELATIVES)
        return [{"dataset": name, "number": each, "label": f"{stage} {each:,}"} for each in numbers]

    def _cell(self, request: Request) -> Response:
        """A whole value: a picture if it is one, else text."""
        opened = self._find(request.path_params["name"])
        table, _ = opened.current()
        number, column = _whole(request.query_params.get("number"), 0), request.query_params.get("column", "")
        if column not in table.kinds or number >= table.total:
            raise LookupError("there is no such cell")
        value = table.cell(number, column)
        if table.kinds[column] == "image" and isinstance(value, str) and value.startswith(f"{PRIVATE}/images/"):
            if ".." in value.split("/"):
                raise LookupError("there is no such picture")
            value = read_file(opened.directory, value, limit=_PICTURE)
        if isinstance(value, bytes):
            known = media_type_of(value)
            is_picture = known != "image/png" or value.startswith(b"\x89PNG")
            return Response(value, media_type=known if is_picture else "application/octet-stream")
        return PlainTextResponse("" if value is None else value)

    def _graph(self, request: Request) -> Any:
        opened = self._find(request.path_params["name"])
        table, described = opened.current()
        return {"drawing": reading.graph(opened.directory, table.dataset, described), "rows": table.rows}

    async def _statistics(self, request: Request) -> Response:
        try:
            opened = self._find(request.path_params["name"])
        except LookupError as error:
            return JSONResponse({"error": str(error.args[0])}, status_code=404)
        async with self._counting:
            signature, found = await run_in_threadpool(opened.statistics)
            if found is None:
                try:
                    found = await _run_statistics(opened.directory, opened.stage)
                except (SeedbedError, ValueError) as error:
                    return JSONResponse({"error": str(error)}, status_code=422)
                opened.remember(signature, found)
        return JSONResponse(found)

    async def _run(self, request: Request) -> Response:
        """The snapshots of a run as server-sent events: all that there are, then each new one."""
        try:
            opened = self._find(request.path_params["name"])
        except LookupError as error:
            return JSONResponse({"error": str(error.args[0])}, status_code=404)
        run = _whole(request.query_params.get("run"), 0)
        return StreamingResponse(self._events(opened, run), media_type="text/event-stream")

    async def _events(self, opened: Opened, run: int) -> AsyncIterator[bytes]:
        directory = opened.directory
        loop = asyncio.get_running_loop()
        sent, shown, last, due = 0.0, -1, b"", 0.0
        state: dict[str, Any] = {}
        while not self.stopping.is_set():
            runs = await run_in_threadpool(history_runs, directory)
            number = run or (runs[-1] if runs else 0)
            if number != shown:
                sent, shown = 0.0, number
            lines = await run_in_threadpool(reading.run_lines, directory, number) if number else []
            # The log is written anew now and then, with fewer lines; what counts is the time of each.
            fresh = [line for line in lines[1:] if line.get("t", -1.0) > sent or "report" in line]
            now = loop.time()
            if now >= due:
                state = await run_in_threadpool(lambda: reading.state(opened.folder))
                # A manifest of thousands of row groups takes a while to read.
                due = loop.time() + 10 * (loop.time() - now)
            message: dict[str, Any] = {"run": number, "runs": runs, **state}
            if not sent:
                message["header"] = lines[0] if lines else None
            points = [line for line in fresh if "t" in line]
            message["points"] = points
            sent = points[-1]["t"] if points else sent
            if reports := [line["report"] for line in fresh if "report" in line]:
                message["report"] = reports[-1]
            data = json.dumps(message).encode()
            if data != last:
                yield b"data: " + data + b"\n\n"
                last = data
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), _POLL)

    def _match(self, request: Request) -> Any:
        """Rows of two datasets with the same number, side by side."""
        given = request.query_params
        tables = [self._find(given.get(side, "")).current()[0] for side in ("a", "b")]
        offset, limit = _whole(given.get("offset"), 0), min(_PAGE, _whole(given.get("limit"), 20))
        numbers = list(range(offset, min(*(table.rows for table in tables), offset + limit)))
        return {
            "total": min(table.rows for table in tables),
            "numbers": numbers,
            "columns": [list(table.kinds) for table in tables],
            "rows": [table.page(numbers) for table in tables],
        }


async def _run_statistics(directory: Path, stage: str) -> dict[str, Any]:
    """Compute statistics in a process of their own: its memory is free afterwards, and a hostile file ends only it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "seedbed.view", STATISTICS, str(directory), stage, stdout=PIPE, stderr=PIPE
    )
    try:
        out, problem = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = problem.decode(errors="replace").strip().splitlines()
        raise QueryError(f"the statistics failed: {lines[-1] if lines else f'status {process.returncode}'}")
    found: dict[str, Any] = json.loads(out)
    return found


def _query(request: Request) -> Query:
    given = request.query_params
    return Query(
        where=given.get("where", "").strip(),
        text=given.get("text", ""),
        sort=given.get("sort", ""),
        descending=given.get("descending") == "1",
    )


def _whole(text: str | None, default: int) -> int:
    """A number of a URL that is not negative."""
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        raise QueryError(f"{text[:20]!r} is not a row number")
    return int(text)


def _value(cell: Any) -> Any:
    """A cell as a template sees it."""
    if not isinstance(cell, dict):
        return cell
    if "json" in cell and not cell.get("cut"):
        with suppress(ValueError):
            return json.loads(cell["json"])
    return cell.get("cut") if isinstance(cell.get("cut"), str) else None
