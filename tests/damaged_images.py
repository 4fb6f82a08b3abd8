"""Small images whose chunks are missing, repeated, in another order or in contradiction."""

import itertools
import struct
import zlib
from collections.abc import Iterator, Sequence
from io import BytesIO

import numpy as np
from PIL import Image

from tests.icc_profiles import DISPLAY_P3, rgb_profile

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PERMUTED = 4  # chunks; more are only swapped in pairs
SIDE = 32


def contradictory_images() -> Iterator[bytes]:
    """Yields variants of small PNG, JPEG and WebP files; some of them are still valid."""
    files = [png_chunks(_encoded(mode, "PNG", **options)) for mode, options in PNG_KINDS]
    for chunks in files:
        for variant in (*_variants(chunks, files), *_other_png_headers(chunks)):
            yield PNG_SIGNATURE + b"".join(variant)
    photos = [jpeg_segments(_encoded(mode, "JPEG", **options)) for mode, options in JPEG_KINDS]
    for segments, scan in photos:
        for variant in _variants(segments, [others for others, _ in photos]):
            yield b"\xff\xd8" + b"".join(variant) + scan
    files = [webp_chunks(_encoded(mode, "WEBP", **options)) for mode, options in WEBP_KINDS]
    for chunks in files:
        for variant in _variants(chunks, files):
            body = b"WEBP" + b"".join(variant)
            yield b"RIFF" + struct.pack("<I", len(body)) + body


def _variants(
    chunks: Sequence[bytes], files: Sequence[Sequence[bytes]]
) -> Iterator[Sequence[bytes]]:
    """Yields the rearranged chunks, and the chunks with one of another file after the first."""
    yield from rearranged(chunks)
    for foreign in dict.fromkeys(itertools.chain(*files)):
        yield [chunks[0], foreign, *chunks[1:]]


def rearranged(chunks: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yields the chunks with one missing, one repeated or two swapped; few of them in any order."""
    for at in range(len(chunks)):
        yield [*chunks[:at], *chunks[at + 1 :]]
        yield [*chunks[: at + 1], *chunks[at:]]
    for first, second in itertools.combinations(range(len(chunks)), 2):
        swapped = list(chunks)
        swapped[first], swapped[second] = chunks[second], chunks[first]
        yield swapped
        yield [chunk for at, chunk in enumerate(chunks) if at not in (first, second)]
    if len(chunks) <= MAX_PERMUTED:
        yield from itertools.permutations(chunks)


def png_chunks(content: bytes) -> list[bytes]:
    """The chunks with their lengths and checksums."""
    chunks, at = [], len(PNG_SIGNATURE)
    while at < len(content):
        end = at + 12 + int.from_bytes(content[at : at + 4], "big")
        chunks.append(content[at:end])
        at = end
    return chunks


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk with its length and checksum."""
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def jpeg_segments(content: bytes) -> tuple[list[bytes], bytes]:
    """The segments between the start marker and the scan, and the rest from the scan."""
    segments, at = [], 2
    while content[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        segments.append(content[at:end])
        at = end
    return segments, content[at:]


def webp_chunks(content: bytes) -> list[bytes]:
    """The chunks of a RIFF container, padded to an even length."""
    chunks, at = [], 12
    while at < len(content):
        length = int.from_bytes(content[at + 4 : at + 8], "little")
        end = at + 8 + length + length % 2
        chunks.append(content[at:end])
        at = end
    return chunks


def _other_png_headers(chunks: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yields the chunks with every other colour type, bit depth and interlacing in the header."""
    fields = struct.unpack(">IIBBBBB", chunks[0][8:-4])
    for depth, colour_type, interlaced in itertools.product(
        (0, 1, 2, 4, 8, 16, 32), range(8), (0, 1, 2)
    ):
        header = struct.pack(">IIBBBBB", *fields[:2], depth, colour_type, *fields[4:6], interlaced)
        yield [png_chunk(b"IHDR", header), *chunks[1:]]


def _image(mode: str) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 4)).astype(np.uint8)
    if mode == "I;16":
        return Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    if mode == "P":
        return Image.fromarray(noise[..., :3]).quantize(5)
    return Image.fromarray(noise).convert(mode)


def _encoded(mode: str, kind: str, **options: object) -> bytes:
    file = BytesIO()
    _image(mode).save(file, kind, **options)
    return file.getvalue()


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


PROFILE = rgb_profile(DISPLAY_P3)
PNG_KINDS = (
    ("P", {}), ("P", {"transparency": bytes([0, 9, 255])}), ("P", {"icc_profile": PROFILE}),
    ("RGB", {"transparency": (1, 2, 3), "exif": _exif()}), ("RGB", {"icc_profile": PROFILE}),
    ("RGBA", {"dpi": (72, 72)}), ("L", {"transparency": 3}), ("LA", {}), ("1", {}), ("I;16", {}),
)  # fmt: skip
JPEG_KINDS = (
    ("RGB", {}), ("RGB", {"icc_profile": PROFILE, "exif": _exif()}), ("RGB", {"progressive": True}),
    ("L", {}), ("CMYK", {"icc_profile": PROFILE}), ("RGB", {"keep_rgb": True}),
)  # fmt: skip
WEBP_KINDS = (
    ("RGB", {}), ("RGB", {"lossless": True}), ("RGBA", {"icc_profile": PROFILE, "exif": _exif()}),
    ("RGBA", {"lossless": True, "xmp": b"<x/>"}),
)  # fmt: skip
