"""A check of a labelled data set: copies in two classes or parts, and images that are too small."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from eulerlora_client.errors import DataError
from eulerlora_client.progress import track
from training.data.digests import pixel_digest
from training.data.images import ImageParts, LabelledImage, read_image

THUMBNAIL = 16  # pixels
SIMILAR = 0.995
"""Correlation of two thumbnails from which on the images are nearly the same.

Copies of 501 images of HAM10000 in half the size, or as JPEG of quality 50, have at least 0.996;
among 50 million pairs of images of different lesions, none has more than 0.992.
"""
CHUNK = 1024


@dataclass(frozen=True, eq=False)
class PlacedImage:
    """An image and its part. text: its name, part and class."""

    image: LabelledImage
    part: str
    text: str


Copies = Sequence[PlacedImage]


@dataclass(frozen=True)
class DataCheck:
    """What a check of a data set has found.

    in_classes, in_parts: images with equal pixels in two classes, or in two parts. repeated: those
    in one part and class. similar: pairs of nearly the same image in two classes or parts. small:
    images with a side below that of the network's input.
    """

    in_classes: Sequence[Copies]
    in_parts: Sequence[Copies]
    repeated: Sequence[Copies]
    similar: Sequence[Copies]
    small: Sequence[Copies]

    def refuse_copies(self) -> None:
        """Raises DataError, with both images, for an image in two classes or two parts."""
        for what, found in (("class", self.in_classes), ("part", self.in_parts)):
            if found:
                first, second, *_ = found[0]
                raise DataError(
                    f"expected each image in one {what}, got the same pixels in {first.text} and "
                    f"{second.text}, and {len(found) - 1:,} more such copies; delete one of them"
                    f"{'' if what == 'class' else ', or give both the same group in labels.csv'}"
                )


def check_images(images: ImageParts, input_side: int) -> DataCheck:
    """Returns what one pass over all images finds. input_side: of the network, in pixels.

    Compares all pairs of images in two parts or classes.
    """
    placed = [
        PlacedImage(image, part, f"{image.name} ({part}, {images.classes[image.label].name})")
        for part, members in images.parts.items()
        for image in members
    ]
    by_digest: dict[int, list[PlacedImage]] = defaultdict(list)
    small, thumbnails = [], torch.empty(len(placed), 3 * THUMBNAIL**2)
    for index, entry in enumerate(track(placed, "checking the images", "images")):
        pixels = read_image(entry.image.name, entry.image.source)
        by_digest[pixel_digest(pixels)].append(entry)
        thumbnails[index] = _thumbnail(pixels)
        if min(pixels.shape[1:]) < input_side:
            small.append([entry])
    copies = [found for found in by_digest.values() if len(found) > 1]
    in_classes = [c for c in copies if len({entry.image.label for entry in c}) > 1]
    in_parts = [c for c in copies if len({entry.part for entry in c}) > 1]
    equal = {(id(a), id(b)) for found in copies for a in found for b in found}
    return DataCheck(
        in_classes=[_distinct(found, "label") for found in in_classes],
        in_parts=[_distinct(found, "part") for found in in_parts],
        repeated=[found for found in copies if found not in in_classes and found not in in_parts],
        similar=[pair for pair in _similar(placed, thumbnails) if _key(pair) not in equal],
        small=small,
    )


def _distinct(found: Copies, what: str) -> Copies:
    """Returns copies with the first two in different classes or parts."""

    def place(entry: PlacedImage) -> object:
        return entry.image.label if what == "label" else entry.part

    first = found[0]
    other = next(entry for entry in found if place(entry) != place(first))
    return [first, other]


def _key(pair: Copies) -> tuple[int, int]:
    return id(pair[0]), id(pair[1])


def _thumbnail(pixels: Tensor) -> Tensor:
    """Returns (3 * THUMBNAIL ** 2,), the means of the image's fields; mean 0 and norm 1.

    pixels: (3, height, width) uint8.
    """
    image = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
    reduced = image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    values = torch.from_numpy(np.array(reduced)).float().flatten()
    return F.normalize(values - values.mean(), dim=0)


def _similar(placed: Sequence[PlacedImage], thumbnails: Tensor) -> Iterator[Copies]:
    """Yields the pairs in two classes or parts whose thumbnails correlate."""
    classes = torch.tensor([entry.image.label for entry in placed])
    names = list(dict.fromkeys(entry.part for entry in placed))
    parts = torch.tensor([names.index(entry.part) for entry in placed])
    for start in range(0, len(placed), CHUNK):
        rows = slice(start, start + CHUNK)
        found = thumbnails[rows] @ thumbnails[start:].T > SIMILAR
        found &= (classes[rows, None] != classes[start:]) | (parts[rows, None] != parts[start:])
        for first, second in found.triu(1).nonzero().tolist():
            yield placed[start + first], placed[start + second]
