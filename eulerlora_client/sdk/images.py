"""Image arguments of the clients."""

import os
from pathlib import Path
from typing import BinaryIO

from eulerlora_client.contract.problems import UnreadableFile
from eulerlora_client.sdk.metadata import without_metadata

ImageFile = str | os.PathLike[str] | bytes | BinaryIO
"""The path of an image file, its bytes, or an open binary file, which is read to its end."""


def image_bytes(image: ImageFile, strip_metadata: bool = False) -> bytes:
    """Returns the encoded image, which the service decodes.

    strip_metadata: False returns the bytes unchanged. Raises UnreadableFile if a file cannot be
    read, MetadataNotRemoved as `without_metadata`, and TypeError for other types.
    """
    content = _content(image)
    return without_metadata(content) if strip_metadata else content


def _content(image: ImageFile) -> bytes:
    if isinstance(image, bytes):
        return image
    try:
        if isinstance(image, str | os.PathLike):
            return Path(image).read_bytes()
        if hasattr(image, "read"):
            content = image.read()
            if isinstance(content, bytes):
                return content
    except OSError as error:
        raise UnreadableFile(error.strerror or str(error)) from error
    except ValueError as error:  # a NUL character in a path, or a closed file
        raise UnreadableFile(str(error)) from error
    raise TypeError(
        f"expected an image as a path, bytes or a binary file, got {type(image).__qualname__}"
    )
