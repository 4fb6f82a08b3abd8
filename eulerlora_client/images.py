"""Image arguments of the clients: files below folders, their bytes, and removal of metadata."""

import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NoReturn

from PIL import ExifTags, Image

from eulerlora_contract.errors import ImageFilesError
from eulerlora_contract.problems import MetadataNotRemoved, UnreadableFile

ImageFile = str | os.PathLike[str] | bytes | BinaryIO
"""The path of an image file, its bytes, or an open binary file, which is read to its end."""


def image_bytes(image: ImageFile, strip_metadata: bool = False) -> bytes:
    """Returns the encoded image, which the service decodes.

    strip_metadata: False returns the bytes unchanged. Raises UnreadableFile if a file cannot be
    read, MetadataNotRemoved as `without_metadata`, and TypeError for other types.
    """
    content = _content(image)
    return without_metadata(content) if strip_metadata else content


def _content(image: ImageFile) -> bytes:
    if isinstance(image, bytes):
        return image
    try:
        if isinstance(image, str | os.PathLike):
            return Path(image).read_bytes()
        if hasattr(image, "read"):
            content = image.read()
            if isinstance(content, bytes):
                return content
    except OSError as error:
        raise UnreadableFile(error.strerror or str(error)) from error
    except ValueError as error:  # a NUL character in a path, or a closed file
        raise UnreadableFile(str(error)) from error
    raise TypeError(
        f"expected an image as a path, bytes or a binary file, got {type(image).__qualname__}"
    )


EXTENSIONS = (
    ".avif", ".bmp", ".dcm", ".dicom", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jpeg",
    ".jpg", ".png", ".svg", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""Extensions of images. All of them are sent, so that none is left out; the service decides which
formats it reads."""


@dataclass(frozen=True)
class FileSelection:
    """The distinct files of a run, and the number of other files in its folders."""

    files: tuple[Path, ...]
    skipped: int


def select_files(paths: Iterable[Path]) -> FileSelection:
    """Returns the given files, and all files with an image extension below the given folders.

    The order is that of the paths; files of a folder are sorted. Raises ImageFilesError if a
    folder cannot be listed, or if there is no file.
    """
    selected: dict[str, Path] = {}
    skipped = 0
    for path in paths:
        files = sorted(files_below(path)) if path.is_dir() else [path]
        for file in files:
            if file == path or file.suffix.lower() in EXTENSIONS:
                selected.setdefault(os.path.abspath(file), file)  # noqa: PTH100 - keeps links
            else:
                skipped += 1
    if not selected:
        extensions = " ".join(EXTENSIONS)
        raise ImageFilesError(f"expected image files ({extensions}), got {skipped} other files")
    return FileSelection(tuple(selected.values()), skipped)


def files_below(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder, unsorted; follows links to folders and lists each once.

    Raises ImageFilesError if a folder cannot be listed.
    """
    visited = set()  # a link may lead to a folder above it
    for parent, folders, names in os.walk(folder, onerror=_raise_unlistable, followlinks=True):
        real = Path(parent).resolve()
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        yield from (Path(parent, name) for name in names)


def _raise_unlistable(error: OSError) -> NoReturn:
    raise ImageFilesError(f"{error.filename}: cannot be listed ({error.strerror})") from error


# Exceptions of Pillow's parsers for malformed files; the list is a result of fuzzing.
PARSER_ERRORS = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, OverflowError, TypeError,
    struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
FORMATS = ("JPEG", "PNG", "WEBP")
UPRIGHT = 1
JPEG_START = b"\xff\xd8"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
APP0, APP1, APP2, APP14, LAST_APP = 0xE0, 0xE1, 0xE2, 0xEE, 0xEF
COMMENT, START_OF_SCAN, END_OF_IMAGE = 0xFE, 0xDA, 0xD9
WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD9)}
MARKER = re.compile(rb"\xff+([^\x00\xff])")
MAX_GAP_BYTES = 256  # fill bytes before a JPEG marker
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
    """Returns a JPEG, PNG or WebP file with the same pixels and without metadata.

    Removed: EXIF with place, time, camera and preview, XMP, IPTC, comments and texts, maker's
    segments, and anything behind the image. Kept: the pixels as they are encoded, and what decides
    how they look: the ICC profile, the colour chunks of PNG, and the orientation, as the only tag
    of a new EXIF block. Text within the picture stays.

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


@dataclass(frozen=True)
class JpegSegment:
    """A segment of a JPEG (ITU-T T.81, B.1.1), as positions in the file.

    skipped: bytes before its marker that belong to nothing. start, end: of its content; equal for
    a marker without content. scan_end: end of the compressed pixels that follow, otherwise `end`.
    """

    marker: int
    skipped: int
    start: int
    end: int
    scan_end: int


def jpeg_segments(data: bytes) -> Iterator[JpegSegment]:
    """Yields the segments of a JPEG up to the end of its image, which is the last one.

    Also ends where the file ends within the pixels of a scan. Raises ValueError for a file without
    a marker where one is required.
    """
    position = len(JPEG_START)
    while True:
        found = MARKER.search(data, position, position + MAX_GAP_BYTES)
        if found is None:
            raise ValueError("the JPEG data is broken")
        marker, start = found[1][0], found.end()
        end = start
        if marker != END_OF_IMAGE and marker not in WITHOUT_LENGTH:
            end += max(2, int.from_bytes(data[start : start + 2], "big"))
        scan_end = end
        if marker == START_OF_SCAN:
            after = MARKER_AFTER_SCAN.search(data, end)
            scan_end = len(data) if after is None else after.start()
        yield JpegSegment(marker, found.start() - position, start, end, scan_end)
        if marker == END_OF_IMAGE or (scan_end == len(data) and marker == START_OF_SCAN):
            return
        position = scan_end


def _jpeg_parts(data: bytes, exif: bytes) -> Iterator[bytes]:
    """Yields the parts of a JPEG without metadata."""
    yield JPEG_START
    if exif:
        yield _segment(APP1, b"Exif\0\0" + exif)
    try:
        for segment in jpeg_segments(data):
            if segment.skipped:
                raise ValueError("there are bytes between two segments")
            yield from _kept_parts(data, segment)
    except ValueError as error:
        raise MetadataNotRemoved("the JPEG data is broken; the file was not sent") from error


def _kept_parts(data: bytes, segment: JpegSegment) -> Iterator[bytes]:
    """Yields the parts of a segment that are no metadata."""
    marker, payload = segment.marker, data[segment.start + 2 : segment.end]
    if segment.start == segment.end:
        yield bytes([0xFF, marker])
    elif marker == APP0 and payload.startswith(JFIF):
        yield _segment(APP0, payload[:JFIF_BYTES] + bytes(2))
    elif _is_kept(marker, payload):
        yield _segment(marker, payload)
    yield data[segment.end : segment.scan_end]


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
