"""A seed that is a property of the question: the same image and model give the same draws."""

import hashlib

from torch import Tensor


def content_seed(pixels: Tensor, revision: str) -> int:
    """A seed in [0, 2**32) from an image's pixels and the model's revision.

    pixels: any shape and dtype, as decoded and before resizing; the file's metadata, which
    changes nothing that is seen, does not change the seed.
    """
    digest = hashlib.sha256(revision.encode())
    digest.update(f"{pixels.dtype}{list(pixels.shape)}".encode())
    digest.update(pixels.contiguous().cpu().numpy().data)
    return int.from_bytes(digest.digest()[:4], "big")
