"""sRGB pixels -> the network's input in [0, 1]: the same for training, evaluation and service.

The input is the whole image, (3, size, size). With a canvas, it is the regions that views show
(`eulerlora.nn.rows`): the whole image, then crops of `size` pixels of the canvas, namely its centre
and its corners upper left, upper right, lower left and lower right. Every image is resized to the
canvas, so that crops of images of all sizes show details at the same resolution.
"""

import hashlib
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from eulerlora.settings import Preprocessing

__all__ = [
    "canvas_shape",
    "content_seed",
    "network_input",
    "normalise",
    "resize",
    "shades_of_gray",
]

_RESIZED_ROWS = 256
"""Rows that are resized at a time; so a large image needs no copy in floating point."""
_Filter = Literal["bilinear", "bicubic"]


def network_input(pixels: Tensor, preprocessing: Preprocessing) -> Tensor:
    """The network's input, float32 in [0, 1]; `normalise` applies the rest.

    `pixels` are (..., 3, height, width), uint8 or floating point in [0, 1]; the input is (...,
    3, size, size), or with a canvas (..., regions, 3, size, size).
    """
    bicubic = preprocessing.interpolation == "bicubic-antialias"
    filter_: _Filter = "bicubic" if bicubic else "bilinear"
    if preprocessing.canvas is not None:
        whole = resize(pixels, preprocessing.size, filter_)
        canvas = _resized(pixels, canvas_shape(pixels, preprocessing.canvas), filter_)
        return torch.stack([whole, *_crops(canvas, preprocessing.size)], dim=-4)
    if preprocessing.shorter_side is None:
        return resize(pixels, preprocessing.size, filter_)
    height, width = pixels.shape[-2:]
    shorter, side = min(height, width), preprocessing.shorter_side
    shape = (height * side // shorter, width * side // shorter)  # rounded as by torchvision
    resized, size = _resized(pixels, shape, filter_), preprocessing.size
    top, left = (round((side - size) / 2) for side in shape)  # likewise
    return resized[..., top : top + size, left : left + size]


def canvas_shape(pixels: Tensor, canvas: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the canvas for an image (..., height, width), which it is turned like."""
    longer, shorter = canvas
    upright = pixels.shape[-2] > pixels.shape[-1]
    return (longer, shorter) if upright else (shorter, longer)


def _crops(canvas: Tensor, size: int) -> list[Tensor]:
    """The centre and the corners of a canvas (..., height, width), (..., size, size) each."""
    bottom, right = (side - size for side in canvas.shape[-2:])
    places = [(bottom // 2, right // 2), (0, 0), (0, right), (bottom, 0), (bottom, right)]
    return [canvas[..., top : top + size, left : left + size] for top, left in places]


def normalise(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Gives images (n, 3, size, size) in [0, 1] the colours that the backbone expects."""
    if preprocessing.colour_constancy != "none":
        images = shades_of_gray(images)
    channels = zip(preprocessing.mean, preprocessing.std, strict=True)
    if all(channel == (0, 1) for channel in channels):
        return images
    mean, std = (  # made on the device: a CUDA graph can hold no copy from the CPU
        torch.stack([torch.full((1, 1), value, device=images.device) for value in values])
        for values in (preprocessing.mean, preprocessing.std)
    )
    return (images - mean) / std


def resize(pixels: Tensor, size: int, filter_: _Filter = "bilinear") -> Tensor:
    """Scales pixels to [0, 1] and resizes them to a square, with antialias and without cropping.

    `pixels` are (..., 3, height, width), uint8 or floating point in [0, 1]; the result is (..., 3,
    size, size) float32.
    """
    return _resized(pixels, (size, size), filter_)


def _resized(pixels: Tensor, shape: tuple[int, int], filter_: _Filter) -> Tensor:
    """Scales pixels to [0, 1] and resizes them; values that a bicubic filter overshoots are
    clipped.
    """
    # The horizontal filter is the first in either case: the result is the same to the last bit.
    rows = [
        _filtered(part, (part.shape[-2], shape[1]), filter_)
        for part in pixels.split(_RESIZED_ROWS, dim=-2)
    ]
    resized = _filtered(torch.cat(rows, dim=-2), shape, filter_)
    return resized.clamp(0, 1) if filter_ == "bicubic" else resized


def _filtered(pixels: Tensor, shape: tuple[int, int], filter_: _Filter) -> Tensor:
    values = pixels.to(torch.float32)
    if not pixels.is_floating_point():
        values.mul_(1 / 255)
    if values.shape[-2:] == shape:
        return values
    batch = values.reshape(-1, *values.shape[-3:])
    filtered = F.interpolate(batch, size=shape, mode=filter_, align_corners=False, antialias=True)
    return filtered.reshape(*values.shape[:-2], *shape)


def content_seed(pixels: Tensor, sampling_digest: str) -> int:
    """A seed in [0, 2**32) from an image's pixels and what determines its trajectories.

    The pixels are those before resizing, of any shape and dtype; metadata has no influence.
    """
    digest = hashlib.sha256(sampling_digest.encode())
    digest.update(f"{pixels.dtype}{list(pixels.shape)}".encode())
    digest.update(pixels.contiguous().cpu().numpy().data)
    return int.from_bytes(digest.digest()[:4], "big")


_NORM = 6
"""Order of the Minkowski norm, as usual for dermatoscopic images."""
_MIN_ILLUMINANT = 1e-3


def shades_of_gray(images: Tensor) -> Tensor:
    """Divides each channel by the estimated light; an image under a gray light does not change.

    The light is the Minkowski norm of a channel over the pixels, scaled so that the mean square of
    its channels is 1 (Finlayson and Trezzi, "Shades of Gray and Colour Constancy", CIC 2004).
    Images are (..., 3, height, width) in [0, 1]; the result is clipped to [0, 1].
    """
    with torch.autocast(images.device.type, enabled=False):
        pixels = images.float()
        light = pixels.pow(_NORM).mean(dim=(-2, -1), keepdim=True).pow(1 / _NORM)
        light = light.clamp_min(_MIN_ILLUMINANT)
        brightness = light.square().mean(dim=-3, keepdim=True).sqrt()
        return (pixels * (brightness / light)).clamp(0, 1).to(images.dtype)
