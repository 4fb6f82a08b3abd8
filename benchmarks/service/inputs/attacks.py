"""Requests that cost a server more than they cost their sender."""

import re
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from PIL import Image

from benchmarks.service.inputs.images import QUALITY, synthetic_images
from benchmarks.service.load.request import Part, post_form

PHOTOGRAPH = (1400, 1050)  # about 0.4 MB
PHONE_PHOTOGRAPH = (4000, 3000)  # 12 megapixels
LARGEST = (6000, 4000)  # the limit of 24 megapixels
DISTINCT = 4
START_OF_SCAN = b"\xff\xda"
END_OF_IMAGE = b"\xff\xd9"


def batch(images: Sequence[bytes], count: int) -> bytes:
    """Returns a POST of /predict/batch with `count` files."""
    parts = [Part("files", images[index % len(images)], f"{index}.jpg") for index in range(count)]
    return post_form(parts).replace(b"POST /predict", b"POST /predict/batch", 1)


def photographs() -> list[bytes]:
    """Returns ordinary photographs."""
    return synthetic_images(DISTINCT, size=PHOTOGRAPH)


def phone_photograph() -> bytes:
    """Returns a JPEG of 12 megapixels."""
    with Image.open(BytesIO(synthetic_images(1)[0])) as image:
        return _encoded(image.resize(PHONE_PHOTOGRAPH), "JPEG", quality=QUALITY)


def large_webp() -> bytes:
    """Returns a lossless WebP of 24 megapixels and few bytes, but not too few for its size."""
    random = np.random.default_rng(0)
    stripes = random.integers(0, 256, (LARGEST[1], 1, 3), dtype=np.uint8)
    return _encoded(Image.fromarray(stripes).resize(LARGEST), "WEBP", lossless=True, method=0)


def jpeg_of_many_scans(scans: int) -> bytes:
    """Returns a progressive JPEG of 4 megapixels in which the last scan is repeated."""
    image = Image.new("RGB", (2048, 2048), "gray")
    data = _encoded(image, "JPEG", quality=QUALITY, progressive=True)
    last = [match.start() for match in re.finditer(START_OF_SCAN, data)][-1]
    scan = data[last : data.rindex(END_OF_IMAGE)]
    return data[:last] + scan * scans + END_OF_IMAGE


def _encoded(image: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()
