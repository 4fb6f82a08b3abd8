"""`python -m tests.fuzz_bodies LIMIT [CORPUS]`: coverage-guided fuzzing of request bodies.

Checks for /predict, /triage (also with a FHIR answer) and /v2 that every response has a documented
status, and that every problem is a complete problem document, or the error of the protocol.
LIMIT: seconds, or `--runs=N` for a number of inputs. CORPUS: a folder to read inputs from and to
store new ones in; by default a temporary one.
"""

import asyncio
import json
import logging
import sys
import tempfile
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import atheris
import numpy as np
from PIL import Image
from pydicom.encaps import encapsulate

with atheris.instrument_imports(include=["service", "eulerlora", "python_multipart", "imagesize"]):
    from eulerlora.checkpoint.files import save_checkpoint
    from eulerlora.model import EulerLoRA
    from eulerlora_client.contract.answers import ClassName
    from service import app as service_app
    from service.decoding.pool import Decoder
    from service.decoding.worker import DecodedInput, DecodeFailure, DecodeJob, run_job
    from service.inference.engine import ServedModel, ServedModels
    from service.lifecycle.phase import Lifecycle
    from service.settings import ImageSettings, ServiceSettings

from tests.conftest import config_of, random_network
from tests.service.decoding.test_dicom import JPEG as JPEG_BASELINE
from tests.service.decoding.test_dicom import dicom_file

STATUSES = {200, 400, 408, 413, 415, 422, 503}
PROBLEM_KEYS = {"type", "title", "status", "detail", "code", "request_id"}
CLASSES = ("nv", "mel", "bcc", "akiec")
MAX_INPUT_BYTES = 20_000
BOUNDARY = b"frontier"
INFER = "/v2/models/tiny/infer"
PATHS = ("/predict", "/triage", INFER)
LIMITS = ImageSettings(dicom=True)
MULTIPART = b"multipart/form-data; boundary=" + BOUNDARY
OPENING = (
    b"--" + BOUNDARY + b'\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
)
CLOSING = b"\r\n--" + BOUNDARY + b"--\r\n"
CONTENT_TYPES = (
    MULTIPART, MULTIPART, b"image/jpeg", b"image/png", b"image/webp", b"application/json",
    b"application/dicom", b"application/octet-stream",
    b"application/x-www-form-urlencoded", b"multipart/form-data", b"",
)  # fmt: skip


@dataclass
class Exchange:
    """A request made from fuzzer input, and its response.

    The first byte selects path and content type; the second selects the size of the pieces, if
    odd, a declared length, and with bit 2 the answer as FHIR or the length of a JSON object before
    binary data, up to the first line feed. The rest is the body, framed as multipart for the first
    content type.
    """

    data: bytes
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""

    def __post_init__(self) -> None:
        (path_index, type_index), size = divmod(self.data[0], len(CONTENT_TYPES)), self.data[1]
        self.path = path = PATHS[path_index % len(PATHS)]
        body = self.data[2:] if type_index else OPENING + self.data[2:] + CLOSING
        step = 8 * size + 1
        self._pieces = [body[at : at + step] for at in range(0, len(body), step)] or [b""]
        length = (b"content-length", b"%d" % len(body))
        header_bytes = b"%d" % (body.find(b"\n") + 1)
        accept = b"application/fhir+json" if size & 2 else b"*/*"
        self.scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [
                (b"content-type", CONTENT_TYPES[type_index]),
                length if size % 2 else (b"transfer-encoding", b"chunked"),
                (b"accept", accept),
                *([(b"inference-header-content-length", header_bytes)] if size & 2 else ()),
            ],
        }  # fmt: skip

    async def receive(self) -> dict[str, object]:
        if not self._pieces:
            await asyncio.Future()  # the client stays connected
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
        else:
            self.body += message.get("body", b"")

    def check(self) -> None:
        """Raises AssertionError for an undocumented response."""
        assert self.status in STATUSES, (self.status, self.body)
        json_bytes = self.headers.get(b"inference-header-content-length", b"%d" % len(self.body))
        document = json.loads(self.body[: int(json_bytes)])
        if self.status != 200 and self.path == INFER:
            assert set(document) == {"error"}, document
        elif self.status != 200:
            assert self.headers[b"content-type"] == b"application/problem+json", self.headers
            assert set(document) == PROBLEM_KEYS, document
            assert document["status"] == self.status, document


class InProcessDecoder(Decoder):
    """Decodes in this process, so that the fuzzer measures the coverage of the decoder."""

    async def start(self) -> None:
        pass

    async def decode(
        self, job: DecodeJob, on_cpu_s: Callable[[float], None] = lambda _: None
    ) -> DecodedInput:
        done = run_job(job, LIMITS)
        if isinstance(done, DecodeFailure):
            raise done.error
        return done


def tiny_model() -> EulerLoRA:
    """Returns a tiny model with the classes of the triage policy."""
    network = random_network(classes=len(CLASSES))
    names = tuple(ClassName(name=name, description=name) for name in CLASSES)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "tiny"
        save_checkpoint(checkpoint, network, config_of(network, classes=names), "# tiny\n")
        return EulerLoRA.load(checkpoint, "cpu")


def seeds() -> Iterator[bytes]:
    """Yields initial inputs: every format, raw and multipart, complete and truncated."""
    coarse = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((40, 32))
    for mode, file_format, content_type in (
        ("RGB", "JPEG", 2), ("CMYK", "JPEG", 2), ("L", "PNG", 3), ("P", "PNG", 3),
        ("LA", "PNG", 3), ("RGBA", "PNG", 3), ("RGB", "WEBP", 4), ("RGBA", "WEBP", 4),
    ):  # fmt: skip
        file = BytesIO()
        image.convert(mode).save(file, file_format)
        content = file.getvalue()
        for first in (0, content_type, content_type + len(CONTENT_TYPES)):
            yield bytes([first, 255]) + content
            yield bytes([first, 6]) + content[: len(content) // 2]
    yield bytes([1, 3]) + OPENING + b"x" + CLOSING
    yield bytes([1, 0]) + OPENING + b"x" + CLOSING.replace(b"--\r\n", b"\r\n") + OPENING
    yield bytes([1, 1]) + OPENING.replace(b"filename", b"name")
    yield bytes([5, 1]) + b"{}"
    yield from protocol_seeds(image)


def protocol_seeds(image: Image.Image) -> Iterator[bytes]:
    """Yields DICOM files for /predict and /triage, and requests in JSON and with binary data."""
    dicom, infer = CONTENT_TYPES.index(b"application/dicom"), 2 * len(CONTENT_TYPES)
    rows = {"Rows": 32, "Columns": 40}
    jpeg = BytesIO()
    image.save(jpeg, "JPEG")
    ybr = {**rows, "PhotometricInterpretation": "YBR_FULL_422"}
    for content in (
        dicom_file(image.tobytes(), **rows),
        dicom_file(encapsulate([jpeg.getvalue()]), JPEG_BASELINE, **ybr),
    ):
        yield bytes([dicom, 255]) + content
        yield bytes([dicom + len(CONTENT_TYPES), 3]) + content
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES"}
    text = {**tensor, "data": [b64encode(jpeg.getvalue()).decode()]}
    parameters = {"mode": "stoch", "samples": 2, "seed": 1, "binary_data_output": True}
    yield bytes([infer + 5, 1]) + json.dumps({"inputs": [text], "parameters": parameters}).encode()
    binary = len(jpeg.getvalue()).to_bytes(4, "little") + jpeg.getvalue()
    sized = {**tensor, "parameters": {"binary_data_size": len(binary)}}
    outputs = [{"name": "label", "parameters": {"binary_data": True}}]
    message = json.dumps({"inputs": [sized], "outputs": outputs}).encode() + b"\n"
    yield bytes([infer + 5, 255]) + message + binary


def main() -> None:
    """Runs libFuzzer, which ends the process with status 0 if it finds no failure."""
    limit, *folders = sys.argv[1:]
    option = limit[1:] if limit.startswith("--runs=") else f"-max_total_time={int(limit)}"
    corpus = Path(folders[0] if folders else tempfile.mkdtemp(prefix="fuzz-bodies-"))
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number:02}").write_bytes(seed)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    service_app.Decoder = InProcessDecoder  # type: ignore[misc]
    models = ServedModels([ServedModel(tiny_model())])
    settings = ServiceSettings(images=LIMITS)
    app = service_app.create_service(models, settings, Lifecycle()).application
    loop = asyncio.new_event_loop()
    lifespan = app.router.lifespan_context(app)
    loop.run_until_complete(lifespan.__aenter__())  # never exited: libFuzzer does not return

    def test_one_input(data: bytes) -> None:
        if len(data) >= 2:
            exchange = Exchange(data)
            loop.run_until_complete(app(exchange.scope, exchange.receive, exchange.send))
            exchange.check()

    atheris.Setup(
        [sys.argv[0], option, f"-max_len={MAX_INPUT_BYTES}",
         "-timeout=20", "-rss_limit_mb=4096", f"-artifact_prefix={corpus}/", str(corpus)],
        test_one_input,
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    main()
