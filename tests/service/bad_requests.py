"""Synthetic image files: invalid ones, and unusual ones that the service must accept.

Invalid requests of every kind with the statuses that the service may return.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image, ImageOps

from benchmarks.service.load import BOUNDARY, Part, form, get, post, post_form

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


PREDICT = b"POST /predict HTTP/1.1\r\n"
HOST = b"Host: 127.0.0.1\r\n"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True)
class Case:
    """A request and its valid statuses; none if the client disconnects during the request."""

    name: str
    request: bytes
    statuses: frozenset[int]


def unusual_cases(jpeg: bytes) -> list[Case]:
    """Returns requests with unusual valid files."""
    files = unusual_files(_small(jpeg))
    return [Case(name, post(data), only(200)) for name, data in files.items()]


def bad_cases(jpeg: bytes) -> list[Case]:
    """Returns all requests that the service must refuse."""
    return [
        *_image_cases(jpeg),
        *_form_cases(jpeg),
        *_http_cases(jpeg),
        *_parameter_cases(jpeg),
    ]


def _small(jpeg: bytes) -> Image.Image:
    with Image.open(BytesIO(jpeg)) as image:
        return image.resize((128, 96))


def _image_cases(jpeg: bytes) -> Iterator[Case]:
    image = _small(jpeg)
    for status, files in ((415, unsupported_files(image)), (422, unusable_files(image))):
        for name, data in files.items():
            yield Case(name, post(data), only(status))


def _form_cases(jpeg: bytes) -> Iterator[Case]:
    file = Part("file", jpeg, "a.jpg", "image/jpeg")
    forms = {
        "no file in the form": [Part("other", b"1")],
        "a file without a filename": [Part("file", jpeg)],
        "two files": [file, file],
        "an empty file": [Part("file", b"", "a.jpg", "image/jpeg")],
    }
    for name, parts in forms.items():
        yield Case(name, post_form(parts), only(422))
    valid, refused = form([file]), frozenset({400, 413})
    headers = b"".join(b"X-%d: 1\r\n" % number for number in range(20))
    bodies = {
        "1,001 parts": form([Part("part", b"1")] * 1001),
        "a text field of 2 MB": form([Part("text", bytes(2_000_000)), file]),
        "many part headers": valid.replace(b"Content-Type", headers + b"Content-Type", 1),
        "a wrong boundary": valid.replace(BOUNDARY.encode(), b"another"),
        "a huge preamble": bytes(1_000_000) + b"\r\n" + valid,
        "a form that ends early": valid[:-40],
    }
    for name, body in bodies.items():
        yield Case(name, post(body, FORM), refused)
    yield Case("no boundary", post(valid, "multipart/form-data"), refused)


def _http_cases(jpeg: bytes) -> Iterator[Case]:
    yield Case("an empty body", post(b""), only(422))
    yield Case("a urlencoded body", post(b"a=b", "application/x-www-form-urlencoded"), only(415))
    yield Case("a JSON body", post(b"{}", "application/json"), only(415))
    yield Case("a declared length of 1 GB", post(jpeg, length=10**9), only(413))
    yield Case("the client disconnects during the request", post(jpeg)[:-1000], frozenset())
    yield Case("a wrong method", get("/predict"), only(405))
    plain = PREDICT + b"Content-Type: image/jpeg\r\nContent-Length: 1\r\n"
    yield Case("no Host", plain + b"\r\n1", only(400))
    yield Case("two lengths", plain + HOST + b"Content-Length: 2\r\n\r\n12", only(400))
    huge = b"X-Huge: " + b"a" * 200_000 + b"\r\n"
    yield Case("a header of 200 kB", plain + HOST + huge + b"\r\n1", frozenset({400, 431}))


def _parameter_cases(jpeg: bytes) -> Iterator[Case]:
    wrong: list[dict[str, object]] = [
        {"mode": "stoch", "samples": 0},
        {"mode": "stoch", "samples": -1},
        {"mode": "stoch", "samples": 10**9},
        {"mode": "stoch", "samples": "1e9"},
        {"mode": "stoch", "samples": "NaN"},
        {"mode": "stoch", "samples": 4.5},
        {"mode": "det", "samples": 4},
        {"mode": "stoch", "samples": [4, 4]},
        {"sample": 4},
        {"mode": "other"},
        {"seed": -1},
    ]
    for parameters in wrong:
        yield Case(f"parameters {parameters}", post(jpeg, parameters=parameters), only(422))
    unknown = post(jpeg, parameters={"model": "unknown"})
    yield Case("an unknown model", unknown, only(404))


def only(status: int) -> frozenset[int]:
    """Returns a set of one status."""
    return frozenset({status})
