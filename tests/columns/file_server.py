"""An HTTP server of files on loopback, with or without range requests and lengths."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Ignore clients that close the connection early."""


@contextmanager
def serve_files(
    files: Mapping[str, bytes], *, ranges: bool = True, length: bool = True
) -> Iterator[tuple[str, list[str]]]:
    """Serve these files; yields the URL and a growing list of the requested paths.

    Without `ranges` a file is only sent as a whole, and without `length` its size is not sent.
    """
    requested: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            requested.append(self.path)
            data = files.get(self.path.partition("?")[0])
            if data is None:
                self.send_error(404)
                return
            wanted = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("range", "")) if ranges else None
            sent = data if wanted is None else data[int(wanted[1]) : int(wanted[2]) + 1]
            self.send_response(200 if wanted is None else 206)
            if wanted is not None:
                first = int(wanted[1])
                self.send_header("Content-Range", f"bytes {first}-{first + len(sent) - 1}/{len(data)}")
            if length:
                self.send_header("Content-Length", str(len(sent)))
            else:
                self.close_connection = True
            self.end_headers()
            if with_body:
                self.wfile.write(sent)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with _Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requested
        finally:
            server.shutdown()
            thread.join()
