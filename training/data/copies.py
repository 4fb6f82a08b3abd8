"""Copies of images: in a checkpoint's training, and in two classes or parts of a data set.

The digest of an image is the 64-bit BLAKE2b of its decoded size and pixels. A copy with another
name, other metadata or a lossless format has the same digest; a resized copy, or one that is
compressed again, has another. The digest of all orientations is also that of the mirrored and
turned copies.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from eulerlora.checkpoint.files import CALIBRATION_IMAGES, read_training_images
from eulerlora_contract.errors import DataError
from eulerlora_contract.output_files import open_output
from eulerlora_contract.printable import write_csv_rows
from eulerlora_contract.progress import track
from training.data.images import ImageParts, LabelledImage


def image_digests(images: Iterable[LabelledImage]) -> Tensor:
    """The digest of each image, (n,) int64.

    Raises:
        DataError: For an undecodable image.
    """
    digests = [_pixel_digest(image.pixels()) for image in images]
    return torch.tensor(digests, dtype=torch.int64)


def _pixel_digest(pixels: Tensor) -> int:
    """A signed 64-bit integer of the pixels (3, height, width) uint8."""
    shape = np.array(pixels.shape, np.int64)
    digest = hashlib.blake2b(shape.tobytes(), digest_size=8)
    digest.update(pixels.contiguous().numpy().data)
    return int.from_bytes(digest.digest(), "little", signed=True)


def oriented_digest(pixels: Tensor) -> int:
    """The digest of all orientations: equal for an image and its flips and quarter turns.

    It is the `_pixel_digest` of the orientation whose quadrants have the smallest sums, from the
    upper left on; of several such orientations, the smallest digest. pixels: (3, height, width).
    """
    height, width = (side // 2 for side in pixels.shape[1:])
    halves = pixels[:, :height], pixels[:, -height or None :]
    quadrants = torch.tensor(
        [[int(half[..., :width].sum()), int(half[..., -width or None :].sum())] for half in halves]
    )
    keys = [tuple(turned.flatten().tolist()) for turned in _orientations(quadrants)]
    return min(
        _pixel_digest(turned)
        for key, turned in zip(keys, _orientations(pixels), strict=True)
        if key == min(keys)
    )


def _orientations(images: Tensor) -> Iterator[Tensor]:
    """The eight flips and quarter turns of (..., height, width), the given orientation first."""
    for turned in (images, images.mT):
        for flipped in ((), (-1,), (-2,), (-1, -2)):
            yield turned.flip(flipped)


def data_digest(
    parts: Mapping[str, Sequence[LabelledImage]],
    classes: Sequence[str],
    digests: Mapping[str, Tensor],
) -> str:
    """A digest of all that a training takes from its images.

    SHA-256 of the part, name, class, group, lesion and pixels (`image_digests`) of every image, in
    hexadecimal.
    """
    sha256 = hashlib.sha256(repr(tuple(classes)).encode())
    for part, images in parts.items():
        for image, digest in zip(images, digests[part].tolist(), strict=True):
            row = (part, image.name, image.label, image.cluster, image.lesion, digest)
            sha256.update(repr(row).encode())
    return sha256.hexdigest()


@dataclass(frozen=True)
class KnownImages:
    """Those of some images that a checkpoint knows.

    Attributes:
        trained: That any training of its adapters or backbone was shown; None if it has no digests
            of these.
        fitted: That its thresholds, temperatures or prediction sets were fitted to; None likewise.
    """

    trained: list[LabelledImage] | None
    fitted: list[LabelledImage] | None


def known_images(folder: Path, images: Sequence[LabelledImage]) -> KnownImages:
    """The images that the checkpoint in `folder` was trained or calibrated on.

    Another of n images is among them by chance with a probability of n * 2**-64 for each stored
    digest.

    Raises:
        CheckpointError: For a damaged file.
    """
    stored = read_training_images(folder)
    trained = [digests for name, digests in stored.items() if name != CALIBRATION_IMAGES]
    fitted = [digests for name, digests in stored.items() if name == CALIBRATION_IMAGES]
    digests = image_digests(images) if stored else torch.tensor([])

    def among(known: Sequence[Tensor]) -> list[LabelledImage] | None:
        if not known:
            return None
        found = torch.isin(digests, torch.cat([*known])).tolist()
        return [image for image, is_found in zip(images, found, strict=True) if is_found]

    return KnownImages(among(trained), among(fitted))


def images_in_training(folder: Path, images: Sequence[LabelledImage]) -> list[LabelledImage] | None:
    """`KnownImages.trained`."""
    return known_images(folder, images).trained


def named_with_seen(
    name: str, folder: Path, images: Sequence[LabelledImage], of_fit: Tensor | None = None
) -> str:
    """The name of a measured set, with the number of its images that a checkpoint knows.

    `of_fit` has the digests of the images that something else was fitted to.
    """
    known = known_images(folder, images)
    fitted = {image.name for image in known.fitted or ()}
    if of_fit is not None:
        found = torch.isin(image_digests(images), of_fit).tolist()
        fitted |= {image.name for image, is_found in zip(images, found, strict=True) if is_found}
    counts = {"training was shown": len(known.trained or ()), "fits used": len(fitted)}
    notes = [f"{what} {count:,} of its images" for what, count in counts.items() if count]
    return f"{name} ({', '.join(notes)})" if notes else name


_THUMBNAIL = 16  # pixels
_SIMILAR = 0.995
"""Correlation of two thumbnails from which on the images are nearly the same.

Copies of 501 images of HAM10000 in half the size, or as JPEG of quality 50, have at least 0.996;
among 50 million pairs of images of different lesions, none has more than 0.992 in any of the eight
orientations.
"""
_CHUNK = 1024
_ROUNDING = 1e-4  # more than that of a squared distance in float32


@dataclass(frozen=True, eq=False)
class PlacedImage:
    image: LabelledImage
    part: str
    class_name: str

    @property
    def text(self) -> str:
        return f"{self.image.name} ({self.part}, {self.class_name})"


_Pair = tuple[PlacedImage, PlacedImage]


@dataclass(frozen=True)
class DataCheck:
    """What a check of a data set has found.

    Attributes:
        in_classes: Pairs of images with equal pixels in two classes.
        in_parts: Such pairs in two parts.
        repeated: Such pairs in one part and class, which are one group.
        similar: Pairs of nearly the same image, also turned, in two classes or parts.
        small: Images with a side below that of the network's input.
    """

    in_classes: Sequence[_Pair]
    in_parts: Sequence[_Pair]
    repeated: Sequence[_Pair]
    similar: Sequence[_Pair]
    small: Sequence[PlacedImage]

    @property
    def pairs(self) -> Mapping[str, Sequence[_Pair]]:
        return {
            "same image in two classes": self.in_classes,
            "same image in two parts": self.in_parts,
            "same image twice in a part": self.repeated,
            "nearly the same in two classes or parts": self.similar,
        }

    def refuse_copies(self) -> None:
        """Refuses an image in two classes or two parts.

        Raises:
            DataError: With the first pair.
        """
        for what, pairs in (("class", self.in_classes), ("part", self.in_parts)):
            if pairs:
                first, second = pairs[0]
                more = f", and {len(pairs) - 1:,} more pairs" if len(pairs) > 1 else ""
                raise DataError(
                    f"expected each image in one {what}, got the same pixels in {first.text} and "
                    f"{second.text}{more}; keep one of each pair"
                )


def write_copies(path: Path, check: DataCheck) -> None:
    """Writes each pair of a check once to a CSV file.

    Raises:
        StorageError: The disk is full.
    """
    kinds: dict[_Pair, str] = {}
    for kind, pairs in check.pairs.items():
        for pair in pairs:
            kinds.setdefault(pair, kind)
    rows = (
        (kind, *(cell for one in pair for cell in (one.image.name, one.class_name, one.part)))
        for pair, kind in kinds.items()
    )
    with open_output(path) as file:
        header = ("found", "file", "class", "part", "other_file", "other_class", "other_part")
        write_csv_rows(file, header, rows)


def check_images(images: ImageParts, input_side: int) -> DataCheck:
    """Finds copies and small images in one pass over all parts.

    Compares all pairs of images in two parts or classes. Images labelled OUTSIDE are a class.
    `input_side` is that of the network, in pixels.
    """
    names = (*images.class_names, "none of the classes")
    placed = [
        PlacedImage(image, part, names[image.label])
        for part, members in images.parts.items()
        for image in members
    ]
    by_digest: dict[int, list[PlacedImage]] = defaultdict(list)
    small, thumbnails = [], torch.empty(len(placed), 3, _THUMBNAIL, _THUMBNAIL)
    for index, entry in enumerate(track(placed, "checking the images", "images")):
        pixels = entry.image.pixels()
        by_digest[_pixel_digest(pixels)].append(entry)
        thumbnails[index] = _thumbnail(pixels)
        if min(pixels.shape[1:]) < input_side:
            small.append(entry)
    copies = [same for same in by_digest.values() if len(same) > 1]
    pairs = [(first, other) for first, *others in copies for other in others]
    equal = {(id(a), id(b)) for same in copies for a in same for b in same}
    return DataCheck(
        in_classes=[(a, b) for a, b in pairs if a.image.label != b.image.label],
        in_parts=[(a, b) for a, b in pairs if a.part != b.part],
        repeated=[(a, b) for a, b in pairs if (a.image.label, a.part) == (b.image.label, b.part)],
        similar=[(a, b) for a, b in _similar(placed, thumbnails) if (id(a), id(b)) not in equal],
        small=small,
    )


def _thumbnail(pixels: Tensor) -> Tensor:
    """The means of the image's fields, (3, THUMBNAIL, THUMBNAIL), with mean 0 and norm 1."""
    image = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
    reduced = image.resize((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BOX)
    values = torch.from_numpy(np.array(reduced)).permute(2, 0, 1).float()
    return F.normalize((values - values.mean()).flatten(), dim=0).view(values.shape)


def _similar(placed: Sequence[PlacedImage], thumbnails: Tensor) -> Iterator[_Pair]:
    """Yields the pairs in two classes or parts that correlate in one of the eight orientations.

    The mean of all orientations is a projection, and the same for a turned image. So thumbnails
    that correlate have means at least as near to each other as they are, which few others have.
    """
    classes = torch.tensor([entry.image.label for entry in placed])
    names = list(dict.fromkeys(entry.part for entry in placed))
    parts = torch.tensor([names.index(entry.part) for entry in placed])
    means = torch.stack([*_orientations(thumbnails)]).mean(dim=0)
    # (n, values): one of the fields that are equal, weighted by the root of their number
    rows, columns = torch.tril_indices(_THUMBNAIL // 2, _THUMBNAIL // 2)
    fields = torch.where(rows == columns, 4.0, 8.0).sqrt() * means[..., rows, columns]
    fields = fields.flatten(1)
    squares = fields.square().sum(dim=1)
    for start in range(0, len(placed), _CHUNK):
        block = slice(start, start + _CHUNK)
        squared_distances = squares[block, None] + squares[start:]
        squared_distances -= 2 * fields[block] @ fields[start:].T
        near = squared_distances <= 2 * (1 - _SIMILAR) + _ROUNDING
        near &= (classes[block, None] != classes[start:]) | (parts[block, None] != parts[start:])
        for pairs in (start + near.triu(1).nonzero()).split(_CHUNK):
            first, second = thumbnails[pairs[:, 0]], thumbnails[pairs[:, 1]]
            products = [(turned * second).sum(dim=(1, 2, 3)) for turned in _orientations(first)]
            similar = torch.stack(products).amax(dim=0) > _SIMILAR
            for one, other in pairs[similar].tolist():
                yield placed[one], placed[other]
