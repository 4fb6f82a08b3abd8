"""Format, size and structure of an image file, read without decoding its pixels.

Bounds everything whose cost for a parser is out of proportion to the size of the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Literal

import imagesize

from eulerlora_client.images import START_OF_SCAN, jpeg_segments
from eulerlora_contract.problems import UnsupportedMedia, UnusableImage
from service.settings import ImageSettings

Format = Literal["JPEG", "PNG", "WEBP", "DICOM"]

MAX_SEGMENTS = 1000  # of a JPEG or WebP; 20 MB of metadata in a JPEG fill 320
MAX_SCANS = 32  # encoders write at most about 20
BYTES_PER_CHUNK = 1024  # of a PNG; encoders write 4 kB or more

MAX_PIXELS_PER_BYTE = 2000
FREE_PIXELS = 2**20
"""Up to this size, a file may have any number of pixels per byte: its cost is small."""

PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}  # start of frame, ITU-T T.81 table B.1

CPU_S_PER_MEGAPIXEL = {"JPEG": 0.004, "PNG": 0.03, "WEBP": 0.035, "DICOM": 0.05}
PROGRESSIVE_CPU_S_PER_MEGAPIXEL = 0.012


@dataclass(frozen=True)
class ImageHeader:
    """The format and size of an image file, as its first header declares them.

    width, height: in pixels, as stored; of a DICOM file, estimated from its length.
    is_progressive: of a JPEG.
    """

    format: Format
    width: int
    height: int
    is_progressive: bool = False

    @property
    def pixels(self) -> int:
        """Width times height."""
        return self.width * self.height

    @property
    def estimated_s(self) -> float:
        """Estimated CPU seconds of the decode: the mean of photographs on one core of 2023."""
        rate = CPU_S_PER_MEGAPIXEL[self.format]
        if self.is_progressive:
            rate = PROGRESSIVE_CPU_S_PER_MEGAPIXEL
        return rate * self.pixels / 1e6


def read_header(data: bytes, limits: ImageSettings) -> ImageHeader:
    """Returns the header of an image file. Takes less than a millisecond for any file.

    Raises UnsupportedMedia for any format but JPEG, PNG and WebP, and UnusableImage if the size is
    outside the limits, if a header is broken, or if the file is far too short for its pixels.
    """
    file_format = sniff(data)
    if file_format is None:
        raise UnsupportedMedia("expected a JPEG, PNG or WebP image; the content is none of these")
    markers = _markers_before_pixels(data) if file_format == "JPEG" else frozenset()
    try:
        width, height = imagesize.get(BytesIO(data))
    except (ValueError, OSError) as error:
        raise broken(file_format) from error
    check_size((width, height), limits, file_format)
    if width * height > max(FREE_PIXELS, MAX_PIXELS_PER_BYTE * len(data)):
        raise UnusableImage(
            f"expected at least one byte for {MAX_PIXELS_PER_BYTE:,} pixels; "
            f"the image is {width} x {height} and has {len(data):,} bytes"
        )
    return ImageHeader(file_format, width, height, not PROGRESSIVE.isdisjoint(markers))


def sniff(data: bytes) -> Format | None:
    """Returns the image format by its magic number; None for any other than the three served."""
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    return None


def check_size(size: tuple[int, int], limits: ImageSettings, file_format: Format) -> None:
    """Raises UnusableImage if (width, height) is outside the limits for a file of this format."""
    width, height = size
    if width < 0 or height < 0:
        raise broken(file_format)
    if min(width, height) < limits.min_side or max(width, height) > limits.max_side:
        raise UnusableImage(
            f"expected sides of {limits.min_side} to {limits.max_side} pixels; "
            f"the image is {width} x {height}"
        )
    check_pixels(size, limits.max_jpeg_pixels if file_format == "JPEG" else limits.max_pixels)


def check_pixels(size: tuple[int, int], max_pixels: int) -> None:
    """Raises UnusableImage if width times height is over a limit."""
    width, height = size
    if width * height > max_pixels:
        raise UnusableImage(
            f"expected at most {max_pixels:,} pixels; the image is {width} x {height}"
        )


def check_structure(data: bytes, file_format: Format) -> None:
    """Raises UnusableImage for a file of more parts than an encoder writes.

    Reads the whole file; 20 MB take some 20 ms.
    """
    if file_format == "JPEG":
        scans = sum(marker == START_OF_SCAN for marker in _jpeg_markers(data))
        _check_count(scans, MAX_SCANS, "scans")
    elif file_format == "PNG":
        maximum = MAX_SEGMENTS + len(data) // BYTES_PER_CHUNK
        _check_count(_png_chunks(data, maximum), maximum, "chunks")
    else:
        _check_count(_webp_chunks(data, MAX_SEGMENTS), MAX_SEGMENTS, "chunks")


def broken(file_format: Format) -> UnusableImage:
    """Returns the problem of a damaged file."""
    return UnusableImage(f"the {file_format} data is broken or truncated")


def _check_count(count: int, maximum: int, parts: str) -> None:
    if count > maximum:
        raise UnusableImage(f"expected at most {maximum:,} {parts} in a file of this size")


def _markers_before_pixels(data: bytes) -> frozenset[int]:
    markers = set()
    for marker in _jpeg_markers(data):
        if marker == START_OF_SCAN:
            break
        markers.add(marker)
    return frozenset(markers)


def _jpeg_markers(data: bytes) -> Iterator[int]:
    """Yields the markers of all segments up to the end of the image.

    Raises UnusableImage for a file without a marker where one is required, and for too many
    segments.
    """
    try:
        for count, segment in enumerate(jpeg_segments(data)):
            if count == MAX_SEGMENTS:
                raise UnusableImage(f"expected at most {MAX_SEGMENTS:,} segments in a JPEG")
            yield segment.marker
    except ValueError as error:
        raise broken("JPEG") from error


def _png_chunks(data: bytes, maximum: int) -> int:
    """Returns the number of chunks before IEND (PNG specification, 5.3); stops above a maximum."""
    position, count = 8, 0
    while position + 12 <= len(data) and count <= maximum:
        if data[position + 4 : position + 8] == b"IEND":
            break
        position += 12 + int.from_bytes(data[position : position + 4], "big")
        count += 1
    return count


def _webp_chunks(data: bytes, maximum: int) -> int:
    """Returns the number of chunks (RFC 9649, 2.3); stops above a maximum."""
    end = min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    position, count = 12, 0
    while position + 8 <= end and count <= maximum:
        length = int.from_bytes(data[position + 4 : position + 8], "little")
        position += 8 + length + length % 2
        count += 1
    return count
