"""What foreign code can do in a decoder, with and without the restrictions of the kernel."""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.problems import Problem
from service.decoding.fork_server import ForkServer
from service.decoding.formats import Declared
from service.decoding.messages import DecodedInput, DecodeJob, Failure
from service.decoding.pool import DecoderPool
from service.decoding.worker import run_job
from tests.icc_profiles import DISPLAY_P3, rgb_profile
from tests.problems import raises_problem
from tests.service.conftest import encoded
from tests.service.decoding.hostile import ATTACKS
from tests.service.settings import settings_of

SETTINGS = settings_of("decoding", workers=1, timeout_s=120, cpu_s=60, client_s_per_minute=600)
LIMITS = settings_of("images")
FORKS = {name: ForkServer(f"tests.service.decoding.{name}") for name in ("hostile", "unrestricted")}
SECRET = "EULERLORA_SERVE_AUDIT_SECRET"
INPUT = Preprocessing(size=32)


@pytest.fixture(scope="module", autouse=True)
def secret() -> Iterator[None]:
    """A secret in the environment of the service."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET, "the secret")
        yield


class Decoders:
    """A pool of one decoder, and the event loop in which it is used."""

    def __init__(self, limits: Any = LIMITS, **options: Any) -> None:
        self.pool = DecoderPool(limits, SETTINGS, **options)
        self._runner = asyncio.Runner()
        self._runner.run(self.pool.start())

    def decode(self, job: DecodeJob, **options: Any) -> DecodedInput:
        return self._runner.run(self.pool.decode(job, **options))

    def close(self) -> None:
        self.pool.close()
        self._runner.close()


@pytest.fixture(scope="module")
def decoders() -> Iterator[dict[str, Decoders]]:
    """Decoders in which foreign code runs."""
    started = {name: Decoders(forks=forks) for name, forks in FORKS.items()}
    yield started
    for one in started.values():
        one.close()


@pytest.fixture(scope="module", autouse=True)
def offered(decoders) -> None:
    """Skips the tests on a kernel that does not offer all mechanisms."""
    if missing := decoders["hostile"].pool.sandbox.missing:
        pytest.skip(f"needs a kernel with {', '.join(missing)}")


@pytest.fixture
def arguments(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What the attacks are aimed at, by their names."""
    file = tmp_path / "secret"
    file.write_text("secret")
    with (
        subprocess.Popen(["sleep", "600"]) as victim,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        pid, path = str(victim.pid), str(file)
        yield {
            "read": path,
            "write": path,
            "rename": path,
            "list": str(tmp_path),
            "connect": str(server.getsockname()[1]),
            "execute": "/bin/true",
            **dict.fromkeys(("signal", "trace", "memory"), pid),
        }
        victim.kill()


def report(decoders: Decoders, png: bytes, digest: str) -> str:
    return text_of(decoders.decode(DecodeJob(png, Declared(), INPUT, digest)))


def text_of(result: DecodedInput) -> str:
    """What foreign code has written into the pixels."""
    return bytes(np.rint(255 * result.pixels).astype(np.uint8)).rstrip(b"\0").decode()


@pytest.mark.parametrize("name", ATTACKS)
def test_foreign_code_in_a_decoder_reaches_nothing_but_its_image(
    decoders, arguments, png, name
) -> None:
    digest = f"{name}:{arguments.get(name, '')}"
    assert report(decoders["unrestricted"], png, digest) == "done"
    refused = report(decoders["hostile"], png, digest)
    assert refused in {"Operation not permitted", "Permission denied", "Too many open files"}
    assert decoders["hostile"].decode(DecodeJob(png, Declared(), INPUT, "")).pixels.any()


def image_files(photo: Image.Image) -> Iterator[bytes]:
    """Yields a file of every kind that another part of a library decodes, good and damaged."""
    profile = rgb_profile(DISPLAY_P3)
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    for mode, file_format, options in (
        ("RGB", "JPEG", {"icc_profile": profile, "exif": turned}),
        ("RGB", "JPEG", {"progressive": True}),
        ("RGB", "JPEG", {"icc_profile": b"no profile"}),
        ("CMYK", "JPEG", {}),
        ("L", "JPEG", {}),
        ("RGB", "PNG", {"icc_profile": profile}),
        ("RGBA", "PNG", {"exif": turned}),
        ("P", "PNG", {"transparency": 3}),
        ("LA", "PNG", {}),
        ("I;16", "PNG", {"icc_profile": profile}),
        ("RGB", "WEBP", {"icc_profile": profile, "exif": turned}),
        ("RGBA", "WEBP", {"lossless": True}),
        ("RGB", "GIF", {}),
    ):
        image = photo.convert("RGB").convert("I" if mode == "I;16" else mode)
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
        content = encoded(image, file_format, **options)
        yield content
        yield content[: 3 * len(content) // 4]


def test_a_decoder_in_its_sandbox_decodes_and_refuses_as_this_process(photo) -> None:
    check_as_in_this_process(image_files(photo), LIMITS)


def check_as_in_this_process(files: Iterable[bytes], limits: Any) -> None:
    """Checks that a decoder has the results of `run_job` in this process."""
    decoders = Decoders(limits)
    for number, content in enumerate(files):
        job = DecodeJob(content, Declared("image/png", "a.jpg"), INPUT, "r", with_quality=True)
        expected = run_job(job, limits)
        if isinstance(expected, Failure):
            with pytest.raises(Problem) as refused:
                decoders.decode(job)
            assert (refused.type, str(refused.value)) == (type(expected.error), str(expected.error))
            continue
        result = decoders.decode(job)
        assert np.array_equal(result.pixels, expected.pixels)
        assert result.decode_s > 0
        changes = {"pixels": expected.pixels, "decode_s": expected.decode_s}
        assert replace(result, **changes) == expected, number
    decoders.close()


def test_shared_memory_counts_as_memory_of_a_decoder(decoders, png) -> None:
    length = SETTINGS.memory_bytes + 2**20
    for one in decoders.values():
        assert report(one, png, f"shared memory:{2**20}") == "done"
        assert report(one, png, f"shared memory:{length}") == "Cannot allocate memory"


def test_a_decoder_has_no_capabilities(decoders) -> None:
    pid = next(iter(decoders["hostile"].pool._workers)).pid
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    left = {line.split()[0]: int(line.split()[1], 16) for line in lines if line.startswith("Cap")}
    assert [left[f"Cap{kind}:"] for kind in ("Inh", "Prm", "Eff", "Amb")] == [0, 0, 0, 0]


@pytest.mark.parametrize("digest", ["exit:0", "exit:3", "timer"])
def test_an_image_that_ends_its_decoder_is_refused_and_not_the_service(
    decoders, png, digest
) -> None:
    with raises_problem("unusable_image"):
        decoders["hostile"].decode(DecodeJob(png, Declared(), INPUT, digest))


def test_foreign_code_sees_no_image_of_another_client(decoders, png) -> None:
    hostile = decoders["hostile"]

    def images_seen(client: str) -> str:
        job = DecodeJob(png, Declared(), INPUT, "keep")
        return text_of(hostile.decode(job, client=client))

    clients = ("victim", "victim", "attacker", "attacker", "victim")
    assert [images_seen(client) for client in clients] == ["0", "1", "0", "1", "2"]
    assert {images_seen(f"client {number}") for number in range(20)} == {"0"}
    assert len(hostile.pool._workers) < 20
    assert images_seen("victim") == "0"  # its process went to others


@pytest.mark.parametrize("kind", ["a pickle", "4 GB", "two messages"])
def test_a_decoder_that_sends_no_message_is_lost(png, kind) -> None:
    decoder = DecoderPool(LIMITS, SETTINGS, forks=FORKS["hostile"])

    async def story() -> None:
        await decoder.start()
        job = DecodeJob(png, Declared(), INPUT, f"forge:{kind}")
        with raises_problem("unusable_image"):
            await decoder.decode(job)
        assert (await decoder.decode(replace(job, sampling_digest=""))).pixels.any()
        decoder.close()

    asyncio.run(story())


def test_a_required_sandbox_that_is_missing_prevents_the_start(decoders) -> None:
    missing = decoders["unrestricted"].pool.sandbox.missing
    assert missing
    decoder = DecoderPool(LIMITS, SETTINGS, require_sandbox=True, forks=FORKS["unrestricted"])
    with pytest.raises(SettingsError) as refusal:
        asyncio.run(decoder.start())
    assert all(name in str(refusal.value) for name in missing)
    decoder.close()


def test_a_decoder_has_no_secret_descriptor_or_gpu_of_the_service(decoders, png) -> None:
    assert SECRET in os.environ
    environment = json.loads(report(decoders["hostile"], png, "environment"))
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert not [name for name in environment if name.startswith("EULERLORA")]
    open_files = json.loads(report(decoders["unrestricted"], png, "descriptors"))
    assert open_files[:3] == 3 * ["/dev/null"]
    (connection,) = open_files[3:]
    assert connection.startswith("socket:")
