"""Image files in folders, and their upright sRGB pixels."""

import os
from pathlib import Path

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from eulerlora.images import MAX_PIXELS_VARIABLE
from eulerlora.images.decode import RgbImage, check_file_size, decode, local_limits
from eulerlora_contract.errors import ImageError, ImageSizeError

RAISED_BY = f"--max-pixels or {MAX_PIXELS_VARIABLE} raises the limit"
EXTENSIONS = (".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".webp")


def is_image_name(name: str) -> bool:
    """True if the file extension is that of a supported image format."""
    return name.lower().endswith(EXTENSIONS)


def read_image(file: Path | bytes, name: str, input_side: int | None = None) -> RgbImage:
    """Reads a file as `decode` does; the messages of its ImageErrors begin with `name`."""
    try:
        return decode(_content(file), input_side)
    except ImageSizeError as error:
        raise ImageSizeError(f"{name}: {error}; {RAISED_BY}") from error
    except ImageError as error:
        raise type(error)(f"{name}: {error}") from error
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise ImageError(f"{name}: cannot be read: {reason}") from error


def _content(file: Path | bytes) -> bytes:
    limits = local_limits()
    if isinstance(file, bytes):
        content = file
    else:
        if file.exists() and not file.is_file():  # reading a pipe might never end
            raise ImageError("expected a regular file")
        check_file_size(file.stat().st_size, limits)
        content = file.read_bytes()
    check_file_size(len(content), limits)
    return content


def unread_file(image: Image.Image) -> Path | None:
    """The JPEG or PNG file of an image that was opened by its path and not read yet.

    It can be read again without changing the image.
    """
    if type(image) not in (JpegImageFile, PngImageFile):
        return None  # a subclass has several images
    assert isinstance(image, ImageFile.ImageFile)
    if not image.filename or image.decoderconfig:
        return None
    file = Path(os.fsdecode(image.filename))
    return file if image.tile and file.is_file() else None
