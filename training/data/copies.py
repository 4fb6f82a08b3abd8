"""Copies of images: in a checkpoint's training, and in two classes or parts of a data set.

The digest of an image is the 64-bit BLAKE2b of its decoded size and pixels. A copy with another
name, other metadata or a lossless format has the same digest; a resized copy, or one that is
compressed again, has another.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from eulerlora.checkpoint.files import read_training_images
from eulerlora_contract.errors import DataError
from eulerlora_contract.progress import track
from training.data.images import ImageParts, LabelledImage, pixels_of


def image_digests(images: Iterable[LabelledImage]) -> Tensor:
    """Returns (n,) int64, the digest of each image. Raises DataError for an undecodable image."""
    digests = [pixel_digest(pixels_of(image.name, image.source)) for image in images]
    return torch.tensor(digests, dtype=torch.int64)


def pixel_digest(pixels: Tensor) -> int:
    """Returns a signed 64-bit integer. pixels: (3, height, width) uint8."""
    shape = np.array(pixels.shape, np.int64)
    digest = hashlib.blake2b(shape.tobytes(), digest_size=8)
    digest.update(pixels.contiguous().numpy().data)
    return int.from_bytes(digest.digest(), "little", signed=True)


def images_in_training(folder: Path, images: Sequence[LabelledImage]) -> list[LabelledImage] | None:
    """Returns those of the images that the checkpoint in `folder` was trained on.

    They are images of any training that the checkpoint knows, of its adapters or of its backbone.
    Another of n images is among them by chance with a probability of n * 2**-64 for each stored
    digest. None if the checkpoint has no digests. Raises CheckpointError for a damaged file.
    """
    stored = read_training_images(folder)
    if not stored:
        return None
    seen = torch.isin(image_digests(images), torch.cat(list(stored.values()))).tolist()
    return [image for image, is_seen in zip(images, seen, strict=True) if is_seen]


def named_with_seen(name: str, folder: Path, images: Sequence[LabelledImage]) -> str:
    """Returns the name of a set with the number of its images that the training was shown, if any.

    folder: of the checkpoint.
    """
    seen = images_in_training(folder, images)
    return f"{name} (training was shown {len(seen):,} of its images)" if seen else name


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
        for what, copies in (("class", self.in_classes), ("part", self.in_parts)):
            if copies:
                first, second, *_ = copies[0]
                raise DataError(
                    f"expected each image in one {what}, got the same pixels in {first.text} and "
                    f"{second.text}, and {len(copies) - 1:,} more such copies; delete one of them"
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
        pixels = pixels_of(entry.image.name, entry.image.source)
        by_digest[pixel_digest(pixels)].append(entry)
        thumbnails[index] = _thumbnail(pixels)
        if min(pixels.shape[1:]) < input_side:
            small.append([entry])
    copies = [same for same in by_digest.values() if len(same) > 1]
    in_classes = _differing(copies, lambda entry: entry.image.label)
    in_parts = _differing(copies, lambda entry: entry.part)
    differing = {id(first) for first, _ in (*in_classes, *in_parts)}
    equal = {(id(a), id(b)) for same in copies for a in same for b in same}
    return DataCheck(
        in_classes=in_classes,
        in_parts=in_parts,
        repeated=[same for same in copies if id(same[0]) not in differing],
        similar=[(a, b) for a, b in _similar(placed, thumbnails) if (id(a), id(b)) not in equal],
        small=small,
    )


def _differing(
    copies: Sequence[Copies], place: Callable[[PlacedImage], object]
) -> list[tuple[PlacedImage, PlacedImage]]:
    """Returns the first image of copies in two places, and the first one in another place."""
    pairs = []
    for first, *others in copies:
        pairs += [(first, other) for other in others if place(other) != place(first)][:1]
    return pairs


def _thumbnail(pixels: Tensor) -> Tensor:
    """Returns (3 * THUMBNAIL ** 2,), the means of the image's fields; mean 0 and norm 1.

    pixels: (3, height, width) uint8.
    """
    image = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
    reduced = image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    values = torch.from_numpy(np.array(reduced)).float().flatten()
    return F.normalize(values - values.mean(), dim=0)


def _similar(
    placed: Sequence[PlacedImage], thumbnails: Tensor
) -> Iterator[tuple[PlacedImage, PlacedImage]]:
    classes = torch.tensor([entry.image.label for entry in placed])
    names = list(dict.fromkeys(entry.part for entry in placed))
    parts = torch.tensor([names.index(entry.part) for entry in placed])
    for start in range(0, len(placed), CHUNK):
        rows = slice(start, start + CHUNK)
        similar = thumbnails[rows] @ thumbnails[start:].T > SIMILAR
        similar &= (classes[rows, None] != classes[start:]) | (parts[rows, None] != parts[start:])
        for first, second in similar.triu(1).nonzero().tolist():
            yield placed[start + first], placed[start + second]
