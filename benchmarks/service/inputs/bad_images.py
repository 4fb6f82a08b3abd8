"""Made-up image files that a service must refuse, of every kind, and odd ones it must answer."""

import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image, ImageOps

SIDE = 12_000  # of a bomb, in pixels
BOMB_BYTES = 80 * 2**20


def unsupported_files(picture: Image.Image) -> dict[str, bytes]:
    """By name, files of formats that are not served: 415."""
    return {
        "text": b"hello",
        "SVG": b"<svg xmlns='http://www.w3.org/2000/svg' width='64' height='64'/>",
        "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
        "DICOM": bytes(128) + b"DICM" + bytes(64),
        "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
        "PSD": b"8BPS\0\x01" + bytes(60),
        **{kind: encoded(picture, kind) for kind in ("EPS", "TIFF", "GIF", "BMP")},
    }


def unusable_files(picture: Image.Image) -> dict[str, bytes]:
    """By name, files that a decoder must not get, or gets nothing out of: 422."""
    jpeg, png, webp = (encoded(picture, kind) for kind in ("JPEG", "PNG", "WEBP"))
    mirrored = ImageOps.mirror(picture)
    clear = picture.convert("RGBA")
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
        "APNG": encoded(picture, "PNG", **frames),
        "animated WebP": encoded(picture, "WEBP", **frames),
        "fully transparent": encoded(clear, "PNG"),
        "1 x 1": encoded(Image.new("RGB", (1, 1)), "PNG"),
        "1 x 60,000": encoded(Image.new("L", (1, 60_000)), "PNG"),
        "1 x 60,000, turned by EXIF": encoded(Image.new("L", (60_000, 1)), "PNG", exif=_turned()),
        "0 x 0": _png(_header(0, 0), _chunk(b"IEND", b"")),
    } | _bombs(jpeg, png)


def _bombs(jpeg: bytes, png: bytes) -> dict[str, bytes]:
    canvas = b"VP8X\x0a\0\0\0\0\0\0\0" + (SIDE - 1).to_bytes(3, "little") * 2
    sides = struct.pack("<I", (SIDE - 1) | (SIDE - 1) << 14)
    lossless = b"VP8L\x0e\0\0\0\x2f" + sides + bytes(9)
    rows = zlib.compress(bytes(10_000 * 1251), 9)  # 1 bit a pixel, one filter byte a row
    size_at = jpeg.index(b"\xff\xc0") + 5
    text = b"Comment\0\0" + zlib.compress(bytes(BOMB_BYTES), 9)
    after_header = 8 + 25
    return {
        "a WebP header of 144 MP": b"RIFF\x16\0\0\0WEBP" + canvas,
        "a lossless WebP of 144 MP in 34 bytes": b"RIFF\x1a\0\0\0WEBP" + lossless,
        "a PNG of 100 MP": _png(
            _header(10_000, 10_000, 1, 0), _chunk(b"IDAT", rows), _chunk(b"IEND", b"")
        ),
        "a JPEG header of 196 MP": (
            jpeg[:size_at] + struct.pack(">HH", 14_000, 14_000) + jpeg[size_at + 4 :]
        ),
        "80 MB of text in a PNG": png[:after_header] + _chunk(b"zTXt", text) + png[after_header:],
    }


def odd_files(picture: Image.Image) -> dict[str, bytes]:
    """By name, unusual files that are answered: 200."""
    gray = picture.convert("L")
    wide = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    half_clear = picture.convert("RGBA")
    half_clear.putalpha(gray)
    png, noise = encoded(picture, "PNG"), np.random.default_rng(1).bytes(200)
    return {
        "CMYK": encoded(picture.convert("CMYK"), "JPEG"),
        "palette": encoded(picture.quantize(16), "PNG"),
        "gray and alpha": encoded(picture.convert("LA"), "PNG"),
        "16 bits": encoded(wide, "PNG"),
        "transparent in part": encoded(half_clear, "PNG"),
        "turned by EXIF": encoded(picture, "JPEG", exif=_turned()),
        "garbage as EXIF": encoded(picture, "PNG", exif=b"Exif\0\0II*\0\x08\0\0\0" + noise),
        "garbage as ICC profile": encoded(picture, "PNG", icc_profile=noise),
        "bytes after the end": png + noise,
        "WebP": encoded(picture, "WEBP"),
    }


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned
    return exif


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    """The bytes of an image file, as Pillow writes it."""
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _png(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _header(width: int, height: int, bit_depth: int = 8, colour_type: int = 2) -> bytes:
    return _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0))


def _chunk(kind: bytes, content: bytes) -> bytes:
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))
