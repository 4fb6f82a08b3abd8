"""`python -m tests.fuzz_bodies SECONDS [CORPUS]`: hostile bodies, found by coverage.

For /predict and /triage: whatever the bytes, the answer has a documented status and a problem is a
whole problem document.
CORPUS: a folder that inputs are read from and new ones kept in; a temporary one if left out.
"""

import asyncio
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import atheris
import numpy as np
import torch
from PIL import Image

with atheris.instrument_imports(include=["service", "eulerlora", "python_multipart", "imagesize"]):
    from eulerlora.checkpoint import save_checkpoint
    from eulerlora.config import ClassName
    from eulerlora.model import EulerLoRA
    from service import app as service_app
    from service.decoding.decode import Declared
    from service.decoding.pool import Decoded, Decoder
    from service.decoding.worker import Job, perform
    from service.inference.models import ServedModel, ServedModels
    from service.lifecycle.phase import Lifecycle
    from service.settings import ImageLimits, ServiceSettings

from tests.conftest import config_of, random_network

STATUSES = {200, 400, 408, 413, 415, 422, 503}
PROBLEM_KEYS = {"type", "title", "status", "detail", "code", "request_id"}
CLASSES = ("nv", "mel", "bcc", "akiec")
MAX_INPUT_BYTES = 20_000
BOUNDARY = b"frontier"
PATHS = ("/predict", "/triage")
MULTIPART = b"multipart/form-data; boundary=" + BOUNDARY
OPENING = (
    b"--" + BOUNDARY + b'\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
)
CLOSING = b"\r\n--" + BOUNDARY + b"--\r\n"
CONTENT_TYPES = (
    MULTIPART, MULTIPART, b"image/jpeg", b"image/png", b"image/webp", b"application/json",
    b"application/x-www-form-urlencoded", b"multipart/form-data", b"",
)  # fmt: skip


@dataclass
class Exchange:
    """A request as its bytes arrive, and the answer as it is sent.

    The first two of the input's bytes choose the content type with the path and the size of the
    pieces, of which an odd one is declared in advance; the rest is the body, for the first type in
    a sound frame.
    """

    data: bytes
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""

    def __post_init__(self) -> None:
        (asked, kind), size = divmod(self.data[0], len(CONTENT_TYPES)), self.data[1]
        path = PATHS[asked % len(PATHS)]
        body = self.data[2:] if kind else OPENING + self.data[2:] + CLOSING
        step = 8 * size + 1
        self._pieces = [body[at : at + step] for at in range(0, len(body), step)] or [b""]
        length = (b"content-length", b"%d" % len(body))
        self.scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [
                (b"content-type", CONTENT_TYPES[kind]),
                length if size % 2 else (b"transfer-encoding", b"chunked"),
            ],
        }  # fmt: skip

    async def receive(self) -> dict[str, object]:
        if not self._pieces:
            await asyncio.Future()  # this client stays to the end
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
        else:
            self.body += message.get("body", b"")

    def check(self) -> None:
        """Fails unless the answer is one that the service may give."""
        assert self.status in STATUSES, (self.status, self.body)
        answer = json.loads(self.body)
        if self.status != 200:
            assert self.headers[b"content-type"] == b"application/problem+json", self.headers
            assert set(answer) == PROBLEM_KEYS, answer
            assert answer["status"] == self.status, answer


class DecoderHere(Decoder):
    """Decodes in this process, where the fuzzer sees which lines an input reaches."""

    def start(self) -> None:
        pass

    async def decode(
        self, content: bytes, declared: Declared, size: int, revision: str, measured: bool = False
    ) -> Decoded:
        done = perform(Job(content, declared, size, revision, measured), ImageLimits())
        if isinstance(done, Exception):
            raise done
        pixels = torch.from_numpy(done.pixels)
        return Decoded(pixels, done.content_seed, done.warnings, done.decode_s, done.quality)


def tiny_model() -> EulerLoRA:
    """A model that answers in no time, with the classes that the policy speaks of."""
    network = random_network(classes=len(CLASSES))
    names = tuple(ClassName(name=name, description=name) for name in CLASSES)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "tiny"
        save_checkpoint(checkpoint, network, config_of(network, classes=names), "# tiny\n")
        return EulerLoRA.load(checkpoint, "cpu")


def seeds() -> Iterator[bytes]:
    """Inputs to begin with: each format in each frame, whole and cut, and some broken forms."""
    coarse = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((40, 32))
    for mode, file_format, content_type in (
        ("RGB", "JPEG", 2), ("CMYK", "JPEG", 2), ("L", "PNG", 3), ("P", "PNG", 3),
        ("LA", "PNG", 3), ("RGBA", "PNG", 3), ("RGB", "WEBP", 4), ("RGBA", "WEBP", 4),
    ):  # fmt: skip
        file = BytesIO()
        picture.convert(mode).save(file, file_format)
        content = file.getvalue()
        for kind in (0, content_type, content_type + len(CONTENT_TYPES)):
            yield bytes([kind, 255]) + content
            yield bytes([kind, 6]) + content[: len(content) // 2]
    yield bytes([1, 3]) + OPENING + b"x" + CLOSING
    yield bytes([1, 0]) + OPENING + b"x" + CLOSING.replace(b"--\r\n", b"\r\n") + OPENING
    yield bytes([1, 1]) + OPENING.replace(b"filename", b"name")
    yield bytes([5, 1]) + b"{}"


def main() -> None:
    """Fuzzes for so many seconds; libFuzzer ends the process, with 0 where nothing was found."""
    seconds, *folders = sys.argv[1:]
    corpus = Path(folders[0] if folders else tempfile.mkdtemp(prefix="fuzz-bodies-"))
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number:02}").write_bytes(seed)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    service_app.Decoder = DecoderHere  # type: ignore[misc]
    models = ServedModels([ServedModel.of(tiny_model())])
    app = service_app.create_service(models, ServiceSettings(), Lifecycle()).application
    loop = asyncio.new_event_loop()
    lifespan = app.router.lifespan_context(app)
    loop.run_until_complete(lifespan.__aenter__())  # for good: libFuzzer never returns

    def test_one_input(data: bytes) -> None:
        if len(data) >= 2:
            exchange = Exchange(data)
            loop.run_until_complete(app(exchange.scope, exchange.receive, exchange.send))
            exchange.check()

    atheris.Setup(
        [sys.argv[0], f"-max_total_time={int(seconds)}", f"-max_len={MAX_INPUT_BYTES}",
         "-timeout=20", "-rss_limit_mb=4096", f"-artifact_prefix={corpus}/", str(corpus)],
        test_one_input,
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    main()
