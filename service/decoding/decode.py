"""The pixels of an uploaded file; only decoders import this module."""

from dataclasses import replace

from eulerlora.images.decode import RgbImage
from eulerlora.images.decode import decode as decode_image
from eulerlora_contract.answers import PredictionWarning, WarningCode
from eulerlora_contract.image_formats import sniff
from service.decoding.formats import Declared, container_of, image_problems
from service.settings import ImageSettings


def decode(
    data: bytes,
    limits: ImageSettings,
    declared: Declared | None = None,
    input_side: int | None = None,
) -> RgbImage:
    """The upright RGB image in `data`, as `eulerlora.images.decode` decodes it.

    Args:
        data: The whole file.
        limits: Compared with the header before pixels are decoded.
        declared: If it disagrees with the content, the content decides and the image has a warning.
        input_side: If given, of the network's input; a large JPEG is then reduced.

    Raises:
        UnsupportedMedia: For any format but JPEG, PNG, WebP and the containers of the settings.
        UnusableImage: For a file that is broken or animated, or whose header is outside the limits.
    """
    with image_problems():
        container = container_of(data, limits)
        if container is None:
            file_format, content = str(sniff(data)), data
        else:
            file_format = container.read_header(data, limits).format
            content = container.image_file(data, limits)
        image = decode_image(content, input_side, limits)
    if declared is None or not declared.disagrees(file_format):
        return image
    message = f"declared as another type, decoded as {file_format}"
    warning = PredictionWarning(code=WarningCode.DECLARED_TYPE_DIFFERS, message=message)
    return replace(image, warnings=(*image.warnings, warning))
