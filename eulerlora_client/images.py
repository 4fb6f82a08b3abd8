"""Images as the client sends them: their bytes, without metadata if asked."""

import os
import struct
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from eulerlora_contract.image_formats import (
    ANCILLARY,
    APP0,
    APP1,
    COMMENT,
    EXIF_IDENTIFIERS,
    JFIF,
    JPEG_START,
    KEPT_PNG_CHUNKS,
    KEPT_SEGMENTS,
    KEPT_WEBP_CHUNKS,
    LAST_APP,
    ORIENTATION,
    PNG_SIGNATURE,
    SHORT,
    START_OF_SCAN,
    UPRIGHT,
    JpegSegment,
    exif_orientation,
    has_right_checksum,
    jpeg_segments,
    not_read,
    png_chunk,
    sniff,
    webp_chunks,
)
from eulerlora_contract.problems import MetadataNotRemoved, UnreadableFile

ImageFile = str | os.PathLike[str] | bytes | BinaryIO
"""The path of an image file, its bytes, or an open binary file, which is read to its end."""


def image_bytes(image: ImageFile, strip_metadata: bool = False) -> bytes:
    """Reads an encoded image, which `strip_metadata` leaves without its metadata.

    Raises:
        UnreadableFile: If a file cannot be read.
        MetadataNotRemoved: If it is no JPEG, PNG or WebP file, or too damaged.
        TypeError: For other types.
    """
    content: object = image
    try:
        if isinstance(image, str | os.PathLike):
            path = Path(image)
            if path.exists() and not path.is_file():
                raise UnreadableFile("it is not a regular file")  # a pipe would wait for its writer
            content = path.read_bytes()
        elif hasattr(image, "read"):
            content = image.read()
    except OSError as error:
        raise UnreadableFile(error.strerror or str(error)) from error
    except ValueError as error:  # a NUL character in a path, or a closed file
        raise UnreadableFile(str(error)) from error
    if not isinstance(content, bytes):
        raise TypeError(
            f"expected an image as a path, bytes or a binary file, got {type(image).__qualname__}"
        )
    return _without_metadata(content) if strip_metadata else content


_JFIF_BYTES = 12  # the rest of the segment is a preview and its size
_EXIF_FLAG, _XMP_FLAG = 0x08, 0x04  # of the chunk VP8X (RFC 9649, 2.7.1)


def _without_metadata(data: bytes) -> bytes:
    """Removes the metadata of a JPEG, PNG or WebP file; its pixels stay.

    Removed: EXIF with place, time, camera and preview, XMP, IPTC, comments and texts, maker's
    segments, and anything behind the image. Kept: the pixels as they are encoded, and what decides
    how they look: the ICC profile, the colour chunks of PNG, and the orientation, as the only tag
    of a new EXIF block. Text within the picture stays, and so does damage: the service refuses the
    result if it refuses the file.

    Raises:
        MetadataNotRemoved: For any other format, such as DICOM, whose tags are not removed, and for
            a file whose parts cannot be told apart.
    """
    file_format = sniff(data)
    if file_format == "JPEG":
        return b"".join(_jpeg_parts(data))
    if file_format == "PNG":
        return b"".join(_png_parts(data))
    if file_format == "WEBP":
        content = b"WEBP" + b"".join(_webp_parts(data))
        cut = max(0, 8 + int.from_bytes(data[4:8], "little") - len(data))
        return b"RIFF" + struct.pack("<I", min(len(content) + cut, 2**32 - 1)) + content
    raise MetadataNotRemoved(f"{not_read(data)}; the file was not sent")


def _exif(block: bytes) -> bytes:
    """An EXIF block with the orientation of another one alone; empty if it is upright."""
    orientation = exif_orientation(block)
    if orientation == UPRIGHT:
        return b""
    entry = struct.pack(">HHIHH", ORIENTATION, SHORT, 1, orientation, 0)
    return b"MM\0*" + struct.pack(">IH", 8, 1) + entry + bytes(4)


def _jpeg_parts(data: bytes) -> Iterator[bytes]:
    """Leaves out metadata, and bytes that belong to no segment."""
    try:
        segments = list(jpeg_segments(data))
    except ValueError as error:
        raise MetadataNotRemoved("the JPEG data is broken; the file was not sent") from error
    header = takewhile(lambda segment: segment.marker != START_OF_SCAN, segments)
    payloads = (data[segment.start + 2 : segment.end] for segment in header)
    blocks = (payload for payload in payloads if payload.startswith(EXIF_IDENTIFIERS))
    exif = _exif(next(blocks, b""))
    yield JPEG_START
    if exif:
        yield _segment(APP1, b"Exif\0\0" + exif)
    for segment in segments:
        yield from _kept_parts(data, segment)


def _kept_parts(data: bytes, segment: JpegSegment) -> Iterator[bytes]:
    marker, payload = segment.marker, data[segment.start + 2 : segment.end]
    is_kept = marker != COMMENT
    if APP0 <= marker <= LAST_APP:
        is_kept = marker in KEPT_SEGMENTS and payload.startswith(KEPT_SEGMENTS[marker])
    if segment.start == segment.end:
        yield bytes([0xFF, marker])
    elif marker == APP0 and payload.startswith(JFIF):
        yield _segment(APP0, payload[:_JFIF_BYTES] + bytes(2))
    elif is_kept:
        yield _segment(marker, payload)
    yield data[segment.end : segment.scan_end]


def _segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def _png_parts(data: bytes) -> Iterator[bytes]:
    """The signature and the chunks of a PNG up to IEND (PNG specification, 5.3)."""
    yield PNG_SIGNATURE
    chunks = list(_png_chunks(data))
    header = takewhile(lambda chunk: chunk[0] != b"IDAT", chunks)
    blocks = (
        chunk[8:-4]
        for kind, chunk in header
        if kind == b"eXIf" and has_right_checksum(chunk, 8, len(chunk) - 4)
    )
    exif = _exif(next(blocks, b""))
    for kind, chunk in chunks:
        if kind in KEPT_PNG_CHUNKS or not kind[0] & ANCILLARY:
            yield chunk
        if kind == b"IHDR" and exif:
            yield png_chunk(b"eXIf", exif)


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields kinds and whole chunks, also of a damaged file."""
    position, kind = len(PNG_SIGNATURE), b""
    while position + 8 <= len(data) and kind != b"IEND":
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        yield kind, data[position:end]
        position = end


def _webp_parts(data: bytes) -> Iterator[bytes]:
    chunks = list(webp_chunks(data))
    exif = _exif(next((data[start:end] for kind, start, end in chunks if kind == b"EXIF"), b""))
    is_extended = False
    for kind, start, end in chunks:
        content = data[start : end + (end - start) % 2]
        if kind == b"VP8X" and content:
            is_extended = True
            flags = content[0] & ~(_EXIF_FLAG | _XMP_FLAG) | (_EXIF_FLAG if exif else 0)
            yield data[start - 8 : start] + bytes([flags]) + content[1:]
        elif kind in KEPT_WEBP_CHUNKS:
            yield data[start - 8 : start] + content
    if exif and is_extended:
        yield b"EXIF" + struct.pack("<I", len(exif)) + exif
