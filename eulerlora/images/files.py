"""Upright sRGB pixels of what people give: files, images of Pillow, arrays and tensors."""

import os
from collections.abc import Iterable, Iterator, Mapping
from glob import glob, has_magic
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.MpoImagePlugin import MpoImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile
from torch import Tensor

from eulerlora.images import MAX_PIXELS_VARIABLE
from eulerlora.images.decode import (
    RgbImage,
    channels_first,
    check_file_size,
    decode,
    local_limits,
    max_file_bytes,
    upright_rgb,
)
from eulerlora_contract.errors import ImageError, ImageFilesError, ImageSizeError
from eulerlora_contract.image_folders import select_files

RAISED_BY = f"--max-pixels or {MAX_PIXELS_VARIABLE} raises the limit"
EXTENSIONS = (".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".webp")

_RgbArray = npt.NDArray[np.uint8]
"""(height, width, 3), RGB."""

_Picture = Image.Image | Path | str | _RgbArray
Images = _Picture | Tensor | Iterable[_Picture]


def is_image_name(name: str) -> bool:
    """True if the file extension is that of a supported image format."""
    return name.lower().endswith(EXTENSIONS)


def image_files(path: Path | str) -> tuple[Path, ...]:
    """The images below a folder or of a pattern, sorted; a path to neither is itself an image.

    Raises:
        ImageFilesError: If there are none.
    """
    pattern = str(path)
    if Path(path).exists() or not has_magic(pattern):
        paths = [pattern]
    else:
        found = sorted(glob(pattern, recursive=True))  # noqa: PTH207 - Path has no absolute ones
        paths = [name for name in found if is_image_name(name) or Path(name).is_dir()]
    try:
        return select_files(paths, EXTENSIONS).files
    except ImageFilesError as error:
        raise ImageFilesError(f"{pattern}: {error}") from error


def read_image(file: Path | bytes, name: str, input_side: int | None = None) -> RgbImage:
    """Reads a file as `decode` does.

    Raises:
        ImageError: As `decode`, and for an unreadable file; the message begins with `name`.
    """
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


def _unread_content(image: Image.Image) -> bytes | None:
    """The JPEG, PNG or WebP file of an image that Pillow has opened and not decoded yet.

    Reading it does not change the image. None for an image of several pictures whose first one is
    not chosen.
    """
    if not isinstance(image, JpegImageFile | PngImageFile | WebPImageFile) or image.fp is None:
        return None
    if isinstance(image, MpoImageFile) and image.tell():
        return None
    position = image.fp.tell()
    image.fp.seek(0)
    content = image.fp.read(max_file_bytes(local_limits()) + 1)
    image.fp.seek(position)
    return content


_HALF_LEVEL = 0.5 / 255
"""How far rounding may take a value out of [0, 1]."""


def rgb_images(images: Images, input_side: int) -> Iterator[RgbImage]:
    """Yields every image, one in memory at a time; images as in `EulerLoRA.predict`.

    PIL images, files and arrays are uint8, upright sRGB; tensors are unchanged. Large JPEG files
    are reduced for `input_side`, also those that Pillow has opened and not decoded.

    Raises:
        ImageError: For other kinds, shapes or values, and for an unusable image.
    """
    kind = type(images).__name__
    if isinstance(images, bytes | Mapping) or not isinstance(images, Iterable):
        raise ImageError(f"expected an image or a sequence of images, got {kind}")
    if isinstance(images, np.ndarray) and images.ndim != 4:
        raise ImageError(
            "expected an array (n, height, width, 3) or a list of arrays (height, width, 3), "
            f"got {images.dtype} {images.shape}"
        )
    if isinstance(images, Tensor):
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ImageError(
                "expected a floating-point tensor (n, 3, height, width) in [0, 1], "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        if images.numel():
            low, high = (value.item() for value in images.aminmax())
            if not (low > -_HALF_LEVEL and high < 1 + _HALF_LEVEL):
                raise ImageError(
                    "expected a tensor with values in [0, 1], which the model normalises, "
                    f"got {low:.3g} to {high:.3g}"
                )
        yield from (RgbImage(pixels, ()) for pixels in images)
        return
    for index, image in enumerate(images):
        if isinstance(image, Image.Image):
            yield _of_pillow(image, index, input_side)
        elif isinstance(image, np.ndarray):
            if image.ndim != 3 or image.shape[2] != 3 or not image.size or image.dtype != np.uint8:
                raise ImageError(
                    "expected an array (height, width, 3) of uint8, got "
                    f"{image.dtype} {image.shape}"
                )
            yield RgbImage(channels_first(np.array(image)), ())
        elif isinstance(image, str | Path):
            yield read_image(Path(image), str(image), input_side)
        else:
            raise ImageError(
                "expected PIL images, paths or uint8 arrays (height, width, 3), or one tensor "
                f"(n, 3, height, width), got {type(image).__name__} in {kind}"
            )


def _of_pillow(image: Image.Image, index: int, input_side: int) -> RgbImage:
    """Reads the file of an image that is not decoded yet; an image that is reduced stays so."""
    name = os.fsdecode(getattr(image, "filename", "") or f"image {index}")
    try:
        content = _unread_content(image)
    except (OSError, ValueError) as error:  # the file is closed
        raise ImageError(f"{name}: cannot be read: its file is closed or damaged") from error
    if content is None:
        return upright_rgb(image)
    whole = read_image(content, name, input_side)
    assert isinstance(image, ImageFile.ImageFile)
    return upright_rgb(image) if image.decoderconfig else whole
