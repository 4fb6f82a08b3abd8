"""Seeds derived from the image: the same image and model revision give the same draws."""

import hashlib

from torch import Tensor


def content_seed(pixels: Tensor, revision: str) -> int:
    """Returns a seed in [0, 2**32) from an image's pixels and the model's revision.

    pixels: any shape and dtype, as decoded and before resizing. The metadata of the image file has
    no influence.
    """
    digest = hashlib.sha256(revision.encode())
    digest.update(f"{pixels.dtype}{list(pixels.shape)}".encode())
    digest.update(pixels.contiguous().cpu().numpy().data)
    return int.from_bytes(digest.digest()[:4], "big")
