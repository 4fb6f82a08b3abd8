"""The images of a request, with their headers: what decoding them will cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from eulerlora_client.contract.problems import BodyTooLarge, InvalidUpload, Problem
from service.decoding.decode import header_of
from service.decoding.header import ImageHeader
from service.http.upload import Upload
from service.settings import ImageLimits


@dataclass(frozen=True)
class RequestImage:
    """An uploaded file. header: of the image, or the problem of a file that has none."""

    upload: Upload
    header: ImageHeader | Problem

    @property
    def pixels(self) -> int:
        """Width times height; 0 without a header."""
        return 0 if isinstance(self.header, Problem) else self.header.pixels

    @property
    def estimated_s(self) -> float:
        """Estimated CPU seconds to decode it; 0 without a header."""
        return 0.0 if isinstance(self.header, Problem) else self.header.estimated_s


def images_of(uploads: Sequence[Upload], limits: ImageLimits) -> list[RequestImage]:
    """Returns the images of a request; nothing is decoded.

    Raises BodyTooLarge if they have more than `limits.max_request_pixels` pixels together.
    """
    images = [RequestImage(upload, _header(upload, limits)) for upload in uploads]
    pixels = sum(image.pixels for image in images)
    if len(images) > 1 and pixels > limits.max_request_pixels:
        raise BodyTooLarge(
            f"expected images of at most {limits.max_request_pixels:,} pixels together; "
            f"these have {pixels:,}"
        )
    return images


def _header(upload: Upload, limits: ImageLimits) -> ImageHeader | Problem:
    if not upload.content:
        return InvalidUpload("the file is empty")
    try:
        return header_of(upload.content, limits)
    except Problem as problem:
        return problem
