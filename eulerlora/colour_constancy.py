"""Colour constancy: removes the colour of the light from an image."""

import torch
from torch import Tensor

from eulerlora.settings import ColourConstancy

NORM = 6
"""Order of the Minkowski norm, as usual for dermatoscopic images."""
MIN_ILLUMINANT = 1e-3


def colour_constant(images: Tensor, method: ColourConstancy) -> Tensor:
    """Returns images as under a gray light.

    images: (..., 3, height, width) in [0, 1]. method: `none` returns them unchanged.
    """
    return images if method == "none" else shades_of_gray(images)


def shades_of_gray(images: Tensor) -> Tensor:
    """Divides each channel by the estimated light; an image under a gray light does not change.

    The light is the Minkowski norm of a channel over the pixels, scaled so that the mean square of
    its channels is 1 (Finlayson and Trezzi, "Shades of Gray and Colour Constancy", CIC 2004).
    images: (..., 3, height, width) in [0, 1]. Returns the same shape, clipped to [0, 1].
    """
    with torch.autocast(images.device.type, enabled=False):
        pixels = images.float()
        light = pixels.pow(NORM).mean(dim=(-2, -1), keepdim=True).pow(1 / NORM)
        light = light.clamp_min(MIN_ILLUMINANT)
        brightness = light.square().mean(dim=-3, keepdim=True).sqrt()
        return (pixels * (brightness / light)).clamp(0, 1).to(images.dtype)
