"""Image file -> a small JPEG without metadata, as text that stands in the report itself."""

import struct
from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from warnings import catch_warnings

import numpy as np
from PIL import Image, ImageOps

FORMATS = ("JPEG", "PNG", "WEBP")
LONGEST_SIDE = 320
MAX_BYTES = 15_000  # of the JPEG: a thousand of them stay a file that a browser opens
MAX_PIXELS = 50_000_000
QUALITIES = (82, 70, 55, 40, 25, 10)
DECODED_SIDE = 2 * LONGEST_SIDE  # a JPEG decoder may stop early here, and scaling stays smooth

# What Pillow's parsers raise on hostile bytes; a bomb is one that its header gives away.
UNREADABLE = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, OverflowError, TypeError,
    struct.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip


@dataclass(frozen=True)
class Thumbnail:
    """A JPEG of known size in pixels; `uri` holds the whole of it."""

    width: int
    height: int
    content: bytes

    @property
    def uri(self) -> str:
        """The `data:` URI."""
        return f"data:image/jpeg;base64,{b64encode(self.content).decode()}"


def thumbnail_of(path: Path) -> Thumbnail | None:
    """A picture's thumbnail, at most 320 pixels a side and 15 kB; None where it cannot be read.

    Upright by its EXIF orientation, over white where it is transparent; of its metadata nothing
    is kept. A header of more than 50 megapixels is not decoded, a pipe is not waited for.
    """
    if not path.is_file():
        return None
    try:
        with catch_warnings(action="ignore"), Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return None
            image.draft("RGB", (DECODED_SIDE, DECODED_SIDE))
            small = _plain(_scaled(_upright(image)))
    except UNREADABLE:
        return None
    return Thumbnail(small.width, small.height, _jpeg(small))


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except UNREADABLE:  # an EXIF block that is no TIFF says nothing
        return image


def _scaled(image: Image.Image) -> Image.Image:
    """The picture at the thumbnail's size, in a mode that can be scaled."""
    if image.mode.startswith("I"):  # 16-bit gray: Pillow would cut it off at 255
        gray = np.asarray(image).astype(np.int64) // 257
        image = Image.fromarray(gray.clip(0, 255).astype(np.uint8))
    elif image.mode not in ("RGB", "L"):
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    return image


def _plain(image: Image.Image) -> Image.Image:
    """RGB pixels and nothing else."""
    if image.mode == "RGBA":
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return Image.fromarray(np.asarray(image.convert("RGB")))


def _jpeg(image: Image.Image) -> bytes:
    """The best quality of JPEG that is small enough; noise alone needs the last."""
    content = b""
    for quality in QUALITIES:
        file = BytesIO()
        image.save(file, "JPEG", quality=quality, optimize=True)
        content = file.getvalue()
        if len(content) <= MAX_BYTES:
            break
    return content
