"""JPEGs: all sampling factors, faults of headers that change nothing, and damage of pixels."""

import struct
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eulerlora.images.decode import decode
from eulerlora_contract.answers import WarningCode
from eulerlora_contract.errors import ImageError, UnsupportedImageError
from tests.damaged_images import jpeg_segments
from tests.icc_profiles import DISPLAY_P3, rgb_profile

WIDTH, HEIGHT = 67, 45
UNUSUAL = Path(__file__).with_name("sampling-4x2.jpg").read_bytes()
"""64 x 48 pixels with sampling factors 4x2, 1x1, 1x1 in one scan, written by cjpeg."""
Factors = Sequence[tuple[int, int]]


def smooth(width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """The chroma hardly changes within a block."""
    ramps = np.mgrid[0:height, 0:width] / max(width, height)
    channels = [120 + 80 * ramps[0], 90 + 60 * ramps[1], 160 - 70 * ramps.mean(axis=0)]
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def encoded(image: Image.Image, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def sampled(image: Image.Image, factors: Factors) -> bytes:
    """A JPEG with these sampling factors, a scan for each component.

    The scan of a component alone is that of a gray JPEG of its size (ITU-T T.81, A.2.2).
    """
    most = [max(values) for values in zip(*factors, strict=True)]
    tables, scans = [], []
    for number, (plane, (h, v)) in enumerate(
        zip(image.convert("YCbCr").split(), factors, strict=True), 1
    ):
        size = (-(-image.width * h // most[0]), -(-image.height * v // most[1]))
        segments, scan = jpeg_segments(encoded(plane.resize(size, Image.Resampling.BOX)))
        tables = [segment for segment in segments if segment[1] in (0xDB, 0xC4)]
        scans.append(b"\xff\xda\0\x08\1" + bytes([number]) + b"\0\0\x3f\0" + scan[10:-2])
    components = b"".join(bytes([n, 16 * h + v, 0]) for n, (h, v) in enumerate(factors, 1))
    frame = struct.pack(">BHHB", 8, image.height, image.width, len(factors)) + components
    header = b"\xff\xc0" + struct.pack(">H", 2 + len(frame)) + frame
    return b"\xff\xd8" + b"".join((*tables, header, *scans)) + b"\xff\xd9"


LAYOUTS = [
    ((h, v), (1, 1), (1, 1)) for h in (1, 2, 3, 4) for v in (1, 2, 3, 4) if h * v <= 8
] + [
    ((2, 2), (2, 1), (1, 1)), ((2, 2), (1, 2), (1, 1)), ((2, 2), (2, 1), (2, 1)),
    ((2, 2), (1, 2), (1, 2)), ((2, 2), (2, 2), (1, 1)), ((2, 1), (2, 1), (2, 1)),
    ((1, 1), (2, 1), (2, 1)), ((1, 1), (2, 2), (1, 1)), ((1, 1), (1, 2), (1, 2)),
    ((4, 1), (2, 1), (2, 1)), ((2, 1), (1, 2), (1, 1)), ((2, 2), (2, 1), (1, 2)),
]  # fmt: skip


@pytest.mark.parametrize("factors", LAYOUTS, ids=str)
def test_all_legal_sampling_factors_give_the_picture(factors: Factors) -> None:
    image = smooth()
    pixels = decode(sampled(image, factors)).pixels.permute(1, 2, 0).numpy()
    assert np.abs(pixels.astype(int) - np.asarray(image)).max() <= 12
    assert np.abs(pixels.astype(int) - np.asarray(image)).mean() <= 2


def test_a_single_scan_of_unusual_factors_is_read_whole_or_refused() -> None:
    assert decode(UNUSUAL + b"trailing bytes").pixels.shape == (3, 48, 64)
    damaged = {
        "cut": UNUSUAL[: len(UNUSUAL) * 2 // 3] + b"\xff\xd9",
        "without its end": UNUSUAL[:-2],
        "with more data than blocks": UNUSUAL[:-2] + bytes(99) + b"\xff\xd9",
    }
    for content in damaged.values():
        with pytest.raises(ImageError):
            decode(content)


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def icc(number: int, count: int, body: bytes) -> bytes:
    return segment(0xE2, b"ICC_PROFILE\0" + bytes((number, count)) + body)


PROFILE = rgb_profile(DISPLAY_P3)
EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0" + bytes(4)
IGNORED = {
    "broken": (icc(1, 2, b"broken"), True),
    "not a profile": (icc(1, 1, b"broken"), True),
    "empty": (icc(1, 1, b""), True),
    "doubled": (icc(1, 1, PROFILE) * 2, True),
    "with a part that does not exist": (icc(0, 1, PROFILE), True),
    "of more parts than can be counted": (icc(1, 255, b"x") * 400, True),
    "zeros": (bytes(37), False),
    "many bytes": (b"ab\0" * 5000, False),
    "stuffed bytes and fill bytes": (b"\xff\0" * 9 + b"\xff" * 300, False),
    "a short JFIF segment": (segment(0xE0, b"JFIF\0\1"), False),
    "a JFIF segment of version 9": (segment(0xE0, b"JFIF\0\x09" + bytes(8)), False),
    "an Adobe segment of transform 9": (segment(0xEE, b"Adobe\0\x64\0\0\0\0\x09"), False),
    "a short Adobe segment": (segment(0xEE, b"Adobe"), False),
    "a preview that is none": (segment(0xE0, b"JFXX\0\x10"), False),
    "damaged resources": (segment(0xED, b"Photoshop 3.0\x008BIM\xff"), False),
    "damaged pages": (segment(0xE2, b"MPF\0II*\0\xff\xff\xff\xff"), False),
    "damaged EXIF": (segment(0xE1, b"Exif\0\0II"), False),
    "a segment without content": (b"\xff\xe5\0\2", False),
    "restart markers": (b"\xff\xd0\xff\x01", False),
    "an orientation in XMP": (
        segment(0xE1, b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'), False
    ),
    "a second EXIF segment": (
        segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\0") + segment(0xE1, EXIF), False
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", IGNORED)
@pytest.mark.parametrize("position", [2, 20], ids=["first", "after JFIF"])
def test_faults_of_the_header_change_no_pixel(kind: str, position: int) -> None:
    inserted, is_profile = IGNORED[kind]
    jpeg = encoded(smooth(), subsampling=2)
    actual = decode(jpeg[:position] + inserted + jpeg[position:])
    assert torch.equal(actual.pixels, decode(jpeg).pixels)
    expected = [WarningCode.PROFILE_IGNORED] if is_profile else []
    assert [warning.code for warning in actual.warnings] == expected


def test_a_profile_in_several_segments_is_applied() -> None:
    jpeg = encoded(smooth())
    parts = icc(2, 2, PROFILE[100:]) + icc(1, 2, PROFILE[:100])
    whole = decode(jpeg[:20] + icc(1, 1, PROFILE) + jpeg[20:])
    assert torch.equal(decode(jpeg[:20] + parts + jpeg[20:]).pixels, whole.pixels)
    assert [warning.code for warning in whole.warnings] == [WarningCode.CONVERTED_TO_SRGB]


JPEG = encoded(smooth())
FRAME_AT = JPEG.index(b"\xff\xc0")
UNSUPPORTED = {
    **{
        f"frame {marker:02x}": JPEG[:FRAME_AT] + bytes([0xFF, marker]) + JPEG[FRAME_AT + 2 :]
        for marker in (0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF, 0xF7)
    },
    "12 bits": JPEG[: FRAME_AT + 4] + b"\x0c" + JPEG[FRAME_AT + 5 :],
    "two components": sampled(smooth(), ((1, 1), (1, 1), (1, 1))).replace(
        b"\3\1\x11\0", b"\2\1\x11\0", 1
    ),
    "factors that do not divide": sampled(smooth(), ((3, 1), (1, 1), (1, 1))).replace(
        b"\2\x11\0", b"\2\x21\0", 1
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_a_jpeg_of_another_coding_is_not_supported_rather_than_broken(kind: str) -> None:
    with pytest.raises(UnsupportedImageError):
        decode(UNSUPPORTED[kind])
