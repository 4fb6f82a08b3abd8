"""Images of the clients: files below folders, their bytes and pixels, and removal of metadata."""

import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import takewhile
from pathlib import Path, PurePath
from typing import BinaryIO, NoReturn

from PIL import Image
from PIL.ImageFile import ImageFile as OpenedImage

from eulerlora_client.colours import conversion_to_srgb, converted
from eulerlora_client.image_formats import (
    ADOBE,
    ANCILLARY,
    APP0,
    APP1,
    APP2,
    APP14,
    COMMENT,
    EXIF_IDENTIFIERS,
    ICC_IDENTIFIER,
    INDEXED,
    JFIF,
    JPEG_START,
    LAST_APP,
    ORIENTATION,
    PNG_COLOUR_TYPE_AT,
    PNG_SIGNATURE,
    SHORT,
    SNIFFED_BYTES,
    START_OF_SCAN,
    UPRIGHT,
    CodedImage,
    ImageLimits,
    JpegSegment,
    broken,
    exif_orientation,
    has_right_checksum,
    jpeg_segments,
    kind_of,
    not_read,
    png_chunk,
    read_image_file,
    sniff,
    webp_chunks,
)
from eulerlora_contract.errors import ImageFilesError
from eulerlora_contract.problems import MetadataNotRemoved, UnreadableFile

ImageFile = str | os.PathLike[str] | bytes | BinaryIO
"""The path of an image file, its bytes, or an open binary file, which is read to its end."""


def image_bytes(image: ImageFile, strip_metadata: bool = False) -> bytes:
    """Reads an encoded image, which `strip_metadata` leaves without its metadata.

    Raises:
        UnreadableFile: If a file cannot be read, MetadataNotRemoved as `without_metadata`.
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
    return without_metadata(content) if strip_metadata else content


EXTENSIONS = (
    ".avif", ".bmp", ".dcm", ".dicom", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jpeg",
    ".jpg", ".png", ".svg", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""Extensions of images. All of them are sent, so that none is left out; the service decides which
formats it reads."""


_SYSTEM_NAMES = {
    "__macosx", "__pycache__", "lost+found", "system volume information", "$recycle.bin",
    "#recycle", "#snapshot", "@eadir", "@tmp", "@recycle", "@recently-snapshot", "@sharebin",
    "thumbs.db", "desktop.ini",
}  # fmt: skip
"""Files and folders that operating systems and network drives make, in lower case."""
_RESOURCE_FORKS = "._*"
"""What macOS writes beside the files of a foreign drive."""


def hidden_name(parts: Iterable[str]) -> str | None:
    """The first part of a relative path that is hidden or of a system; None if none is."""
    for part in parts:
        if part.startswith("._"):
            return _RESOURCE_FORKS
        if part.startswith(".") or part.lower() in _SYSTEM_NAMES:
            return part
    return None


@dataclass(frozen=True)
class FileSelection:
    """The distinct files of a run, and the other files of its folders.

    `hidden` counts the files with an image extension that are left out, by the hidden or system
    folder.
    """

    files: tuple[Path, ...]
    others: tuple[Path, ...]
    hidden: Mapping[str, int]

    @property
    def notes(self) -> list[str]:
        """What is left out, in a line for each reason."""
        return left_out_notes(Counter(file_kind(file) for file in self.others), self.hidden)


def list_files(paths: Iterable[str | os.PathLike[str]], extensions: Sequence[str]) -> FileSelection:
    """Lists the given files, and all files with such an extension below the given folders.

    The order is that of the paths; files of a folder are sorted. Hidden files and those of systems
    are left out. Raises ImageFilesError for a folder that cannot be listed.
    """
    selected: dict[str, Path] = {}
    others: list[Path] = []
    hidden: Counter[str] = Counter()
    for path in map(Path, paths):
        if not path.is_dir():
            selected.setdefault(os.path.abspath(path), path)  # noqa: PTH100 - keeps links
            continue
        for file in sorted(_files_below(path)):
            name = hidden_name(file.relative_to(path).parts)
            is_image = file.name.lower().endswith(tuple(extensions))
            if name is not None:
                hidden[name] += is_image
            elif is_image:
                selected.setdefault(os.path.abspath(file), file)  # noqa: PTH100
            else:
                others.append(file)
    return FileSelection(tuple(selected.values()), tuple(others), +hidden)


def select_files(
    paths: Iterable[str | os.PathLike[str]], extensions: Sequence[str] = EXTENSIONS
) -> FileSelection:
    """As `list_files`; ImageFilesError also if there is no file."""
    selection = list_files(paths, extensions)
    if not selection.files:
        found = "".join(f"; {note}" for note in selection.notes)
        raise ImageFilesError(f"expected image files ({' '.join(extensions)}), got none{found}")
    return selection


def left_out_notes(others: Mapping[str, int], hidden: Mapping[str, int]) -> list[str]:
    """What is left out of a folder: the numbers of files of other kinds, and of hidden pictures."""
    notes = []
    if others:
        files = "1 file of another kind is" if sum(others.values()) == 1 else (
            f"{sum(others.values()):,} files of other kinds are"
        )  # fmt: skip
        convertible = any(f"({extension})" in kind for kind in others for extension in CONVERTED)
        hint = "; `eulerlora convert` makes PNG files of BMP and TIFF" if convertible else ""
        notes.append(f"{files} left out: {_counts(others)}{hint}")
    if hidden:
        notes.append(f"hidden files and those of systems are left out: {_counts(hidden)}")
    return notes


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items()))


def file_kind(file: Path) -> str:
    """The kind of a file: by its first bytes, or by its extension."""
    if not file.is_file():
        return "broken link" if file.is_symlink() else "pipe or device"
    with suppress(OSError), file.open("rb") as opened:
        return content_kind(file.name, opened.read(SNIFFED_BYTES))
    return "unreadable file"


CONVERTED = {".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}
"""Formats that `eulerlora convert` reads, by extension; a RAW photograph may begin like a TIFF."""


def content_kind(name: str, start: bytes) -> str:
    """The kind of a file by its first SNIFFED_BYTES bytes and the extension of its name."""
    extension = PurePath(name).suffix.lower() or "without an extension"
    known = kind_of(start)
    kind: str | None = sniff(start)
    if known is not None:
        kind = known.name.removeprefix("an ").removeprefix("a ")
    return extension if kind is None else f"{kind} ({extension})"


def _files_below(folder: Path) -> Iterator[Path]:
    """Unsorted; links to folders are followed, and each folder is listed once."""

    def refuse(error: OSError) -> NoReturn:
        raise ImageFilesError(f"{error.filename}: cannot be listed ({error.strerror})") from error

    visited = set()  # a link may lead to a folder above it
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = Path(parent).resolve()
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        yield from (Path(parent, name) for name in names)


# Exceptions of Pillow's parsers for malformed files; the list is a result of fuzzing.
PARSER_ERRORS = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, OverflowError, TypeError,
    struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
_TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> the transposition that undoes it."""


def opened(file: CodedImage) -> OpenedImage:
    """The image of a file, not decoded yet; Pillow gets no other parser and no metadata.

    A transparent colour or palette becomes Pillow's; that of 16 bits per sample is left out.
    """
    image = Image.open(BytesIO(file.content), formats=[file.header.format])
    if file.transparent and file.depth < 16:
        transparency: object = file.transparent
        if file.content[PNG_COLOUR_TYPE_AT] != INDEXED:
            samples = file.transparent[1::2]
            scale = 255 // (2**file.depth - 1)  # of gray; Pillow scales its pixels alone
            transparency = tuple(samples) if len(samples) == 3 else samples[0] * scale
        image.info["transparency"] = transparency
    return image


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """Applies an EXIF orientation."""
    transposition = _TO_UPRIGHT.get(orientation)
    return image if transposition is None else image.transpose(transposition)


def rgb_image(content: bytes, reduced_side_px: int | None = None) -> Image.Image:
    """The upright picture in a file in sRGB, on white where it is transparent. Raises ImageError.

    Less strict than what the model reads: damaged pixels may be gray. A JPEG may be reduced to
    `reduced_side_px` on its longer side.
    """
    file = read_image_file(content, ImageLimits(min_side=1))
    try:
        with opened(file) as image:
            if reduced_side_px is not None:
                image.draft("RGB", (reduced_side_px, reduced_side_px))
            image.load()
            narrow = upright(image, file.orientation)
            if narrow.mode.startswith("I"):  # a plain conversion would clip 16 bits
                narrow = narrow.convert("F").point(lambda level: level * (1 / 257) + 0).convert("L")
            conversion = conversion_to_srgb(file.colours, narrow.mode)
            picture = converted(narrow, conversion.transform)
            layers = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
            plain = Image.new("RGB", layers.size, "white")  # without metadata
            plain.paste(layers, mask=layers if layers.mode == "RGBA" else None)
            return plain
    except PARSER_ERRORS as error:
        raise broken(file.header.format) from error


_JFIF_BYTES = 12  # the rest of the segment is a preview and its size
_KEPT_SEGMENTS = {APP2: ICC_IDENTIFIER, APP14: ADOBE}
_KEPT_PNG_CHUNKS = {
    b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"bKGD", b"pHYs", b"cICP", b"mDCV",
    b"cLLI", b"acTL", b"fcTL", b"fdAT",
}  # fmt: skip
_KEPT_WEBP_CHUNKS = {b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ICCP", b"ANIM", b"ANMF"}
EXIF_FLAG, XMP_FLAG = 0x08, 0x04  # of the chunk VP8X (RFC 9649, 2.7.1)


def without_metadata(data: bytes) -> bytes:
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
        is_kept = marker in _KEPT_SEGMENTS and payload.startswith(_KEPT_SEGMENTS[marker])
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
        if kind in _KEPT_PNG_CHUNKS or not kind[0] & ANCILLARY:
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
            flags = content[0] & ~(EXIF_FLAG | XMP_FLAG) | (EXIF_FLAG if exif else 0)
            yield data[start - 8 : start] + bytes([flags]) + content[1:]
        elif kind in _KEPT_WEBP_CHUNKS:
            yield data[start - 8 : start] + content
    if exif and is_extended:
        yield b"EXIF" + struct.pack("<I", len(exif)) + exif
