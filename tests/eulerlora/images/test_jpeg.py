"""JPEGs: all sampling factors, faults of headers that change nothing, and damage of pixels."""

import re
import struct
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eulerlora.images.decode import decode
from eulerlora.images.jpeg_scans import without_stray_bytes
from eulerlora_contract.answers import WarningCode
from eulerlora_contract.errors import ImageError, UnsupportedImageError
from tests.damaged_images import jpeg_segments
from tests.icc_profiles import DISPLAY_P3, rgb_profile

WIDTH, HEIGHT = 67, 45
STORED = {path.stem: path.read_bytes() for path in Path(__file__).parent.glob("sampling-*.jpg")}
"""64 x 48 pixels with sampling factors that TurboJPEG does not read, written by cjpeg."""
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


KINDS = {
    **STORED,
    "three scans": sampled(smooth(), ((3, 1), (1, 1), (1, 1))),
    "4:4:4": encoded(smooth(), subsampling=0),
    "4:2:0": encoded(smooth(), subsampling=2, optimize=True),
    "progressive": encoded(smooth(), progressive=True),
    "restart markers": encoded(smooth(), restart_marker_blocks=2),
    "progressive with restart markers": encoded(
        smooth(), progressive=True, restart_marker_rows=1, subsampling=2
    ),
    "gray": encoded(smooth().convert("L")),
    "progressive gray": encoded(smooth().convert("L"), progressive=True),
    "CMYK": encoded(smooth().convert("CMYK")),
    "RGB": encoded(smooth(), keep_rgb=True),
}


def pieces(jpeg: bytes) -> list[bytes]:
    """The header, and the rest split behind every scan and restart interval."""
    ends = [
        match.start()
        for match in re.finditer(rb"\xff[\xc0-\xfe]", jpeg)
        if match.start() > jpeg.index(b"\xff\xda") + 2
    ]
    return [jpeg[start:end] for start, end in pairwise([0, *ends, len(jpeg)])]


@pytest.mark.parametrize("kind", KINDS)
def test_the_blocks_of_every_kind_of_jpeg_are_followed_to_their_last_byte(kind: str) -> None:
    jpeg = KINDS[kind]
    assert without_stray_bytes(jpeg) == jpeg
    *intervals, end = pieces(jpeg)
    for at, interval in enumerate(intervals):
        if interval[1] in (0xD8, 0xDA, *range(0xD0, 0xD8)):  # no tables between scans
            cut = b"".join((*intervals[:at], interval[:-1], *intervals[at + 1 :], end))
            with pytest.raises(ValueError, match="JPEG"):
                without_stray_bytes(cut)


@pytest.mark.parametrize("kind", KINDS)
def test_a_jpeg_that_lost_a_part_is_refused(kind: str) -> None:
    jpeg = KINDS[kind]
    start = jpeg.index(b"\xff\xda") + 20
    fifth = (len(jpeg) - start) // 5
    damaged = {
        "without its end": jpeg[:-2],
        "without a last fifth": jpeg[: -2 - fifth] + jpeg[-2:],
        "without a half": jpeg[: start + fifth] + b"\xff\xd9",
        **{
            f"without a fifth from {at}": jpeg[:at] + jpeg[at + fifth :]
            for at in range(start, len(jpeg) - fifth - 2, fifth)
        },
    }
    for name, content in damaged.items():
        with pytest.raises(ImageError):
            pytest.fail(f"{name}: {decode(content)}")
    assert decode(jpeg + b"trailing bytes").warnings == decode(jpeg).warnings


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].count(b"\xff\xda") > 1])
def test_a_jpeg_without_one_of_its_scans_is_refused(kind: str) -> None:
    header, *scans = KINDS[kind][:-2].split(b"\xff\xda")
    for at in range(len(scans)):
        content = b"\xff\xda".join((header, *scans[:at], *scans[at + 1 :])) + b"\xff\xd9"
        with pytest.raises(ImageError):
            decode(content)


def test_a_jpeg_without_one_of_its_restart_intervals_is_refused() -> None:
    jpeg = STORED["sampling-3x1-restarts"]
    markers = [match.start() for match in re.finditer(rb"\xff[\xd0-\xd7]", jpeg)]
    for first, following in zip(markers, [*markers[1:], len(jpeg) - 2], strict=True):
        with pytest.raises(ImageError):
            decode(jpeg[:first] + jpeg[following:])
    for first, eighth in zip(markers, markers[8:], strict=False):  # with the same numbers
        with pytest.raises(ImageError):
            decode(jpeg[:first] + jpeg[eighth:])


STRAY = {
    "zeros": bytes(37),
    "a byte": b"\0",
    "text": b"camera 1",
    "a reserved marker": b"ab\xff\x3acd",
    "stuffed and fill bytes": b"\x80\xff\0\x80\xff\xff\xff",
}


@pytest.mark.parametrize("stray", STRAY)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_behind_complete_blocks_are_ignored(kind: str, stray: str) -> None:
    expected = decode(KINDS[kind])
    *intervals, end = pieces(KINDS[kind])
    for at in {0, len(intervals) - 1}:
        content = b"".join((*intervals[: at + 1], STRAY[stray], *intervals[at + 1 :], end))
        actual = decode(content)
        assert torch.equal(actual.pixels, expected.pixels)
        more = actual.warnings[len(expected.warnings) :]
        if stray == "zeros":  # libjpeg does not report a few bytes that it has read ahead
            assert [warning.code for warning in more] == [WarningCode.DAMAGE_IGNORED]


def test_blocks_below_the_height_of_the_header_are_no_stray_bytes() -> None:
    for jpeg in (KINDS["4:4:4"], STORED["sampling-4x2"]):
        at = jpeg.index(b"\xff\xc0") + 5
        with pytest.raises(ImageError):
            decode(jpeg[:at] + struct.pack(">H", 16) + jpeg[at + 2 :])


def test_frames_without_huffman_tables_have_the_standard_ones() -> None:
    segments, scan = jpeg_segments(encoded(smooth()))
    plain = b"".join(part for part in segments if part[1] != 0xC4)
    content = b"\xff\xd8" + plain + scan[:-2] + bytes(37) + scan[-2:]
    assert torch.equal(decode(content).pixels, decode(encoded(smooth())).pixels)


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
        for marker in (0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF, 0xF7)
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


@pytest.mark.parametrize("factor", [0, 5])
def test_illegal_sampling_factors_are_refused(factor: int) -> None:
    jpeg = bytearray(STORED["sampling-4x2"])
    start = jpeg.index(b"\xff\xc0")
    for component in range(jpeg[start + 9]):
        jpeg[start + 11 + 3 * component] = factor << 4 | 1
    with pytest.raises(ValueError, match="damaged"):
        without_stray_bytes(bytes(jpeg))
    with pytest.raises(ImageError):
        decode(bytes(jpeg))
