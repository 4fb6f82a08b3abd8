"""Removes the metadata of JPEG, PNG and WebP files without decoding their pixels.

Removed: EXIF with place, time, camera and preview, XMP, IPTC, comments and texts, maker's segments,
and anything behind the image. Kept: the pixels as they are encoded, and what decides how they look:
the ICC profile, the colour chunks of PNG, and the orientation, as the only tag of a new EXIF block.
Text within the picture stays.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO

from PIL import ExifTags, Image

from eulerlora_client.contract.problems import MetadataNotRemoved

FORMATS = ("JPEG", "PNG", "WEBP")
UPRIGHT = 1

JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

APP0, APP1, APP2, APP14, LAST_APP = 0xE0, 0xE1, 0xE2, 0xEE, 0xEF
COMMENT, START_OF_SCAN, END_OF_IMAGE = 0xFE, 0xDA, 0xD9
WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD9)}
MARKER = re.compile(rb"\xff+([^\x00\xff])")
MARKER_AFTER_SCAN = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
JFIF, JFIF_BYTES = b"JFIF\0", 12  # the rest of the segment is a preview and its size
KEPT_SEGMENTS = {APP2: b"ICC_PROFILE\0", APP14: b"Adobe"}

KEPT_PNG_CHUNKS = {
    b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"bKGD", b"pHYs", b"cICP", b"mDCV",
    b"cLLI", b"acTL", b"fcTL", b"fdAT",
}  # fmt: skip
ANCILLARY = 0x20  # bit of the first letter of a chunk that a decoder may ignore

KEPT_WEBP_CHUNKS = {b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ICCP", b"ANIM", b"ANMF"}
EXIF_FLAG, XMP_FLAG = 0x08, 0x04  # of the chunk VP8X (RFC 9649, 2.7.1)


def without_metadata(data: bytes) -> bytes:
    """Returns an image file with the same pixels and without metadata.

    Raises MetadataNotRemoved for any other format, such as DICOM, whose tags are not removed, and
    for a file whose parts cannot be told apart.
    """
    if data.startswith(JPEG_START):
        return b"".join(_jpeg_parts(data, _exif(data)))
    if data.startswith(PNG_SIGNATURE):
        return b"".join(_png_parts(data, _exif(data)))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        content = b"WEBP" + b"".join(_webp_parts(data, _exif(data)))
        return b"RIFF" + struct.pack("<I", len(content)) + content
    raise MetadataNotRemoved("expected a JPEG, PNG or WebP image; the file was not sent")


def _exif(data: bytes) -> bytes:
    """Returns an EXIF block with the orientation of an image alone; empty for an upright one."""
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            orientation = image.getexif().get(ExifTags.Base.Orientation, UPRIGHT)
    except Exception:  # Pillow's errors for damaged files have no common base class
        return b""  # without a readable tag, the service applies no orientation either
    if orientation not in range(UPRIGHT + 1, 9):
        return b""
    entry = struct.pack(">HHIHH", ExifTags.Base.Orientation, 3, 1, orientation, 0)  # one SHORT
    return b"MM\0*" + struct.pack(">IH", 8, 1) + entry + bytes(4)


def _jpeg_parts(data: bytes, exif: bytes) -> Iterator[bytes]:
    """Yields the parts of a JPEG up to the end of its image (ITU-T T.81, B.1.1)."""
    yield JPEG_START
    if exif:
        yield _segment(APP1, b"Exif\0\0" + exif)
    position = len(JPEG_START)
    while position < len(data):
        found = MARKER.match(data, position)
        if found is None:
            raise MetadataNotRemoved("the JPEG data is broken; the file was not sent")
        marker, position = found[1][0], found.end()
        if marker == END_OF_IMAGE:
            yield JPEG_END
            return
        if marker in WITHOUT_LENGTH:
            yield bytes([0xFF, marker])
            continue
        length = int.from_bytes(data[position : position + 2], "big")
        payload, position = data[position + 2 : position + length], position + max(length, 2)
        if marker == APP0 and payload.startswith(JFIF):
            yield _segment(APP0, payload[:JFIF_BYTES] + bytes(2))
        elif _is_kept(marker, payload):
            yield _segment(marker, payload)
        if marker == START_OF_SCAN:
            after = MARKER_AFTER_SCAN.search(data, position)
            end = len(data) if after is None else after.start()
            yield data[position:end]
            position = end


def _is_kept(marker: int, payload: bytes) -> bool:
    if APP0 <= marker <= LAST_APP:
        return marker in KEPT_SEGMENTS and payload.startswith(KEPT_SEGMENTS[marker])
    return marker != COMMENT


def _segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def _png_parts(data: bytes, exif: bytes) -> Iterator[bytes]:
    """Yields the signature and the chunks of a PNG up to IEND (PNG specification, 5.3)."""
    yield PNG_SIGNATURE
    position = len(PNG_SIGNATURE)
    while position + 8 <= len(data):
        kind = data[position + 4 : position + 8]
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        if kind in KEPT_PNG_CHUNKS or not kind[0] & ANCILLARY:
            yield data[position:end]
        if kind == b"IHDR" and exif:
            checked = b"eXIf" + exif
            yield struct.pack(">I", len(exif)) + checked + struct.pack(">I", zlib.crc32(checked))
        if kind == b"IEND":
            return
        position = end


def _webp_parts(data: bytes, exif: bytes) -> Iterator[bytes]:
    """Yields the chunks of a WebP file (RFC 9649, 2.3)."""
    position, is_extended = 12, False
    file_end = min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    while position + 8 <= file_end:
        kind = data[position : position + 4]
        length = int.from_bytes(data[position + 4 : position + 8], "little")
        end = min(position + 8 + length + length % 2, file_end)
        if kind == b"VP8X" and end > position + 8:
            is_extended = True
            flags = data[position + 8] & ~(EXIF_FLAG | XMP_FLAG) | (EXIF_FLAG if exif else 0)
            yield data[position : position + 8] + bytes([flags]) + data[position + 9 : end]
        elif kind in KEPT_WEBP_CHUNKS:
            yield data[position:end]
        position = end
    if exif and is_extended:
        yield b"EXIF" + struct.pack("<I", len(exif)) + exif
