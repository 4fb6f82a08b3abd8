"""Small pictures, embedded in the report as data URIs."""

import binascii
import struct
from base64 import b64decode, b64encode
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from warnings import catch_warnings

from PIL import Image, ImageOps

from eulerlora_client.policy.colours import in_srgb

FORMATS = ("JPEG", "PNG", "WEBP")
SENT = {"JPEG": "image/jpeg", "PNG": "image/png"}
MAX_SIDE_PX = 320
MAX_BYTES = 15_000  # a report with a thousand thumbnails can still be opened by a browser
MAX_PIXELS = 64_000_000  # of a JPEG that the service accepts by default
MAX_SENT_SIDE_PX = 1024
QUALITIES = (82, 70, 55, 40, 25, 10)
DECODED_SIDE_PX = 2 * MAX_SIDE_PX  # lets the JPEG decoder downscale; resizing stays smooth

# Errors of Pillow's parsers for hostile bytes; the header reveals a decompression bomb.
DECODING_ERRORS = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, OverflowError, TypeError,
    struct.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip


@dataclass(frozen=True)
class Thumbnail:
    """A picture with its size in pixels."""

    width: int
    height: int
    content: bytes
    media_type: str = "image/jpeg"

    @property
    def uri(self) -> str:
        """The complete picture as a `data:` URI."""
        return f"data:{self.media_type};base64,{b64encode(self.content).decode()}"


def thumbnail_of(path: Path) -> Thumbnail | None:
    """Returns the thumbnail of an image, at most 320 pixels per side and 15 kB.

    It is upright by its EXIF orientation, in sRGB, over white where it is transparent, and has no
    metadata. Returns None for a file that cannot be decoded, for more than 64 megapixels by the
    header, and for anything that is not a regular file.
    """
    if not path.is_file():
        return None
    try:
        with catch_warnings(action="ignore"), Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return None
            image.draft("RGB", (DECODED_SIDE_PX, DECODED_SIDE_PX))
            small = _plain_rgb(_scaled(in_srgb(_upright(image))))
    except DECODING_ERRORS:
        return None
    return Thumbnail(small.width, small.height, _jpeg(small))


def sent_thumbnail(text: str) -> Thumbnail | None:
    """Returns the picture in a base64 text, unchanged, by its header.

    Returns None for other than a JPEG or PNG of at most 1,024 pixels per side.
    """
    try:
        content = b64decode(text, validate=True)
        with (
            catch_warnings(action="ignore"),
            Image.open(BytesIO(content), formats=list(SENT)) as image,
        ):
            if max(image.size) > MAX_SENT_SIDE_PX:
                return None
            return Thumbnail(image.width, image.height, content, SENT[image.format or ""])
    except (*DECODING_ERRORS, binascii.Error):
        return None


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except DECODING_ERRORS:  # a malformed EXIF block is ignored
        return image


def _scaled(image: Image.Image) -> Image.Image:
    """Returns the image at the size of the thumbnail, as L, RGB or RGBA."""
    if image.mode.startswith("I"):  # 16-bit gray: a plain conversion would clip it at 255
        image = image.convert("F").point(lambda level: level * (1 / 257) + 0).convert("L")
    elif image.mode not in ("RGB", "L"):
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    image.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX), Image.Resampling.LANCZOS)
    return image


def _plain_rgb(image: Image.Image) -> Image.Image:
    """Returns a new image with the RGB pixels and without metadata."""
    plain = Image.new("RGB", image.size, "white")
    plain.paste(image, mask=image if image.mode == "RGBA" else None)
    return plain


def _jpeg(image: Image.Image) -> bytes:
    """Returns the JPEG of the highest quality that is small enough; noise needs the lowest."""
    content = b""
    for quality in QUALITIES:
        file = BytesIO()
        image.save(file, "JPEG", quality=quality, optimize=True)
        content = file.getvalue()
        if len(content) <= MAX_BYTES:
            break
    return content
