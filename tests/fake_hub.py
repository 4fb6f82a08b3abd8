"""A repository of the Hugging Face Hub on this machine, for its real client.

A commit changes the folder that the repository serves, and all its revisions have its files.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "org/tiny"


@dataclass(frozen=True)
class FakeHub:
    """url: of the server. The repository `NAME` has the revisions `main` and `COMMIT`.

    created: the requests for new repositories.
    """

    url: str
    created: list[dict[str, Any]]


@contextmanager
def fake_hub(folder: Path, patch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
    """Serves the files of a folder as the repository `NAME`, to the client of this process."""
    created: list[dict[str, Any]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(folder, created))
    url = f"http://127.0.0.1:{server.server_port}"
    patch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    patch.setattr("huggingface_hub.hf_api.api.endpoint", url)  # kept since the import
    patch.setattr("transformers.utils.hub._hf_api", None)  # the same, since its first use
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield FakeHub(url, created)
    finally:
        server.shutdown()
        server.server_close()


def _handler(folder: Path, created: list[dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(with_body=True)

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def answer(self, with_body: bool) -> None:
            path = urlsplit(self.path).path
            names = sorted(path.name for path in folder.iterdir() if path.is_file())
            for revision in ("main", COMMIT):
                if path == f"/api/models/{NAME}/revision/{revision}":
                    siblings = [{"rfilename": name} for name in names]
                    self.send(json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings}))
                    return
                if path == f"/api/models/{NAME}/tree/{revision}":
                    self.send(json.dumps([_entry(folder / name) for name in names]))
                    return
                name = path.removeprefix(f"/{NAME}/resolve/{revision}/")
                if name in names:
                    self.send((folder / name).read_bytes(), with_body)
                    return
            self.send_response(404)
            if path.startswith(tuple(f"/{NAME}/resolve/{known}/" for known in ("main", COMMIT))):
                code = "EntryNotFound"
            else:
                code = "RevisionNotFound" if f"/{NAME}/" in path else "RepoNotFound"
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            """Answers the requests of `create_repo` and `create_commit`."""
            path = urlsplit(self.path).path
            lines = self.rfile.read(int(self.headers["Content-Length"])).splitlines()
            requests = [json.loads(line) for line in lines]
            answer: dict[str, Any] = {}
            if path == "/api/repos/create":
                created.append(requests[0])
                answer = {"url": f"http://{self.headers['Host']}/{NAME}"}
            elif path == f"/api/models/{NAME}/preupload/main":
                known = {"uploadMode": "regular", "shouldIgnore": False}
                answer = {"files": [known | {"path": f["path"]} for f in requests[0]["files"]]}
            elif path == f"/api/models/{NAME}/commit/main":
                for request in requests:
                    entry = request["value"]
                    if request["key"] == "file":
                        (folder / entry["path"]).write_bytes(base64.b64decode(entry["content"]))
                    elif request["key"] == "deletedFile":
                        (folder / entry["path"]).unlink()
                url = f"http://{self.headers['Host']}/{NAME}/commit/{COMMIT}"
                answer = {"commitUrl": url, "commitOid": COMMIT}
            elif path != "/api/validate-yaml":
                self.send_error(404)
                return
            self.send(json.dumps(answer))

        def send(self, content: bytes | str, with_body: bool = True) -> None:
            data = content.encode() if isinstance(content, str) else content
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if with_body:
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Writes nothing."""

    return Handler


def _entry(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    oid = hashlib.sha1(data, usedforsecurity=False).hexdigest()
    return {"type": "file", "path": path.name, "size": len(data), "oid": oid}
