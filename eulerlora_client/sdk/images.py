"""What a caller may give as an image -> the bytes of its file."""

import os
from pathlib import Path
from typing import BinaryIO

from eulerlora_client.contract.problems import UnreadableFile

ImageFile = str | os.PathLike[str] | bytes | BinaryIO
"""The path of an image file, its bytes, or a binary file that is read to its end."""


def content_of(image: ImageFile) -> bytes:
    """The bytes to send, as they are: the service decodes them.

    Raises UnreadableFile for a file that cannot be read, TypeError for anything that is none.
    """
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
    except ValueError as error:  # a NUL in a path, or a closed file
        raise UnreadableFile(str(error)) from error
    raise TypeError(
        f"wanted an image as a path, bytes or a binary file, not {type(image).__qualname__}"
    )
