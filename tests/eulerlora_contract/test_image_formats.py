"""The structure of image files, and files whose cost is out of proportion to their size."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from eulerlora_contract.errors import ImageError, UnsupportedImageError
from eulerlora_contract.image_formats import (
    SizeLimits,
    exif_orientation,
    read_header,
    read_image_file,
)
from tests.service.conftest import encoded, png_chunk, png_header

LIMITS = SizeLimits()
MAX_SCANS = 32
MANY = 200_000


def spliced(jpeg: bytes, more: bytes, before: bytes) -> bytes:
    """Inserts bytes before the first occurrence of a marker."""
    at = jpeg.index(before)
    return jpeg[:at] + more + jpeg[at:]


def with_scans(progressive: bytes, count: int) -> bytes:
    """Repeats the last scan of a progressive JPEG, a refinement."""
    at = progressive.rindex(b"\xff\xda")
    return progressive[:at] + progressive[at:-2] * count + progressive[-2:]


def scans_of(jpeg: bytes) -> int:
    """In these files, no other part has the bytes of the marker."""
    return jpeg.count(b"\xff\xda")


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_the_header_states_format_and_size(photo, file_format) -> None:
    header = read_header(encoded(photo, file_format), LIMITS)
    assert (header.format, header.width, header.height) == (file_format, *photo.size)
    assert header.pixels == photo.width * photo.height
    assert not header.is_progressive


def test_a_progressive_jpeg_is_known_by_its_header(photo) -> None:
    assert read_header(encoded(photo, "JPEG", progressive=True), LIMITS).is_progressive


def test_the_header_is_read_without_a_search_of_the_pixels(photo, monkeypatch) -> None:
    monkeypatch.setattr("eulerlora_contract.image_formats._MARKER_AFTER_SCAN", None)
    assert read_header(encoded(photo, "JPEG"), LIMITS).size == photo.size


def test_a_jpeg_of_hundreds_of_scans_is_refused_before_it_is_decoded(photo, monkeypatch) -> None:
    progressive = encoded(photo, "JPEG", progressive=True)
    accepted = with_scans(progressive, 1 + MAX_SCANS - scans_of(progressive))
    assert scans_of(accepted) == MAX_SCANS
    read_image_file(accepted, LIMITS)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow was called"))
    for count in (MAX_SCANS, 400):
        with pytest.raises(ImageError, match="scans"):
            read_image_file(with_scans(progressive, count), LIMITS)


def test_scans_behind_an_end_marker_inside_a_comment_are_counted(photo) -> None:
    progressive = encoded(photo, "JPEG", progressive=True)
    comment = b"\xff\xfe\x00\x04\xff\xd9"
    at = progressive.rindex(b"\xff\xda")
    hidden = progressive[:at] + comment + with_scans(progressive, 400)[at:]
    with pytest.raises(ImageError, match="scans"):
        read_image_file(hidden, LIMITS)


def test_scans_of_a_thumbnail_and_of_trailing_images_are_not_counted(photo) -> None:
    progressive = encoded(photo, "JPEG", progressive=True)
    thumbnail = b"Exif\0\0" + b"\xff\xda" * 99
    jpeg = encoded(photo, "JPEG", exif=thumbnail) + progressive * 9
    assert scans_of(jpeg) > 2 * MAX_SCANS
    read_image_file(jpeg, LIMITS)


@pytest.mark.parametrize("filler", [b"\xff", b"\0"], ids=["fill bytes", "other bytes"])
def test_a_jpeg_of_many_bytes_before_a_marker_is_refused(photo, filler, monkeypatch) -> None:
    jpeg = encoded(photo, "JPEG")
    read_image_file(spliced(jpeg, b"\xff" * 200, b"\xff\xdb"), LIMITS)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow was called"))
    with pytest.raises(ImageError):
        read_header(spliced(jpeg, filler * MANY, b"\xff\xdb"), LIMITS)


def test_bytes_before_markers_are_limited_in_the_whole_file(photo) -> None:
    comment = b"\xff" * 20_000 + b"\xff\xfe\0\2"
    read_header(spliced(encoded(photo, "JPEG"), comment * 3, b"\xff\xdb"), LIMITS)
    with pytest.raises(ImageError):
        read_header(spliced(encoded(photo, "JPEG"), comment * 4, b"\xff\xdb"), LIMITS)


@pytest.mark.parametrize("segment", [b"\xff\xfe\0\2", b"\xff\xd0"], ids=["comments", "restarts"])
def test_a_jpeg_of_many_segments_is_refused(photo, segment) -> None:
    many = spliced(encoded(photo, "JPEG"), segment * MANY, b"\xff\xdb")
    with pytest.raises(ImageError, match="segments"):
        read_header(many, LIMITS)


def test_many_segments_between_scans_are_refused(photo) -> None:
    progressive = encoded(photo, "JPEG", progressive=True)
    at = progressive.rindex(b"\xff\xda")
    many = progressive[:at] + b"\xff\xfe\0\2" * 5000 + progressive[at:]
    read_header(many, LIMITS)
    with pytest.raises(ImageError, match="segments"):
        read_image_file(many, LIMITS)


@pytest.mark.parametrize("kind", [b"tEXt", b"IDAT", b"prVt"])
def test_a_png_of_many_chunks_is_refused_before_it_is_parsed(photo, kind, monkeypatch) -> None:
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow was called"))
    with pytest.raises(ImageError, match="chunks"):
        png = encoded(photo, "PNG")
        read_image_file(png[:33] + png_chunk(kind, b"") * MANY + png[33:], LIMITS)


def test_a_png_with_chunks_of_four_kilobytes_is_accepted() -> None:
    rows = zlib.compress(np.random.default_rng(0).bytes(2001 * 2000), 0)
    parts = (png_chunk(b"IDAT", rows[at : at + 4096]) for at in range(0, len(rows), 4096))
    data = b"\x89PNG\r\n\x1a\n" + png_header(2000, 2000, 8, 0) + b"".join(parts)
    read_image_file(data + png_chunk(b"IEND", b""), LIMITS)


def test_a_webp_of_many_chunks_is_refused(photo) -> None:
    webp = encoded(photo, "WEBP")
    read_image_file(webp, LIMITS)
    chunks = webp[12:] + (b"ABCD" + struct.pack("<I", 1) + b"x\0") * 1000
    with pytest.raises(ImageError, match="chunks"):
        read_image_file(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks, LIMITS)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_trailing_bytes_are_not_counted(photo, file_format) -> None:
    read_image_file(encoded(photo, file_format) + bytes(200_000), LIMITS)
    read_image_file(encoded(photo, file_format) + b"\xff\xda" * 99, LIMITS)


@pytest.mark.parametrize("file_format", ["WEBP", "PNG"])
def test_a_file_far_too_short_for_its_pixels_is_refused(file_format) -> None:
    options = {"lossless": True, "method": 0} if file_format == "WEBP" else {"bits": 1}
    mode = "RGB" if file_format == "WEBP" else "P"
    flat = encoded(Image.new(mode, (5000, 4800)), file_format, **options)
    assert len(flat) < 12_000
    with pytest.raises(ImageError):
        read_header(flat, LIMITS)
    read_header(encoded(Image.new(mode, (1000, 1000)), file_format, **options), LIMITS)


def test_a_jpeg_may_have_more_pixels_than_other_formats() -> None:
    limits = SizeLimits(max_pixels=10_000, max_jpeg_pixels=40_000)
    image = Image.effect_noise((200, 200), 50).convert("RGB")
    assert read_header(encoded(image, "JPEG"), limits).pixels == 40_000
    with pytest.raises(ImageError, match="10,000"):
        read_header(encoded(image, "PNG"), limits)
    with pytest.raises(ImageError, match="40,000"):
        read_header(encoded(image.resize((200, 201)), "JPEG"), limits)


def test_a_damaged_jpeg_structure_ends_the_walk() -> None:
    for data in (
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xe0\0\0" * 2000,
        b"\xff\xd8" + b"\xff\xe0\xff\xff",
    ):
        with pytest.raises(ImageError):
            read_header(data, LIMITS)


ISO = b"\0\0\0\x18ftyp%b\0\0\0\0%b"
KINDS = {
    "HEIC": ISO % (b"heic", b"mif1heic"),
    "HEIC ": ISO % (b"mif1", b"mif1heic"),
    "AVIF": ISO % (b"avif", b"avifmif1"),
    "AVIF ": ISO % (b"mif1", b"miafavif"),
    "Canon RAW": ISO % (b"crx ", b"crx isom"),
    "Canon RAW ": b"II*\0\x10\0\0\0CR\2\0",
    "video": ISO % (b"isom", b"isomiso2"),
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n",
    "JPEG XL": b"\0\0\0\x0cJXL \r\n\x87\n",
    "JPEG XL ": b"\xff\x0a\xfa\x7f",
    "Fujifilm RAW": b"FUJIFILMCCD-RAW 0201",
    "Olympus RAW": b"IIRO\x08\0\0\0",
    "Panasonic RAW": b"IIU\0\x08\0\0\0",
    "TIFF": b"II*\0\x08\0\0\0",
    "TIFF ": b"MM\0*\0\0\0\x08",
    "GIF": b"GIF89a",
    "BMP": b"BM\x36\0\0\0\0\0\0\0",
    "Photoshop": b"8BPS\0\x01",
    "PDF": b"%PDF-1.7\n",
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n",
    "PostScript ": b"\xc5\xd0\xd3\xc6",
    "SVG": b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- drawn -->\n<svg xmlns="http://www.w3.org/2000/svg">',
    "DICOM": bytes(128) + b"DICM",
    "Netpbm": b"P6\n10 10\n255\n",
    "ZIP": b"PK\3\4",
    "web page": b"<!DOCTYPE html>",
    "macOS": b"\0\5\x16\7\0\2\0\0Mac OS X",
    "no known kind": b"text",
    "no known kind ": b"RIFF\x24\0\0\0WAVEfmt ",
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_another_kind_is_named(name: str) -> None:
    with pytest.raises(UnsupportedImageError, match=name.strip()):
        read_header(KINDS[name] + bytes(600), LIMITS)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("kind", "count", "value", "expected"),
    [(3, 1, 6, 6), (3, 1, 9, 1), (3, 1, 0, 1), (3, 2, 6, 1), (4, 1, 6, 1), (1, 1, 6, 1)],
)
def test_an_orientation_is_one_short_from_1_to_8(order, kind, count, value, expected) -> None:
    entry = struct.pack(order + "HHIHH", 0x0112, kind, count, value, 0)
    start = b"II*\0" if order == "<" else b"MM\0*"
    tiff = start + struct.pack(order + "IH", 8, 1) + entry
    for prefix in (b"", b"Exif\0\0", b"Exif\0\xff"):
        assert exif_orientation(prefix + tiff) == expected
    for length in range(len(tiff) - 2):
        assert exif_orientation(tiff[:length]) == 1
