"""An uploaded file: its header, its pixels, and the problem of a file that has none."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePath

from eulerlora.images.decode import RgbImage
from eulerlora.images.decode import decode as decode_image
from eulerlora_contract.answers import PredictionWarning, WarningCode
from eulerlora_contract.errors import ImageError, UnsupportedImageError
from eulerlora_contract.image_formats import Format, ImageHeader, read_header
from eulerlora_contract.problems import UnsupportedMedia, UnusableImage
from service.decoding import dicom
from service.settings import ImageSettings

MEDIA_TYPES: dict[str, Format] = {"image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}
ALL_MEDIA_TYPES: dict[str, Format] = {**MEDIA_TYPES, dicom.MEDIA_TYPE: "DICOM"}
_EXTENSIONS: dict[str, Format] = {
    dicom.EXTENSION: "DICOM",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".webp": "WEBP",
}
NEUTRAL = {"", "application/octet-stream"}
"""Media types that name no format."""

_CPU_S_PER_MEGAPIXEL = {"JPEG": 0.004, "PNG": 0.03, "WEBP": 0.035, "DICOM": 0.05}
_PROGRESSIVE_CPU_S_PER_MEGAPIXEL = 0.012


@dataclass(frozen=True)
class Declared:
    """The media type and file name that the client sent, if any."""

    media_type: str | None = None
    filename: str | None = None

    def disagrees(self, file_format: Format) -> bool:
        """True if the media type or the extension belongs to another format."""
        media_type = without_parameters(self.media_type or "")
        extension = PurePath(self.filename or "").suffix.lower()
        return (media_type not in NEUTRAL and ALL_MEDIA_TYPES.get(media_type) != file_format) or (
            extension != "" and _EXTENSIONS.get(extension) != file_format
        )


def without_parameters(media_type: str) -> str:
    """A media type in lower case, without its parameters."""
    return media_type.partition(";")[0].strip().lower()


def estimated_s(header: ImageHeader) -> float:
    """The estimated CPU seconds of a decode: the mean of photographs, one core of 2023."""
    rate = _CPU_S_PER_MEGAPIXEL[header.format]
    if header.is_progressive:
        rate = _PROGRESSIVE_CPU_S_PER_MEGAPIXEL
    return rate * header.pixels / 1e6


def header_of(data: bytes, limits: ImageSettings) -> ImageHeader:
    """The header of an image file, or of a DICOM file if the limits allow them.

    Raises UnsupportedMedia and UnusableImage.
    """
    with _problems():
        if limits.dicom and dicom.is_dicom(data):
            return dicom.read_dicom_header(data, limits)
        return read_header(data, limits)


def decode(
    data: bytes,
    limits: ImageSettings,
    declared: Declared = Declared(),
    input_side: int | None = None,
) -> RgbImage:
    """The upright RGB image in `data`, as `eulerlora.images.decode` decodes it.

    Args:
        data: The whole file.
        limits: Compared with the header before pixels are decoded.
        declared: If it disagrees with the content, the content decides and the image has a warning.
        input_side: If given, of the network's input; a large JPEG is then reduced
            (`jpeg_reduction`).

    Raises:
        UnsupportedMedia: For any format but JPEG, PNG and WebP, and DICOM if the limits allow it.
        UnusableImage: For a file that is broken or animated, or whose header is outside the limits.
    """
    with _problems():
        file_format = header_of(data, limits).format
        content = dicom.image_file(data, limits) if file_format == "DICOM" else data
        image = decode_image(content, input_side, limits)
    if not declared.disagrees(file_format):
        return image
    message = f"declared as another type, decoded as {file_format}"
    warning = PredictionWarning(code=WarningCode.DECLARED_TYPE_DIFFERS, message=message)
    return replace(image, warnings=(*image.warnings, warning))


@contextmanager
def _problems() -> Iterator[None]:
    """Raises the errors of images as problems of the request."""
    try:
        yield
    except UnsupportedImageError as error:
        raise UnsupportedMedia(str(error)) from error
    except ImageError as error:
        raise UnusableImage(str(error)) from error
