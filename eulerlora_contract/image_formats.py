"""Image files without their pixels: kind, size, structure, orientation and colour data.

Only JPEG, PNG and WebP are read, and only by what is in this module; the decoders of pixels get a
file without its metadata. Bounds everything whose cost for a parser is out of proportion to the
size of the file.
"""

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from eulerlora_contract.errors import ImageError, ImageSizeError, UnsupportedImageError
from eulerlora_contract.settings import PositiveInt, Settings

Format = Literal["JPEG", "PNG", "WEBP"]
"""By their names in Pillow."""


@dataclass(frozen=True)
class FileKind:
    """A kind of file that is not read.

    Attributes:
        name: With an article.
        pattern: Regular expression, of Python and of JavaScript, for the start of the file with one
            character for each byte.
        advice: What to do instead.
    """

    name: str
    pattern: str
    advice: str = "export it as JPEG, PNG or WebP"

    @property
    def is_photograph(self) -> bool:
        """True for what cameras write, and for formats that begin alike."""
        return "photograph" in self.name


_IPHONE = "on an iPhone choose Settings > Camera > Formats > Most Compatible, or export it as JPEG"
_RAW = "export it as JPEG from the camera or its program"
DICOM_KIND = FileKind(
    "a DICOM file",
    r".{128}DICM",
    "only a service whose operator allows DICOM reads it; export it as JPEG or PNG",
)
KINDS = (
    FileKind("an AVIF image", r".{4}ftyp(?:avi[fs]|.{8}(?:.{4}){0,8}avi[fs])"),
    FileKind("a HEIC photograph", r".{4}ftyp(?:hei[cxms]|hev[cxms]|heif|mif1|msf1)", _IPHONE),
    FileKind("a Canon RAW photograph", r".{4}ftypcrx |II\*\0.{4}CR\x02|II.{4}HEAPCCDR", _RAW),
    FileKind("a video", r".{4}ftyp|.{4}moov|\x1aE\xdf\xa3|RIFF.{4}AVI ", "take a photograph"),
    FileKind("a JPEG 2000 image", r"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51"),
    FileKind("a JPEG XL image", r"\0\0\0\x0cJXL \r\n\x87\n|\xff\x0a"),
    FileKind("a Fujifilm RAW photograph", r"FUJIFILMCCD-RAW", _RAW),
    FileKind("an Olympus RAW photograph", r"IIR[OS]|MMOR", _RAW),
    FileKind("a Panasonic RAW photograph", r"IIU\0", _RAW),
    FileKind("a Minolta RAW photograph", r"\0MRM", _RAW),
    FileKind("a Sigma RAW photograph", r"FOVb", _RAW),
    FileKind("a TIFF image or a RAW photograph", r"II[*+]\0|MM\0[*+]"),
    FileKind("a GIF image", r"GIF8[79]a"),
    FileKind("a BMP image", r"BM.{4}\0{4}"),
    FileKind("a Photoshop document", r"8BPS"),
    FileKind("a PDF document", r"\s*%PDF-"),
    FileKind("a PostScript document", r"%!PS|\xc5\xd0\xd3\xc6"),
    FileKind("an SVG drawing", r"(?:\xef\xbb\xbf)?\s*(?:<[?!][^>]*>\s*)*<svg[\s>]"),
    FileKind("an icon", r"\0\0[\x01\x02]\0"),
    FileKind("an OpenEXR image", r"v/1\x01"),
    FileKind("a Netpbm image", r"P[1-7]\s"),
    DICOM_KIND,
    FileKind("a ZIP archive", r"PK\x03\x04", "extract the images"),
    FileKind("a web page", r"\s*<(?:!DOCTYPE [Hh]|!doctype h|html)", "save the image itself"),
    FileKind("a Git LFS pointer", r"version https:\/\/git-lfs", "fetch it with git lfs pull"),
    FileKind("metadata that macOS stores beside a file", r"\0\x05\x16[\0\x07]", "use the file"),
)
"""The first kind whose pattern matches counts."""
SNIFFED_BYTES = 512


class SizeLimits(Settings):
    """Limits on the dimensions of an image, checked from its header."""

    min_side: PositiveInt = 32
    """Minimum width and height, in pixels."""
    max_side: PositiveInt = 8192
    """Maximum width and height, in pixels."""
    max_pixels: PositiveInt = 24_000_000
    """Maximum width times height."""
    max_jpeg_pixels: PositiveInt = 64_000_000
    """The same for a JPEG, which must be reducible to `MAX_PIXELS` while it is decoded."""


_MAX_SEGMENTS = 1000  # of a JPEG or WebP; 20 MB of metadata in a JPEG fill 320
_MAX_SCANS = 32  # encoders write at most about 20
_BYTES_PER_CHUNK = 1024  # of a PNG; encoders write 4 kB or more
_MAX_PIXELS_PER_BYTE = 2000
_FREE_PIXELS = 2**20
"""Up to this size, a file may have any number of pixels per byte: its cost is small."""
_MAX_METADATA_BYTES = 2**24
"""Of the texts and the colour profile of a PNG together, unpacked."""
_MAX_DEFLATE_RATIO = 1032

JPEG_START = b"\xff\xd8"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
UPRIGHT = 1
ORIENTATION, SHORT = 0x0112, 3  # tag and type (EXIF 2.32, 4.6)
EXIF_IDENTIFIERS = (b"Exif\0\0", b"Exif\0\xff")
ICC_IDENTIFIER = b"ICC_PROFILE\0"

APP0, APP1, APP2, APP14, LAST_APP = 0xE0, 0xE1, 0xE2, 0xEE, 0xEF
COMMENT, START_OF_SCAN, END_OF_IMAGE = 0xFE, 0xDA, 0xD9
_WITHOUT_LENGTH = range(0xD0, 0xD9)
_FRAMES = {
    **dict.fromkeys((0xC0, 0xC1, 0xC2), ""),
    **dict.fromkeys((0xC9, 0xCA), "arithmetic-coded"),  # decoders cannot tell that it is cut
    **dict.fromkeys((0xC3, 0xCB), "lossless"),
    **dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), "hierarchical"),
    0xF7: "lossless (JPEG-LS)",
}
"""Start of frame -> the kind of JPEG, if it is not read (ITU-T T.81, table B.1; T.87)."""
PROGRESSIVE = 0xC2
_MARKER = re.compile(rb"\xff[\xc0-\xfe]")  # others are reserved or without a meaning
_MAX_GAP_BYTES = 2**16  # in a JPEG, of fill bytes and of bytes that belong to no segment
_MARKER_AFTER_SCAN = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
JFIF, ADOBE = b"JFIF\0", b"Adobe"
_MIN_JFIF_BYTES, _MIN_ADOBE_BYTES = 14, 12  # below them, libjpeg ignores the segment
_JFIF_SEGMENT = b"\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0"
_ADOBE_SEGMENT = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0"  # without its last byte, the transform
RGB, YCC, _YCCK = 0, 1, 2
"""Values of the transform (Adobe Technical Note 5116); 0 is CMYK for four components."""

_PNG_DEPTH_AT, PNG_COLOUR_TYPE_AT, PNG_INTERLACED_AT = 24, 25, 28
GRAY, COLOURS, INDEXED, GRAY_ALPHA, COLOURS_ALPHA = 0, 2, 3, 4, 6
"""Colour types of PNG."""
_PNG_COLOURS = {b"cICP", b"sRGB", b"gAMA", b"cHRM"}
_PNG_TEXTS = {b"tEXt", b"zTXt", b"iTXt", b"iCCP"}
ANCILLARY = 0x20  # bit of the first letter of a chunk that a decoder may ignore

KEPT_SEGMENTS = {APP2: ICC_IDENTIFIER, APP14: ADOBE}
"""Application segments of JPEG that remain without metadata: starts of their payload by marker."""
KEPT_PNG_CHUNKS = frozenset({
    b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"bKGD", b"pHYs", b"cICP", b"mDCV",
    b"cLLI", b"acTL", b"fcTL", b"fdAT",
})  # fmt: skip
"""Ancillary chunks of PNG that remain, like all critical ones."""
KEPT_WEBP_CHUNKS = frozenset({b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ICCP", b"ANIM", b"ANMF"})
"""Chunks of WebP that remain."""


@dataclass(frozen=True)
class ImageHeader:
    """The format and size of an image file, as its first header declares them.

    Attributes:
        format: A `Format`, or the name of a container that holds an image.
        width: In pixels, as stored.
        height: Likewise.
        is_estimated: The size is estimated from the length of the file.
    """

    format: str
    width: int
    height: int
    is_progressive: bool = False
    is_estimated: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.width, self.height

    @property
    def pixels(self) -> int:
        """Width times height."""
        return self.width * self.height


@dataclass(frozen=True)
class CodedImage:
    """An image file, taken apart into what a decoder of pixels needs and its metadata.

    Attributes:
        content: The file of the pixels alone, up to the end of the image.
        orientation: Of EXIF, 1 to 8.
        colours: By the name of a PNG chunk; `iCCP` is the ICC profile of any format, unpacked, and
            None if it is damaged.
        sampling: The horizontal and vertical factors of a JPEG's components.
        has_colour_marker: Of a JPEG whose own markers say how colours are stored.
        depth: Bits per sample of a PNG.
        transparent: The chunk tRNS of a PNG, without the bits that have no meaning.
        ignored: Damaged parts that are left out, for people; those of `colours` are None there.
    """

    header: ImageHeader
    content: bytes
    orientation: int = UPRIGHT
    colours: Mapping[str, bytes | None] = field(default_factory=dict)
    is_animated: bool = False
    sampling: tuple[tuple[int, int], ...] = ()
    has_colour_marker: bool = False
    depth: int = 8
    transparent: bytes = b""
    ignored: tuple[str, ...] = ()


def known_kind(data: bytes) -> FileKind | None:
    """The known kind of a file that is not read, by its first bytes."""
    start = data[:SNIFFED_BYTES].decode("latin-1")
    return next((kind for kind in KINDS if re.match(kind.pattern, start, re.DOTALL)), None)


def not_read(data: bytes) -> str:
    """What was expected, and what a file of another kind is, by its first bytes."""
    kind, content = known_kind(data), "the content is no known kind of image"
    if kind is not None:
        content = f"this is {kind.name}: {kind.advice}"
    return f"expected a JPEG, PNG or WebP image; {content}"


def sniff(data: bytes) -> Format | None:
    """The image format by its magic number; None for any other than the three read."""
    if data.startswith(JPEG_START):
        return "JPEG"
    if data.startswith(PNG_SIGNATURE):
        return "PNG"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    return None


def read_header(data: bytes, limits: SizeLimits) -> ImageHeader:
    """Reads the header of an image file, in less than a millisecond for any file.

    Raises:
        UnsupportedImageError: For another format or coding.
        ImageError: If the size is outside the limits, a header is broken, or the file is far too
            short for its pixels.
    """
    file_format = sniff(data)
    if file_format is None:
        raise UnsupportedImageError(not_read(data))
    if file_format == "JPEG":
        header = _jpeg(data, to_first_scan=True).header
    else:
        width, height = (_png_size if file_format == "PNG" else _webp_size)(data)
        header = ImageHeader(file_format, width, height)
    check_size(header, limits)
    if header.pixels > max(_FREE_PIXELS, _MAX_PIXELS_PER_BYTE * len(data)):
        raise ImageError(
            f"expected at least one byte for {_MAX_PIXELS_PER_BYTE:,} pixels; "
            f"the image is {header.width} x {header.height} and has {len(data):,} bytes"
        )
    return header


def read_image_file(data: bytes, limits: SizeLimits) -> CodedImage:
    """Takes an image file apart; no pixel is decoded.

    Reads the whole file; 20 MB take some 20 ms.

    Raises:
        UnsupportedImageError: As `read_header`.
        ImageError: As `read_header`; for a file of more parts than an encoder writes, for one whose
            parts are damaged or end too early, and for an animation.
    """
    header = read_header(data, limits)
    read = {"JPEG": _jpeg, "PNG": _png, "WEBP": _webp}[header.format]
    file = read(data)
    if file.is_animated:
        raise ImageError("expected a single frame; the image is animated")
    return file


def check_size(header: ImageHeader, limits: SizeLimits) -> None:
    """Checks that the size is within the limits for a file of this format.

    Raises:
        ImageSizeError: If it is not.
    """
    if min(header.size) < limits.min_side or max(header.size) > limits.max_side:
        raise ImageSizeError(
            f"expected sides of {limits.min_side:,} to {limits.max_side:,} pixels; "
            f"the image is {header.width} x {header.height}"
        )
    is_jpeg = header.format == "JPEG"
    check_pixels(header.size, limits.max_jpeg_pixels if is_jpeg else limits.max_pixels)


def check_pixels(size: tuple[int, int], max_pixels: int) -> None:
    """Checks that width times height is within a limit.

    Raises:
        ImageSizeError: If it is not.
    """
    width, height = size
    if width * height > max_pixels:
        raise ImageSizeError(
            f"expected at most {max_pixels:,} pixels; the image is {width} x {height}"
        )


def broken(file_format: str) -> ImageError:
    return ImageError(f"the {file_format} data is broken or truncated")


def exif_orientation(block: bytes) -> int:
    """The orientation in an EXIF block, 1 to 8; 1 if there is none, or a damaged one.

    Reads one SHORT in the first directory, as browsers do.
    """
    tiff = block[6:] if block.startswith(EXIF_IDENTIFIERS) else block
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2], "<")
    try:
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, directory)
        for at in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, kind, values, value = struct.unpack_from(order + "HHIH", tiff, at)
            if tag == ORIENTATION:
                known = kind == SHORT and values == 1 and UPRIGHT <= value <= 8
                return int(value) if known else UPRIGHT
    except struct.error:
        pass
    return UPRIGHT


@dataclass(frozen=True)
class JpegSegment:
    """A segment of a JPEG (ITU-T T.81, B.1.1).

    Attributes:
        start: Of its content in the file.
        end: Likewise.
        scan_end: End of the compressed pixels that follow; `end` if none do.
    """

    marker: int
    start: int
    end: int
    scan_end: int


def jpeg_segments(data: bytes, to_first_scan: bool = False) -> Iterator[JpegSegment]:
    """Yields the segments of a JPEG up to the end of its image, which is the last one.

    Bytes between segments that belong to none are skipped, as by all decoders. Also ends where the
    file ends within the pixels of a scan. With `to_first_scan`, ends with the first start of a
    scan, without searching its pixels for their end.

    Raises:
        ValueError: For a file without a marker where one is required.
    """
    position, gap_bytes = len(JPEG_START), _MAX_GAP_BYTES
    while True:
        found = _MARKER.search(data, position, position + gap_bytes)
        if found is None:
            raise ValueError("the JPEG data is broken")
        gap_bytes -= found.start() - position
        marker, start = data[found.end() - 1], found.end()
        end = start
        if marker != END_OF_IMAGE and marker not in _WITHOUT_LENGTH:
            end += max(2, int.from_bytes(data[start : start + 2], "big"))
        scan_end = end
        if marker == START_OF_SCAN:
            if to_first_scan:
                yield JpegSegment(marker, start, end, end)
                return
            after = _MARKER_AFTER_SCAN.search(data, end)
            scan_end = len(data) if after is None else after.start()
        yield JpegSegment(marker, start, end, scan_end)
        if marker == END_OF_IMAGE or (scan_end == len(data) and marker == START_OF_SCAN):
            return
        position = scan_end


def _jpeg(data: bytes, to_first_scan: bool = False) -> CodedImage:
    """With `to_first_scan`, reads no more than the header.

    The coded file has all segments that are needed for the pixels. Of the application segments,
    these are those that say how colours are stored (JFIF, Adobe), rewritten without their errors.
    """
    frame, exif, profile, tables = b"", None, list[bytes](), list[bytes]()
    frame_marker = has_jfif = 0
    adobe, scans, first_scan, end = None, list[bytes](), 0, None
    try:
        for count, segment in enumerate(jpeg_segments(data, to_first_scan)):
            marker = segment.marker
            if count == _MAX_SEGMENTS:
                raise ImageError(f"expected at most {_MAX_SEGMENTS:,} segments in a JPEG")
            if marker == START_OF_SCAN:
                scans.append(data[segment.start + 2 : segment.end])
                first_scan = first_scan or segment.start - 2
                if len(scans) > _MAX_SCANS:
                    raise ImageError(f"expected at most {_MAX_SCANS} scans in a JPEG")
            elif marker == END_OF_IMAGE:
                end = segment.start
            elif not scans and marker not in _WITHOUT_LENGTH and marker != COMMENT:
                payload = data[segment.start + 2 : segment.end]
                if marker in _FRAMES:
                    if frame:
                        raise broken("JPEG")  # two headers contradict each other
                    frame, frame_marker = payload, marker
                if not APP0 <= marker <= LAST_APP:
                    tables.append(data[segment.start - 2 : segment.end])
                elif marker == APP0 and payload.startswith(JFIF):
                    has_jfif |= len(payload) >= _MIN_JFIF_BYTES
                elif marker == APP1 and exif is None and payload.startswith(EXIF_IDENTIFIERS):
                    exif = payload
                elif marker == APP2 and payload.startswith(ICC_IDENTIFIER):
                    profile.append(payload[len(ICC_IDENTIFIER) :])
                elif marker == APP14 and payload.startswith(ADOBE):
                    adobe = payload[11] if len(payload) >= _MIN_ADOBE_BYTES else adobe
    except ValueError as error:
        raise broken("JPEG") from error
    if not scans or not frame or (end is None and not to_first_scan):
        raise broken("JPEG")
    header, sampling = _jpeg_frame(frame_marker, frame)
    if not to_first_scan and not _has_all_coefficients(frame, scans, header.is_progressive):
        raise broken("JPEG")
    markers = _JFIF_SEGMENT if has_jfif else b""
    if adobe is not None:
        transform = RGB if adobe == RGB else _YCCK if len(sampling) == 4 else YCC
        markers += _ADOBE_SEGMENT + bytes([transform])
    return CodedImage(
        header,
        b"".join((JPEG_START, markers, *tables, data[first_scan:end])) if end else b"",
        UPRIGHT if exif is None else exif_orientation(exif),
        {"iCCP": _joined_profile(profile)} if profile else {},
        sampling=sampling,
        has_colour_marker=markers != b"",
    )


def _jpeg_frame(marker: int, frame: bytes) -> tuple[ImageHeader, tuple[tuple[int, int], ...]]:
    """The header and the sampling factors (ITU-T T.81, B.2.2)."""
    if len(frame) < 6 or len(frame) < 6 + 3 * frame[5]:
        raise broken("JPEG")
    bits, height, width, components = struct.unpack_from(">BHHB", frame)
    sampling = tuple((byte >> 4, byte & 15) for byte in frame[7 : 7 + 3 * components : 3])
    expected = "expected a baseline or progressive JPEG of 8 bits per sample in gray, RGB or CMYK"
    if _FRAMES[marker]:
        raise UnsupportedImageError(f"{expected}; {_FRAMES[marker]} JPEG is not supported")
    if bits != 8:
        raise UnsupportedImageError(f"{expected}; {bits} bits per sample are not supported")
    if components not in (1, 3, 4):
        raise UnsupportedImageError(f"{expected}; {components} components are not supported")
    if any(h not in range(1, 5) or v not in range(1, 5) for h, v in sampling):
        raise broken("JPEG")
    most = [max(factors) for factors in zip(*sampling, strict=True)]
    if any(most[0] % h or most[1] % v for h, v in sampling):
        raise UnsupportedImageError(
            "expected sampling factors that divide the largest ones; others are not supported"
        )
    return ImageHeader("JPEG", width, height, marker == PROGRESSIVE), sampling


def _has_all_coefficients(frame: bytes, scans: list[bytes], is_progressive: bool) -> bool:
    """True if every component is in a scan; in a progressive JPEG, all of its bits.

    Decoders do not report a scan that is missing at the end (ITU-T T.81, B.2.3 and G.1.1.1).
    """
    missing = {number: {*range(64)} for number in frame[6 : 6 + 3 * frame[5] : 3]}
    for scan in scans:
        end = 1 + 2 * (scan[0] if scan else 0)
        if len(scan) < end + 3:
            return False
        first, last, bits = scan[end : end + 3]
        if not is_progressive:
            first, last, bits = 0, 63, 0
        if bits & 15 == 0:
            for number in scan[1:end:2]:
                missing.get(number, set()).difference_update(range(first, last + 1))
    return not any(missing.values())


def _joined_profile(parts: list[bytes]) -> bytes | None:
    """ICC.1:2010, B.4; None if a part is missing or there are several profiles."""
    ordered = sorted(parts)
    numbers = [(number, len(parts)) for number in range(1, len(parts) + 1)]
    is_complete = [tuple(part[:2]) for part in ordered] == numbers
    return b"".join(part[2:] for part in ordered) if is_complete else None


def with_jpeg_transform(jpeg: bytes, transform: int) -> bytes:
    """Adds an Adobe segment that says how the colours of a JPEG are stored."""
    return jpeg[:2] + _ADOBE_SEGMENT + bytes([transform]) + jpeg[2:]


def _png_size(data: bytes) -> tuple[int, int]:
    if data[12:16] != b"IHDR" or len(data) < 33:
        raise broken("PNG")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields kind, start and end of the content of all chunks up to IEND (PNG, 5.3).

    Raises:
        ValueError: For a file without IEND.
    """
    position = len(PNG_SIGNATURE)
    while position + 12 <= len(data):
        start, end = position + 8, position + 8 + int.from_bytes(data[position : position + 4])
        if end + 4 > len(data):
            break
        kind = data[start - 4 : start]
        yield kind, start, end
        if kind == b"IEND":
            return
        position = end + 4
    raise ValueError("the file has no end")


def has_right_checksum(data: bytes, start: int, end: int) -> bool:
    """True if the chunk of a PNG with this content is undamaged."""
    checksum = int.from_bytes(data[end : end + 4])
    return zlib.crc32(memoryview(data)[start - 4 : end]) == checksum


def png_chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def _png(data: bytes) -> CodedImage:
    """The coded file has the critical chunks.

    Colours, transparency and orientation behind the first pixels are ignored, as by browsers, and
    so is a damaged chunk that a decoder does not need.
    """
    kept, colours, exif, transparent = [PNG_SIGNATURE], dict[str, bytes | None](), None, None
    ignored = list[str]()
    frames, unpacked, has_palette, has_pixels, is_animated = 0, 0, False, False, False
    most = _MAX_SEGMENTS + len(data) // _BYTES_PER_CHUNK
    try:
        for count, (kind, start, end) in enumerate(png_chunks(data)):
            if count > most:
                raise ImageError(f"expected at most {most:,} chunks in a file of this size")
            if (kind == b"IHDR") != (count == 0):
                raise broken("PNG")
            if not has_right_checksum(data, start, end):
                if kind != b"IEND" and not kind[0] & ANCILLARY:
                    raise broken("PNG")
                if kind in (b"iCCP", *_PNG_COLOURS):
                    if not has_pixels:
                        colours.setdefault(kind.decode(), None)
                else:
                    ignored.append("a chunk of the PNG with a wrong checksum is ignored")
                continue
            if kind != b"IEND" and not kind[0] & ANCILLARY:
                kept.append(data[start - 8 : end + 4])
            if kind in _PNG_TEXTS:
                text = _unpacked(kind, data[start:end])
                unpacked += (end - start) * _MAX_DEFLATE_RATIO if text is None else len(text)
                if unpacked > _MAX_METADATA_BYTES:
                    raise ImageError(
                        f"expected at most {_MAX_METADATA_BYTES >> 20} MiB of texts and colour "
                        "profile in a PNG"
                    )
                if kind == b"iCCP" and not has_pixels:
                    colours.setdefault("iCCP", text)
            elif kind == b"IDAT":
                if data[PNG_COLOUR_TYPE_AT] == INDEXED and not has_palette:
                    raise ImageError("the image has indexed colours but no palette")
                has_pixels = True
            elif kind == b"PLTE":
                has_palette = True
            elif kind == b"fdAT":
                is_animated |= frames > 0
            elif not has_pixels and kind == b"tRNS" and transparent is None:
                transparent = _transparency(data[start:end], data)
                if not transparent:
                    ignored.append("the transparency of the PNG is ignored: it is damaged")
            elif not has_pixels and kind in _PNG_COLOURS:
                colours.setdefault(kind.decode(), data[start:end])
            elif not has_pixels and kind == b"eXIf" and exif is None:
                exif = data[start:end]
            elif not has_pixels and kind == b"acTL" and not frames:
                frames = int.from_bytes(data[start : start + 4]) if end - start == 8 else 0
    except ValueError as error:
        raise broken("PNG") from error
    width, height = _png_size(data)
    return CodedImage(
        ImageHeader("PNG", width, height),
        b"".join((*kept, png_chunk(b"IEND", b""))),
        UPRIGHT if exif is None else exif_orientation(exif),
        colours,
        is_animated=is_animated or frames > 1,
        depth=data[_PNG_DEPTH_AT],
        transparent=transparent or b"",
        ignored=tuple(dict.fromkeys(ignored)),
    )


def _transparency(content: bytes, data: bytes) -> bytes:
    """A chunk tRNS of a PNG (11.3.2.1); of samples, the lowest bits count. Empty if damaged."""
    depth, colour_type = data[_PNG_DEPTH_AT], data[PNG_COLOUR_TYPE_AT]
    if colour_type == INDEXED:
        return content
    if len(content) != {GRAY: 2, COLOURS: 6}.get(colour_type):
        return b""
    samples = (int.from_bytes(content[at : at + 2]) for at in range(0, len(content), 2))
    return b"".join((sample & (2**depth - 1)).to_bytes(2) for sample in samples)


def _unpacked(kind: bytes, content: bytes) -> bytes | None:
    """The text or profile in a chunk, up to the limit; None for damaged data.

    The first bytes are the keyword and a method; those of an uncompressed text count too.
    """
    keyword, _, rest = content.partition(b"\0")
    if kind == b"tEXt" or (kind == b"iTXt" and rest[:1] != b"\1"):
        return content
    packed = rest[1:]
    if kind == b"iTXt":
        packed = rest[2:].split(b"\0", 2)[-1]
    elif rest[:1] != b"\0" or not keyword:
        return None
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed, _MAX_METADATA_BYTES + 1)
    except zlib.error:
        return None
    return text if unpacker.eof or len(text) > _MAX_METADATA_BYTES else None


def webp_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields kind, start and end of the content of all chunks (RFC 9649, 2.3)."""
    position, file_end = 12, min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    while position + 8 <= file_end:
        length = int.from_bytes(data[position + 4 : position + 8], "little")
        yield data[position : position + 4], position + 8, min(position + 8 + length, file_end)
        position += 8 + length + length % 2


def _webp_size(data: bytes) -> tuple[int, int]:
    """The size of the canvas, or of the only frame (RFC 9649, 2.5 to 2.7)."""
    kind, start, end = next(webp_chunks(data), (b"", 0, 0))
    if kind == b"VP8X" and end - start >= 10:
        canvas = data[start + 4 : start + 10]
        return 1 + int.from_bytes(canvas[:3], "little"), 1 + int.from_bytes(canvas[3:], "little")
    if kind == b"VP8L" and end - start >= 5 and data[start] == 0x2F:
        bits = int.from_bytes(data[start + 1 : start + 5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[start + 3 : start + 6] == b"\x9d\x01\x2a" and end - start >= 10:
        width, height = struct.unpack_from("<HH", data, start + 6)
        return width & 0x3FFF, height & 0x3FFF
    raise broken("WEBP")


def _webp(data: bytes) -> CodedImage:
    """The coded form is the whole file."""
    parts: dict[bytes, bytes] = {}
    frames = 0
    for count, (kind, start, end) in enumerate(webp_chunks(data), 1):
        if count > _MAX_SEGMENTS:
            raise ImageError(f"expected at most {_MAX_SEGMENTS:,} chunks in a WebP file")
        frames += kind == b"ANMF"
        if kind in (b"ICCP", b"EXIF"):
            parts.setdefault(kind, data[start:end])
    width, height = _webp_size(data)
    return CodedImage(
        ImageHeader("WEBP", width, height),
        data,
        exif_orientation(parts.get(b"EXIF", b"")),
        {"iCCP": parts[b"ICCP"]} if b"ICCP" in parts else {},
        is_animated=frames > 1,
    )
