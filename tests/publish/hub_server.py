"""A server on loopback that answers the requests of a push as the Hugging Face hub does, and keeps what it was sent.

The hub itself cannot run here. Files below `REGULAR` bytes travel inside the commit, others by LFS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

REGULAR = 4_000


@attrs.define(eq=False)
class Hub:
    """What the hub has: the files of each branch, blobs by hash, and what was asked of it."""

    url: str = ""
    token: str = "hf_secret"
    files: dict[str, dict[str, bytes]] = attrs.field(factory=lambda: {"main": {}})
    blobs: dict[str, bytes] = attrs.field(factory=dict)
    asked: list[str] = attrs.field(factory=list)
    uploads_fail: bool = False


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Serve an empty hub."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing."""

        def answer(self, value: Any, status: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            hub.asked.append(f"{self.command} {path}")
            if path.startswith("/blobs/"):
                if hub.uploads_fail:
                    self.answer({"error": "no more room"}, 403)
                    return
                hub.blobs[hashlib.sha256(body).hexdigest()] = body
                self.answer({})
            elif self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.answer({"error": "Invalid credentials"}, 401)
            else:
                self.answer(*respond(hub, self.command, path, body))

        do_GET = do_POST = do_PUT = do_HEAD = handle_request  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def respond(hub: Hub, method: str, path: str, body: bytes) -> tuple[Any, int]:
    """The answer to a request of someone who is known."""
    if path == "/api/repos/create":
        made = json.loads(body)
        return {"url": f"{hub.url}/datasets/{made.get('organization')}/{made['name']}", "id": "1"}, 200
    if path == "/api/validate-yaml":
        return {"errors": [], "warnings": []}, 200
    if "/branch/" in path:
        hub.files.setdefault(path.rpartition("/branch/")[2], dict(hub.files["main"]))
        return {}, 200
    if "/tree/" in path:
        branch = path.rpartition("/tree/")[2]
        return [
            {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
            for name, data in hub.files[branch].items()
        ], 200
    if "/preupload/" in path:
        wanted = json.loads(body)["files"]
        return {
            "files": [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["size"] > REGULAR else "regular",
                    "shouldIgnore": False,
                }
                for each in wanted
            ]
        }, 200
    if path.endswith("/info/lfs/objects/batch"):
        objects = [
            each
            if each["oid"] in hub.blobs
            else {**each, "actions": {"upload": {"href": f"{hub.url}/blobs/{each['oid']}"}}}
            for each in json.loads(body)["objects"]
        ]
        return {"transfer": "basic", "objects": objects}, 200
    if "/commit/" in path:
        branch = path.rpartition("/commit/")[2]
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                hub.files[branch][value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                hub.files[branch][value["path"]] = hub.blobs[value["oid"]]
            elif operation["key"] == "deletedFile":
                del hub.files[branch][value["path"]]
        return {
            "commitUrl": f"{hub.url}/datasets/org/name/commit/{'1' * 40}",
            "commitOid": "1" * 40,
            "pullRequestUrl": None,
        }, 200
    if path.startswith("/api/datasets/"):
        names = hub.files["main"]
        return {
            "id": path.removeprefix("/api/datasets/").partition("/revision/")[0],
            "sha": "1" * 40,
            "private": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": [{"rfilename": name} for name in names],
        }, 200
    return {"error": f"{method} {path} is unknown here"}, 404
