"""Fixtures of the service's tests: images in several encodings, and running services."""

import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image
from starlette.testclient import TestClient

from eulerlora import EulerLoRA
from service.app import create_app
from service.auth.keys import Keys
from service.extensions import Extension
from service.inference.engine import ServedModel, ServedModels
from service.lifecycle.lifecycle import Lifecycle
from service.lifecycle.loading import CheckedModel
from service.settings import ServiceSettings
from tests.service.key_files import client as client_with
from tests.service.key_files import write_keys
from tests.service.real_server import SOCKET_TIMEOUT_S, run_server

PostImage = Callable[..., Any]
Refused = Callable[[Any, int, str], str]

LIVE_BODY_BYTES = 100_000
PROBLEM_KEYS = {"type", "title", "status", "detail", "code", "request_id"}


@pytest.fixture(scope="session", autouse=True)
def current_metrics() -> Iterator[None]:
    """Disables the cache of /metrics, so that a scrape has the requests before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.telemetry.metrics._CACHE_S", 0)
        yield


@pytest.fixture(scope="session")
def photo() -> Image.Image:
    """A smooth random RGB image, 64 x 48, without symmetries."""
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((64, 48), Image.Resampling.BICUBIC)


@pytest.fixture(scope="session")
def png(photo: Image.Image) -> bytes:
    """The photo as a PNG file."""
    return encoded(photo, "PNG")


@pytest.fixture(scope="session")
def bombs(photo: Image.Image) -> dict[str, bytes]:
    """Small files whose headers declare 100 megapixels or more."""
    side = 12_000
    canvas = b"\0\0\0\0" + (side - 1).to_bytes(3, "little") * 2
    lossless = b"\x2f" + struct.pack("<I", (side - 1) | (side - 1) << 14)
    lossy = b"\x30\x01\x00\x9d\x01\x2a" + struct.pack("<HH", side, side)
    rows = zlib.compress(bytes(10_000 * 1251), 9)  # 1 bit per pixel, one filter byte per row
    jpeg = encoded(photo, "JPEG")
    size_at = jpeg.index(b"\xff\xc0") + 5
    return {
        "webp of 144 MP, extended": webp_file(b"VP8X", canvas),
        "webp of 144 MP, lossless": webp_file(b"VP8L", lossless),
        "webp of 144 MP, lossy": webp_file(b"VP8 ", lossy),
        "png of 100 MP": png_file(
            png_header(10_000, 10_000, 1, 0), png_chunk(b"IDAT", rows), png_chunk(b"IEND", b"")
        ),
        "png of 100 MP without pixels": png_file(png_header(10_000, 10_000)),
        "jpeg of 196 MP": jpeg[:size_at] + struct.pack(">HH", 14_000, 14_000) + jpeg[size_at + 4 :],
    }


@pytest.fixture(scope="session")
def model(checkpoint_folder: Path) -> EulerLoRA:
    """The model of the tiny checkpoint."""
    return EulerLoRA.load(checkpoint_folder, "cpu")


@pytest.fixture(scope="session")
def client(model: EulerLoRA) -> Iterator[TestClient]:
    """A client of an app that serves the tiny checkpoint with long timeouts."""
    with TestClient(app_of(model)) as client:
        yield client


@pytest.fixture(scope="session")
def post_image(client: TestClient) -> PostImage:
    """Posts a raw body to /predict: (content, media_type, **parameters) -> response."""

    def post(content: bytes, media_type: str = "image/png", **parameters: object) -> Any:
        return client.post(
            "/predict", params=parameters, content=content, headers={"Content-Type": media_type}
        )

    return post


@pytest.fixture(scope="session")
def refused(post_image: PostImage, png: bytes) -> Refused:
    """Checks a problem response: (response, status, code) -> the problem's detail.

    The problem must be complete, and the next good request must succeed.
    """

    def detail_of(response: Any, status: int, code: str) -> str:
        body = response.json()
        assert (response.status_code, body.get("code")) == (status, code), body
        assert response.headers["Content-Type"] == "application/problem+json"
        assert set(body) == PROBLEM_KEYS
        assert body["status"] == status
        assert body["type"].endswith(code)
        assert body["request_id"] == response.headers["X-Request-ID"]
        assert "Traceback" not in response.text
        assert post_image(png).status_code == 200
        return str(body["detail"])

    return detail_of


@pytest.fixture(scope="session")
def live(model: EulerLoRA) -> Iterator[int]:
    """The loopback port of a real server that accepts bodies of up to 100,000 bytes."""
    with run_server(app_of(model, bodies={"max_bytes": LIVE_BODY_BYTES})) as port:
        yield port


def app_of(
    *models: EulerLoRA | ServedModel,
    keys: Path | None = None,
    hosts: Collection[str] | None = None,
    shadow: ServedModel | None = None,
    extensions: Mapping[str, Extension] | None = None,
    **settings: object,
) -> FastAPI:
    """An app that serves models; its lifespan can run once.

    The time limits are long and one process decodes, unless the settings say otherwise. The
    extensions are those of the installed distributions, unless others are given.
    """
    chosen = ServiceSettings.model_validate(with_long_timeouts(settings))
    served = ServedModels(
        model if isinstance(model, ServedModel) else ServedModel(model) for model in models
    )
    lifecycle = Lifecycle(chosen, extensions=extensions, waits=True)
    if shadow is not None:
        unused: Any = None
        lifecycle.shadow = CheckedModel(unused, unused, shadow)
    lifecycle.serve(served)
    return create_app(lifecycle, chosen, keys=keys and Keys(keys), hosts=hosts)


@pytest.fixture(scope="session")
def keyed(model: EulerLoRA, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """A client without a key of a service that requires `clinic-key`."""
    path = tmp_path_factory.mktemp("keys") / "keys.jsonl"
    keys = write_keys(path, client_with("clinic", "clinic-key"))
    return TestClient(app_of(model, keys=keys))


def with_long_timeouts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with long defaults for all time limits and one decoder."""
    times = {"upload_timeout_s": SOCKET_TIMEOUT_S, "stall_timeout_s": SOCKET_TIMEOUT_S}
    return {"deadline_s": SOCKET_TIMEOUT_S, **settings} | {
        "bodies": times | settings.get("bodies", {}),
        "decoding": {"timeout_s": SOCKET_TIMEOUT_S, "workers": 1} | settings.get("decoding", {}),
    }


def encoded(image: Image.Image, file_format: str, **options: object) -> bytes:
    """An image file as Pillow encodes it."""
    buffer = BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """A PNG chunk (PNG specification, 5.3)."""
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))


def png_header(width: int, height: int, bit_depth: int = 8, colour_type: int = 2) -> bytes:
    """An IHDR chunk; colour type 0 is gray, 2 is RGB."""
    return png_chunk(
        b"IHDR", struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    )


def png_file(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def webp_file(kind: bytes, content: bytes) -> bytes:
    """A WebP file with one chunk, without the padding of an odd size."""
    body = b"WEBP" + kind + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(body)) + body
