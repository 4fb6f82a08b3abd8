"""The structure of image files, and files whose cost is out of proportion to their size."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from eulerlora_contract.problems import UnusableImage
from service.decoding.decode import MEDIA_TYPES, decode
from service.decoding.header import MAX_SCANS, check_structure, read_header
from service.settings import ImageSettings
from tests.service.conftest import encoded, png_chunk, png_header

LIMITS = ImageSettings()
MANY = 200_000


def spliced(jpeg: bytes, more: bytes, before: bytes) -> bytes:
    """Returns a JPEG with bytes inserted before the first occurrence of a marker."""
    at = jpeg.index(before)
    return jpeg[:at] + more + jpeg[at:]


def with_scans(progressive: bytes, count: int) -> bytes:
    """Returns a progressive JPEG whose last scan, a refinement, is repeated."""
    at = progressive.rindex(b"\xff\xda")
    return progressive[:at] + progressive[at:-2] * count + progressive[-2:]


def scans_of(jpeg: bytes) -> int:
    """Returns the number of scans: in these files, no other part has the bytes of the marker."""
    return jpeg.count(b"\xff\xda")


@pytest.mark.parametrize("file_format", MEDIA_TYPES.values())
def test_the_header_states_format_size_and_cost(photo, file_format) -> None:
    header = read_header(encoded(photo, file_format), LIMITS)
    assert (header.format, header.width, header.height) == (file_format, *photo.size)
    assert header.pixels == photo.width * photo.height
    assert 0 < header.estimated_s < 0.01


def test_a_progressive_jpeg_is_estimated_to_cost_more(photo) -> None:
    plain = read_header(encoded(photo, "JPEG"), LIMITS)
    progressive = read_header(encoded(photo, "JPEG", progressive=True), LIMITS)
    assert not plain.is_progressive
    assert progressive.is_progressive
    assert progressive.estimated_s > plain.estimated_s


def test_a_jpeg_of_hundreds_of_scans_is_refused_before_it_is_decoded(photo, monkeypatch) -> None:
    progressive = encoded(photo, "JPEG", progressive=True)
    accepted = with_scans(progressive, 1 + MAX_SCANS - scans_of(progressive))
    assert scans_of(accepted) == MAX_SCANS
    check_structure(accepted, "JPEG")
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow was called"))
    for count in (MAX_SCANS, 400):
        with pytest.raises(UnusableImage, match="at most 32 scans"):
            decode(with_scans(progressive, count), LIMITS)


def test_scans_behind_an_end_marker_inside_a_comment_are_counted(photo) -> None:
    progressive = encoded(photo, "JPEG", progressive=True)
    comment = b"\xff\xfe\x00\x04\xff\xd9"
    at = progressive.rindex(b"\xff\xda")
    hidden = progressive[:at] + comment + with_scans(progressive, 400)[at:]
    with pytest.raises(UnusableImage, match="scans"):
        check_structure(hidden, "JPEG")


def test_scans_of_a_thumbnail_and_of_trailing_images_are_not_counted(photo) -> None:
    progressive = encoded(photo, "JPEG", progressive=True)
    thumbnail = b"Exif\0\0" + b"\xff\xda" * 99
    jpeg = encoded(photo, "JPEG", exif=thumbnail) + progressive * 9
    assert scans_of(jpeg) > 2 * MAX_SCANS
    check_structure(jpeg, "JPEG")


@pytest.mark.parametrize("filler", [b"\xff", b"\0"], ids=["fill bytes", "other bytes"])
def test_a_jpeg_of_many_bytes_before_a_marker_is_refused(photo, filler, monkeypatch) -> None:
    jpeg = encoded(photo, "JPEG")
    decode(spliced(jpeg, b"\xff" * 200, b"\xff\xdb"), LIMITS)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow was called"))
    with pytest.raises(UnusableImage, match="broken"):
        read_header(spliced(jpeg, filler * MANY, b"\xff\xdb"), LIMITS)


@pytest.mark.parametrize("segment", [b"\xff\xfe\0\2", b"\xff\xd0"], ids=["comments", "restarts"])
def test_a_jpeg_of_many_segments_is_refused(photo, segment) -> None:
    many = spliced(encoded(photo, "JPEG"), segment * MANY, b"\xff\xdb")
    with pytest.raises(UnusableImage, match="at most 1,000 segments"):
        read_header(many, LIMITS)


def test_many_segments_between_scans_are_refused(photo) -> None:
    progressive = encoded(photo, "JPEG", progressive=True)
    at = progressive.rindex(b"\xff\xda")
    many = progressive[:at] + b"\xff\xfe\0\2" * 5000 + progressive[at:]
    read_header(many, LIMITS)
    with pytest.raises(UnusableImage, match="at most 1,000 segments"):
        decode(many, LIMITS)


@pytest.mark.parametrize("kind", [b"tEXt", b"IDAT", b"prVt"])
def test_a_png_of_many_chunks_is_refused_before_it_is_parsed(png, kind, monkeypatch) -> None:
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow was called"))
    with pytest.raises(UnusableImage, match="chunks in a file of this size"):
        decode(png[:33] + png_chunk(kind, b"") * MANY + png[33:], LIMITS)


def test_a_png_with_chunks_of_four_kilobytes_is_accepted() -> None:
    rows = zlib.compress(np.random.default_rng(0).bytes(2001 * 2000), 0)
    parts = (png_chunk(b"IDAT", rows[at : at + 4096]) for at in range(0, len(rows), 4096))
    data = b"\x89PNG\r\n\x1a\n" + png_header(2000, 2000, 8, 0) + b"".join(parts)
    check_structure(data + png_chunk(b"IEND", b""), "PNG")


def test_a_webp_of_many_chunks_is_refused(photo) -> None:
    webp = encoded(photo, "WEBP")
    check_structure(webp, "WEBP")
    chunks = webp[12:] + (b"ABCD" + struct.pack("<I", 1) + b"x\0") * 1000
    with pytest.raises(UnusableImage, match="chunks"):
        check_structure(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks, "WEBP")


@pytest.mark.parametrize("file_format", MEDIA_TYPES.values())
def test_trailing_bytes_are_not_counted(photo, file_format) -> None:
    check_structure(encoded(photo, file_format) + bytes(200_000), file_format)
    check_structure(encoded(photo, file_format) + b"\xff\xda" * 99, file_format)


@pytest.mark.parametrize("file_format", ["WEBP", "PNG"])
def test_a_file_far_too_short_for_its_pixels_is_refused(file_format) -> None:
    options = {"lossless": True, "method": 0} if file_format == "WEBP" else {"bits": 1}
    mode = "RGB" if file_format == "WEBP" else "P"
    flat = encoded(Image.new(mode, (5000, 4800)), file_format, **options)
    assert len(flat) < 12_000
    check_structure(flat, file_format)
    with pytest.raises(UnusableImage, match="at least one byte for 2,000 pixels"):
        read_header(flat, LIMITS)
    read_header(encoded(Image.new(mode, (1000, 1000)), file_format, **options), LIMITS)


def test_a_jpeg_may_have_more_pixels_than_other_formats() -> None:
    limits = ImageSettings(max_pixels=10_000, max_jpeg_pixels=40_000)
    image = Image.effect_noise((200, 200), 50).convert("RGB")
    assert read_header(encoded(image, "JPEG"), limits).pixels == 40_000
    with pytest.raises(UnusableImage, match="at most 10,000 pixels"):
        read_header(encoded(image, "PNG"), limits)
    with pytest.raises(UnusableImage, match="at most 40,000 pixels"):
        read_header(encoded(image.resize((200, 201)), "JPEG"), limits)


def test_a_damaged_jpeg_structure_ends_the_walk() -> None:
    for data in (
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xe0\0\0" * 2000,
        b"\xff\xd8" + b"\xff\xe0\xff\xff",
    ):
        with pytest.raises(UnusableImage):
            read_header(data, LIMITS)
