"""Image containers: files of further formats that hold an image, read by other distributions.

An entry point of the group `eulerlora.image_containers` names an `ImageContainer`. The setting
`IMAGES__NAME` switches it on, by the name of the entry point.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from eulerlora_contract.errors import SettingsError
from eulerlora_contract.image_formats import ImageHeader, SizeLimits

_ENTRY_POINTS = "eulerlora.image_containers"


class ImageContainer(Protocol):
    """A format of files that hold an image.

    Attributes:
        name: Of the format, in headers and messages.
        media_type: Of uploads, such as `application/x`.
        extension: Of file names, such as `.x`.
        cpu_s_per_megapixel: To decode a usual file, on one core of 2023.
        sentences: All texts of its errors in `image_file`; a decoder can send no other one.
    """

    name: str
    media_type: str
    extension: str
    cpu_s_per_megapixel: float
    sentences: Sequence[str]

    def is_it(self, data: bytes) -> bool:
        """True if the file is of this format, by its first bytes."""

    def read_header(self, data: bytes, limits: SizeLimits) -> ImageHeader:
        """The header, read in the process of the service.

        Raises:
            UnsupportedImageError: For a file of the format that is not read.
        """

    def image_file(self, data: bytes, limits: SizeLimits) -> bytes:
        """The image as a JPEG or PNG file; called in a decoder only.

        Raises:
            UnsupportedImageError: For a file of the format that is not read.
            ImageError: For an unusable file.
        """

    def load_library(self) -> None:
        """Imports what `image_file` needs, before the sandbox forbids it.

        Raises:
            ImportError: If it is not installed.
        """


def container_names() -> list[str]:
    """The names of the installed containers, sorted; imports nothing."""
    return sorted(point.name for point in _points())


@cache
def image_containers() -> Mapping[str, ImageContainer]:
    """The installed containers by name, sorted.

    Raises:
        SettingsError: For an entry point that cannot be imported.
    """
    containers = {}
    for point in _points():
        try:
            containers[point.name] = point.load()
        except Exception as error:  # whatever the module of another distribution raises
            raise SettingsError(f"image container {point.name!r}: {error}") from error
    return containers


def check_library(name: str) -> None:
    """Checks that the library of an installed container can be imported.

    Raises:
        SettingsError: If it is missing.
    """
    try:
        image_containers()[name].load_library()
    except ImportError as error:
        (point,) = (point for point in _points() if point.name == name)
        package = "its distribution" if point.dist is None else point.dist.name
        extras = f"[{','.join(point.extras)}]" if point.extras else ""
        raise SettingsError(
            f"images.{name}: expected {error.name}; run pip install '{package}{extras}'"
        ) from error


def _points() -> list[EntryPoint]:
    return sorted(entry_points(group=_ENTRY_POINTS), key=lambda point: point.name)
