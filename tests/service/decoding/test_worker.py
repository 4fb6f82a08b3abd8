"""The jobs of a decoder process, run in this process, and messages over a socket."""

import socket
import threading
from collections.abc import Iterator

import pytest
import torch
from PIL import ExifTags, Image

from eulerlora.images.preprocess import content_seed, resize, upright_rgb
from eulerlora.settings import Preprocessing
from eulerlora_client.policy.quality import measure_quality
from service.decoding.decode import Declared
from service.decoding.worker import (
    DecodeFailure,
    DecodeJob,
    DecodeResult,
    Message,
    MessageReader,
    receive,
    run_job,
)
from service.settings import ImageSettings

LARGE = bytes(range(256)) * 10_000  # more than a socket buffer
FIELDS = (("image/png", None), 224, "sha256:0")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("buffer", [b"", b"x", LARGE], ids=["empty", "small", "large"])
def test_a_message_is_received_unchanged(pair, buffer) -> None:
    ours, theirs = pair
    sending = threading.Thread(target=Message(buffer, FIELDS).send, args=(ours,))
    sending.start()
    message = receive(theirs)
    sending.join()
    assert (bytes(message.buffer), message.fields) == (buffer, FIELDS)


def test_a_message_is_read_in_pieces(pair) -> None:
    ours, theirs = pair
    theirs.setblocking(False)
    Message(b"data", FIELDS).send(ours)
    whole = theirs.recv(1000)
    reader = MessageReader()
    for index in range(len(whole)):
        assert reader.read(theirs) is None
        ours.send(whole[index : index + 1])
    assert reader.read(theirs) == Message(memoryview(bytearray(b"data")), FIELDS)


def test_the_unsent_rest_is_returned(pair) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    rest = Message(LARGE, FIELDS).send_some(ours)
    assert 0 < len(rest) < len(LARGE)
    ours.setblocking(True)
    sending = threading.Thread(target=ours.sendall, args=(rest,))
    sending.start()
    assert receive(theirs).buffer == LARGE
    sending.join()


@pytest.mark.parametrize("sent", [b"", b"a part of"])
def test_an_incomplete_message_raises_eof_error(pair, sent) -> None:
    ours, theirs = pair
    ours.sendall(sent)
    ours.close()
    with pytest.raises(EOFError):
        receive(theirs)


LIMITS = ImageSettings()
REVISION = "sha256:0"
UNDECLARED = Declared()
INPUT = Preprocessing(size=32)


def run(content: bytes, declared: Declared = UNDECLARED, revision: str = REVISION) -> DecodeResult:
    result = run_job(DecodeJob(content, declared, INPUT, revision), LIMITS)
    assert isinstance(result, DecodeResult), result
    return result


def test_the_pixels_are_resized(png, photo) -> None:
    result = run(png, Declared("image/png"))
    assert torch.equal(torch.from_numpy(result.pixels), resize(upright_rgb(photo).pixels, 32))
    assert result.warnings == ()
    assert result.decode_s > 0


def test_the_content_seed_depends_on_pixels_and_revision_only(photo, encode, png) -> None:
    expected = content_seed(upright_rgb(photo).pixels, REVISION)
    assert run(png).content_seed == expected
    assert run(encode(photo, "WEBP", lossless=True)).content_seed == expected
    assert run(encode(photo.rotate(90), "PNG")).content_seed != expected
    assert run(png, revision="sha256:1").content_seed != expected


def test_quality_is_measured_on_the_whole_upright_image_on_request(encode, photo) -> None:
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    content = encode(photo, "PNG", exif=turned)
    result = run_job(DecodeJob(content, UNDECLARED, INPUT, REVISION, with_quality=True), LIMITS)
    assert isinstance(result, DecodeResult)
    assert result.quality == measure_quality(photo.rotate(-90, expand=True))
    assert run(content).quality is None


def test_the_quality_of_a_reduced_image_has_the_size_of_the_original(encode, photo) -> None:
    large = photo.resize((2000, 1500), Image.Resampling.BICUBIC)
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    content = encode(large, "JPEG", exif=turned, quality=95)
    result = run_job(DecodeJob(content, UNDECLARED, INPUT, REVISION, with_quality=True), LIMITS)
    assert isinstance(result, DecodeResult)
    assert result.quality is not None
    full = measure_quality(large.rotate(-90, expand=True))
    assert (result.quality.width, result.quality.height) == (1500, 2000)
    assert result.quality.brightness == pytest.approx(full.brightness, abs=0.002)
    assert result.quality.sharpness == pytest.approx(full.sharpness, rel=0.05)


def test_the_cpu_time_of_a_job_is_part_of_its_result(photo, encode) -> None:
    large = encode(photo.resize((3000, 3000)), "PNG")  # longer than a tick of the clock
    assert 0 < run(large).cpu_s < 60
    transparent = encode(Image.new("RGBA", (3000, 3000)), "PNG")  # refused after decoding
    failure = run_job(DecodeJob(transparent, UNDECLARED, INPUT, REVISION), LIMITS)
    assert isinstance(failure, DecodeFailure)
    assert 0 < failure.cpu_s < 60
