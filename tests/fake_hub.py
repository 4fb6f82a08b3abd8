"""A repository of the Hugging Face Hub on this machine, for its real client to download from."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "org/tiny"


@dataclass(frozen=True)
class FakeHub:
    """url: of the server. The repository `NAME` has the revisions `main` and `COMMIT`."""

    url: str


@contextmanager
def fake_hub(folder: Path, patch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
    """Serves the files of a folder as the repository `NAME`, to the client of this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(folder))
    url = f"http://127.0.0.1:{server.server_port}"
    patch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield FakeHub(url)
    finally:
        server.shutdown()
        server.server_close()


def _handler(folder: Path) -> type[BaseHTTPRequestHandler]:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(with_body=True)

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def answer(self, with_body: bool) -> None:
            path = urlsplit(self.path).path
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
            code = "RevisionNotFound" if f"/{NAME}/" in path else "RepoNotFound"
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

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
