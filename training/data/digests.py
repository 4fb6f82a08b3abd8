"""Digests of images, by which a checkpoint knows the images that it was trained on.

The digest of an image is the 64-bit BLAKE2b of its decoded size and pixels. A copy with another
name, other metadata or a lossless format has the same digest; a resized copy, or one that is
compressed again, has another.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eulerlora.checkpoint.files import read_training_images
from training.data.images import LabelledImage, read_image


def image_digests(images: Iterable[LabelledImage]) -> Tensor:
    """Returns (n,) int64, the digest of each image. Raises DataError for an undecodable image."""
    digests = [pixel_digest(read_image(image.name, image.source)) for image in images]
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
    return [image for image, found in zip(images, seen, strict=True) if found]


def named_with_seen(name: str, folder: Path, images: Sequence[LabelledImage]) -> str:
    """Returns the name of a set with the number of its images that the training was shown, if any.

    folder: of the checkpoint.
    """
    seen = images_in_training(folder, images)
    return f"{name} (training was shown {len(seen):,} of its images)" if seen else name
