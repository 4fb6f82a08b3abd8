"""Synthetic image files: invalid ones, and unusual ones that the service must accept."""

import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image, ImageOps

BOMB_SIDE = 12_000  # pixels
BOMB_BYTES = 80 * 2**20


def unsupported_files(image: Image.Image) -> dict[str, bytes]:
    """Returns files of unsupported formats by name: status 415."""
    return {
        "text": b"hello",
        "SVG": b"<svg xmlns='http://www.w3.org/2000/svg' width='64' height='64'/>",
        "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
        "DICOM": bytes(128) + b"DICM" + bytes(64),
        "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
        "PSD": b"8BPS\0\x01" + bytes(60),
        **{kind: encoded(image, kind) for kind in ("EPS", "TIFF", "GIF", "BMP")},
    }


def unusable_files(image: Image.Image) -> dict[str, bytes]:
    """Returns files that must not be decoded or cannot be decoded, by name: status 422."""
    jpeg, png, webp = (encoded(image, kind) for kind in ("JPEG", "PNG", "WEBP"))
    mirrored = ImageOps.mirror(image)
    clear = image.convert("RGBA")
    clear.putalpha(0)
    middle = len(png) // 2
    frames = {"save_all": True, "append_images": [mirrored], "duration": 40}
    return {
        "truncated JPEG": jpeg[: len(jpeg) // 2],
        "truncated PNG": png[:middle],
        "truncated WebP": webp[: len(webp) // 2],
        "JPEG without its end marker": jpeg[:-2],
        "noise after a JPEG's first bytes": jpeg[:3] + np.random.default_rng(0).bytes(2000),
        "flipped bits in a PNG": png[:middle] + bytes([png[middle] ^ 0xFF]) + png[middle + 1 :],
        "PNG without its end chunk": png[:-12],
        "a wrong CRC in a PNG": png[:-5] + bytes([png[-5] ^ 1]) + png[-4:],
        "APNG": encoded(image, "PNG", **frames),
        "animated WebP": encoded(image, "WEBP", **frames),
        "fully transparent": encoded(clear, "PNG"),
        "1 x 1": encoded(Image.new("RGB", (1, 1)), "PNG"),
        "1 x 60,000": encoded(Image.new("L", (1, 60_000)), "PNG"),
        "1 x 60,000, turned by EXIF": encoded(
            Image.new("L", (60_000, 1)), "PNG", exif=_rotated_exif()
        ),
        "0 x 0": _png(_header(0, 0), _chunk(b"IEND", b"")),
    } | _bombs(jpeg, png)


def _bombs(jpeg: bytes, png: bytes) -> dict[str, bytes]:
    canvas = b"VP8X\x0a\0\0\0\0\0\0\0" + (BOMB_SIDE - 1).to_bytes(3, "little") * 2
    sides = struct.pack("<I", (BOMB_SIDE - 1) | (BOMB_SIDE - 1) << 14)
    lossless = b"VP8L\x0e\0\0\0\x2f" + sides + bytes(9)
    rows = zlib.compress(bytes(10_000 * 1251), 9)  # 1 bit per pixel, one filter byte per row
    size_offset = jpeg.index(b"\xff\xc0") + 5
    text = b"Comment\0\0" + zlib.compress(bytes(BOMB_BYTES), 9)
    after_header = 8 + 25
    return {
        "a WebP header of 144 MP": b"RIFF\x16\0\0\0WEBP" + canvas,
        "a lossless WebP of 144 MP in 34 bytes": b"RIFF\x1a\0\0\0WEBP" + lossless,
        "a PNG of 100 MP": _png(
            _header(10_000, 10_000, 1, 0), _chunk(b"IDAT", rows), _chunk(b"IEND", b"")
        ),
        "a JPEG header of 196 MP": (
            jpeg[:size_offset] + struct.pack(">HH", 14_000, 14_000) + jpeg[size_offset + 4 :]
        ),
        "80 MB of text in a PNG": png[:after_header] + _chunk(b"zTXt", text) + png[after_header:],
    }


def unusual_files(image: Image.Image) -> dict[str, bytes]:
    """Returns unusual valid files by name: status 200."""
    gray = image.convert("L")
    wide = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    half_clear = image.convert("RGBA")
    half_clear.putalpha(gray)
    png, noise = encoded(image, "PNG"), np.random.default_rng(1).bytes(200)
    return {
        "CMYK": encoded(image.convert("CMYK"), "JPEG"),
        "palette": encoded(image.quantize(16), "PNG"),
        "gray and alpha": encoded(image.convert("LA"), "PNG"),
        "16 bits": encoded(wide, "PNG"),
        "transparent in part": encoded(half_clear, "PNG"),
        "turned by EXIF": encoded(image, "JPEG", exif=_rotated_exif()),
        "garbage as EXIF": encoded(image, "PNG", exif=b"Exif\0\0II*\0\x08\0\0\0" + noise),
        "garbage as ICC profile": encoded(image, "PNG", icc_profile=noise),
        "bytes after the end": png + noise,
        "WebP": encoded(image, "WEBP"),
    }


def _rotated_exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: rotated by 90 degrees
    return exif


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    """Returns an image file written by Pillow."""
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _png(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _header(width: int, height: int, bit_depth: int = 8, colour_type: int = 2) -> bytes:
    return _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0))


def _chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))
