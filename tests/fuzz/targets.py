"""What is fuzzed of the core: every reader of input from outside, with valid files to begin with.

A reader raises nothing but the errors of the product that its docstring names.
"""

import asyncio
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request
from starlette.testclient import TestClient
from uvicorn.server import ServerState

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import load_checkpoint, save_checkpoint
from eulerlora.checkpoint.weights import load_backbone, save_backbone
from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import CheckpointError, DataError, SettingsError
from eulerlora_contract.problems import Problem
from service.auth.keys import Keys
from service.decoding.decode import decode
from service.decoding.formats import Declared
from service.decoding.messages import DecodeJob, Failure
from service.decoding.worker import run_job
from service.http.protocol import protocol_of
from service.http.requests import read_file, read_files
from service.http.responses import add_problem_handlers
from service.http.server import server_config
from tests.conftest import MARGINS, THRESHOLDS, config_of, random_backbone, random_network
from tests.fuzz.bodies import CLOSING, IMAGES, OPENING, PROTOCOLS, Body, Draw, encoded, jpeg
from tests.fuzz.fuzzer import Target
from tests.service.conftest import PROBLEM_KEYS, app_of, png_chunk
from tests.service.decoding.frames import HEADER
from tests.service.http.plain_app import guarded
from tests.service.settings import settings_of
from training.data.cache import DecodedImages
from training.data.dataset import DataSettings
from training.data.label_splits import split_labels
from training.recipe.file import RECIPES, recipe_with_sources
from training.recipe.schema import AdapterRecipe


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp())


def file(content: bytes, name: str = "input") -> Path:
    path = folder() / name
    path.write_bytes(content)
    return path


SMALL = {"min_side": 1, "max_pixels": 200_000, "max_jpeg_pixels": 200_000}
LIMITS = settings_of("images", **SMALL)


def image(content: bytes) -> None:
    """Decodes a file; the checksums of a PNG are made right, which no mutation would."""
    decode(with_checksums(content), LIMITS, input_side=32)


def images() -> list[bytes]:
    unusual = sorted((Path(__file__).parents[1] / "eulerlora/images").glob("sampling-*.jpg"))
    plain = [encoded(kind, mode) for mode, kind in IMAGES]
    return [*plain, *(path.read_bytes() for path in unusual)]


SIGNATURE = b"\x89PNG\r\n\x1a\n"


def with_checksums(content: bytes) -> bytes:
    if not content.startswith(SIGNATURE):
        return content
    chunks, at = [SIGNATURE], len(SIGNATURE)
    while at < len(content):
        end = at + 8 + int.from_bytes(content[at : at + 4])
        chunks.append(png_chunk(content[at + 4 : at + 8], content[at + 8 : end]))
        at = end + 4
    return b"".join(chunks)


JOB = DecodeJob(jpeg(), Declared(), Preprocessing(size=8), "r", with_quality=True)


def decoder_message(content: bytes) -> None:
    """Reads a header, and a message whose header and length are right: a JSON line and pixels."""
    if len(content) >= HEADER.size:
        with suppress(ValueError):
            JOB.result_bytes(content[: HEADER.size])
    fields, _, pixels = content.partition(b"\n")
    pixels = pixels and pixels.ljust(JOB.pixel_bytes, b"\0")[: JOB.pixel_bytes]
    header = HEADER.pack(len(fields), len(pixels))
    JOB.result(memoryview(header + fields + pixels))


def decoder_messages() -> list[bytes]:
    results = (run_job(JOB, settings_of("images")), Failure(kind="unusable_image"))
    sent_ones = (result.message() for result in results)
    messages = [(HEADER.unpack_from(sent)[0], sent) for sent in sent_ones]
    return [
        sent[HEADER.size :][:length] + b"\n" + sent[HEADER.size + length :]
        for length, sent in messages
    ]


def upload(content: bytes) -> None:
    """Reads the files of a form: the first line is its content type, all others are the body."""
    content_type, _, body = content.partition(b"\n")
    pieces = [body[at : at + 100] for at in range(0, len(body), 100)] or [b""]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    headers = [(b"content-type", content_type), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "method": "POST", "headers": headers}
    request = Request(scope, receive)
    asyncio.run(read_file(request) if len(body) % 2 else read_files(request, 4))


def uploads() -> list[bytes]:
    form = OPENING + b"content" + CLOSING
    extended = form.replace(b'filename="a"', b"filename*=UTF-8''%e2%82%ac.png")
    form_type = b"multipart/form-data; boundary=frontier\n"
    two = OPENING.replace(b'"file"', b'"files"') + b"1" + OPENING + b"2" + CLOSING
    return [form_type + body for body in (form, extended, two)] + [b"image/png\n" + encoded("PNG")]


class Wire(asyncio.Transport):
    """The client's end of a connection; it keeps what the service sends."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1), "sockname": ("192.0.2.2", 80)})
        self.sent = b""
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.sent += data

    def write_eof(self) -> None: ...

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


STATUS_LINE = re.compile(rb"^HTTP/1\.1 (\d{3}) ", re.MULTILINE)
FIELDS = b"Host: a\r\nX-Request-ID: 7\r\n"
REQUESTS = (
    b"GET /?a=%20 HTTP/1.1\r\n" + FIELDS + b"\r\n",
    b"GET http://a/ HTTP/1.1\r\n" + FIELDS + b"Connection: close\r\n\r\n",
    b"POST / HTTP/1.1\r\n" + FIELDS + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\nabcde",
    b"POST / HTTP/1.1\r\n" + FIELDS + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    b"HEAD / HTTP/1.1\r\n" + FIELDS + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
)


@cache
def connections() -> tuple[asyncio.AbstractEventLoop, Callable[[], Any], list[dict[str, Any]]]:
    """An event loop, a factory of connections to an application, and its errors."""
    app = FastAPI(redirect_slashes=False)
    add_problem_handlers(app)

    @app.api_route("/", methods=["GET", "POST"])
    async def length(request: Request) -> int:
        return len(await request.body())

    loop, errors = asyncio.new_event_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    kind = protocol_of(settings_of("connections"))
    config = server_config(guarded(app), kind)
    config.load()
    return loop, lambda: kind(config, ServerState(), {}, loop), errors


def connection(content: bytes) -> None:
    """Sends bytes in two pieces over a connection; every answer has a documented status."""
    loop, connect, errors = connections()
    asyncio.set_event_loop(loop)
    protocol, wire = connect(), Wire()

    async def exchange() -> None:
        protocol.connection_made(wire)
        for piece in (content[: len(content) // 2], content[len(content) // 2 :]):
            if piece and not wire.is_closing():
                protocol.data_received(piece)
            for _ in range(20):
                await asyncio.sleep(0)
        protocol.connection_lost(None)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    loop.run_until_complete(exchange())
    assert not errors, errors
    statuses = {int(status) for status in STATUS_LINE.findall(wire.sent)}
    assert statuses <= {100, 200, 400, 404, 405, 413, 431}, statuses


@cache
def checkpoint() -> Path:
    path = folder() / "checkpoint"
    network = random_network()
    save_checkpoint(path, network, config_of(network, thresholds=THRESHOLDS, margins=MARGINS), "")
    return path


def checkpoint_file(name: str, runs: int) -> Target:
    """The reader of a checkpoint in which one file is replaced."""

    def read(content: bytes) -> None:
        (checkpoint() / name).write_bytes(content)
        load_checkpoint(checkpoint())

    return Target(read, (CheckpointError,), lambda: [(checkpoint() / name).read_bytes()], runs)


def backbones() -> list[bytes]:
    path = folder() / "backbone.safetensors"
    save_backbone(path, random_backbone(), {"recipe": "random"}, torch.bfloat16)
    return [path.read_bytes()]


def recipes() -> list[bytes]:
    shutil.copytree(RECIPES, folder(), dirs_exist_ok=True)  # recipes that are bases
    return [path.read_bytes() for path in sorted(RECIPES.glob("*.toml"))]


IMAGE_NAMES = [f"{label}/{number}.png" for label in "ab" for number in range(10)]
DECODED = DecodedImages(
    {}, dict.fromkeys(IMAGE_NAMES, ""), {name: at for at, name in enumerate(IMAGE_NAMES)}
)


def labels(content: bytes) -> None:
    split_labels(DataSettings(kind="imagefolder"), file(content, "labels.csv").parent, DECODED)


def tables() -> list[bytes]:
    plain = ["path,label"] + [f"{name},{name[0]}" for name in IMAGE_NAMES]
    parts = ("train", "val", "test")
    whole = ["path;label;group;split"] + [
        f"{name};{name[0]};{name[2:]};{parts[at % 3]}" for at, name in enumerate(IMAGE_NAMES)
    ]
    return ["\n".join(lines).encode() for lines in (plain, whole)]


KEYS = b"".join(
    b'{"client": "%s", "keys": [{"sha256": "%s", "created": "2026-01-01T00:00:00Z"}]}\n'
    % (name, name * 64)
    for name in (b"a", b"b")
)


@cache
def service() -> TestClient:
    limits = {"decoding": {"client_s_per_minute": 10_000}}
    return TestClient(app_of(EulerLoRA.load(checkpoint(), "cpu"), **limits)).__enter__()


def service_body(content: bytes) -> None:
    """Posts a malformed body; its answer is a documented one."""
    draw = Draw(content)
    body = PROTOCOLS[draw.choice([*PROTOCOLS])](draw)
    check_answer(service(), body)


def check_answer(client: TestClient, body: Body) -> None:
    """Posts a body, and checks that its answer is a documented one."""
    path = "/v2/models/tiny/infer" if body.path == "/infer" else body.path
    response = client.post(path, content=body.content, headers=body.headers)
    assert response.status_code in (200, 400, 413, 415, 422), (body, response.text)
    if response.status_code != 200:
        expected = {"error"} if path.endswith("/infer") else PROBLEM_KEYS
        assert set(response.json()) == expected, body


TARGETS = {
    "connection": Target(connection, (), lambda: REQUESTS, 1000),
    "upload": Target(upload, (Problem,), uploads, 1000),
    "image": Target(
        image, (Problem,), images, 5000
    ),
    "decoder-message": Target(decoder_message, (ValueError,), decoder_messages, 10_000),
    "service-body": Target(service_body, (), lambda: [bytes(range(256))], 200),
    "keys": Target(
        lambda content: Keys(file(content)), (SettingsError,), lambda: [KEYS], 5000
    ),
    "recipe": Target(
        lambda content: recipe_with_sources(file(content), AdapterRecipe),
        (SettingsError,),
        recipes,
        800,
    ),
    "labels": Target(labels, (DataError,), tables, 2000),
    "config": checkpoint_file("config.json", 2000),
    "adapters": checkpoint_file("adapters.safetensors", 200),
    "backbone": Target(
        lambda content: load_backbone(file(content)), (CheckpointError,), backbones, 3000
    ),
}  # fmt: skip
