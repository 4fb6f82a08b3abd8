"""Upload formats: media types, headers, and the estimated time to decode a file.

No pixel is decoded here: the service imports this module, and decoders alone the next one
(`service.decoding.decode`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath

from eulerlora_contract.errors import ImageError, UnsupportedImageError
from eulerlora_contract.image_formats import Format, ImageHeader, read_header
from eulerlora_contract.problems import UnsupportedMedia, UnusableImage
from service.containers import ImageContainer, image_containers
from service.settings import ImageSettings

MEDIA_TYPES: dict[str, Format] = {"image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}
_EXTENSIONS: dict[str, Format] = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".webp": "WEBP",
}
NEUTRAL = {"", "application/octet-stream"}
"""Media types that name no format."""

_CPU_S_PER_MEGAPIXEL = {"JPEG": 0.004, "PNG": 0.03, "WEBP": 0.035}
_PROGRESSIVE_CPU_S_PER_MEGAPIXEL = 0.012


@dataclass(frozen=True)
class Declared:
    """The media type and file name that the client sent, if any."""

    media_type: str | None = None
    filename: str | None = None

    def disagrees(self, file_format: str) -> bool:
        """True if the media type or the extension belongs to another format."""
        extensions = {one.extension: one.name for one in image_containers().values()} | _EXTENSIONS
        media_type = without_parameters(self.media_type or "")
        extension = PurePath(self.filename or "").suffix.lower()
        of_type = formats_by_media_type().get(media_type)
        return (media_type not in NEUTRAL and of_type != file_format) or (
            extension != "" and extensions.get(extension) != file_format
        )


def formats_by_media_type() -> dict[str, str]:
    """The formats that an upload may declare, those of the installed containers included."""
    return {one.media_type: one.name for one in image_containers().values()} | MEDIA_TYPES


def without_parameters(media_type: str) -> str:
    """A media type in lower case, without its parameters."""
    return media_type.partition(";")[0].strip().lower()


def estimated_s(header: ImageHeader) -> float:
    """The estimated CPU seconds of a decode: the mean of photographs, one core of 2023."""
    rates = {one.name: one.cpu_s_per_megapixel for one in image_containers().values()}
    rate = (rates | _CPU_S_PER_MEGAPIXEL)[header.format]
    if header.is_progressive:
        rate = _PROGRESSIVE_CPU_S_PER_MEGAPIXEL
    return rate * header.pixels / 1e6


def container_of(data: bytes, limits: ImageSettings) -> ImageContainer | None:
    """The container that a file is, if the settings switch it on."""
    return next((one for one in limits.containers if one.is_it(data)), None)


def header_of(data: bytes, limits: ImageSettings) -> ImageHeader:
    """The header of an image file, or of a container that the settings switch on.

    Raises:
        UnsupportedMedia: For another format or coding.
        UnusableImage: As `read_header` raises ImageError.
    """
    with image_problems():
        container = container_of(data, limits)
        return (read_header if container is None else container.read_header)(data, limits)


@contextmanager
def image_problems() -> Iterator[None]:
    """Converts the errors of images to problems of the request.

    Raises:
        UnsupportedMedia: For an UnsupportedImageError.
        UnusableImage: For any other ImageError.
    """
    try:
        yield
    except UnsupportedImageError as error:
        raise UnsupportedMedia(str(error)) from error
    except ImageError as error:
        raise UnusableImage(str(error)) from error
