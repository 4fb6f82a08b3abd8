"""What a picture's pixels say of its quality: size, brightness, clipping and sharpness."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from eulerlora_client.contract.triage import ImageQuality

WORKING_SIDE_PX = 128
"""Longer side at which brightness, clipping and sharpness are measured."""

BLACK = 5
WHITE = 250

Luma = NDArray[np.float32]


def measure_quality(image: Image.Image) -> ImageQuality:
    """The quality of a picture, of any mode that has a gray form.

    All but the size is measured on the luma (ITU-R BT.601) with its longer side reduced to 128
    pixels, so that the same scene gives the same figures at every resolution; a smaller picture
    is taken as it is.
    """
    luma = _working_luma(image)
    return ImageQuality(
        width=image.width,
        height=image.height,
        brightness=float(luma.mean(dtype=np.float64) / 255),
        dark_share=float((luma <= BLACK).mean()),
        bright_share=float((luma >= WHITE).mean()),
        sharpness=laplacian_variance(luma),
    )


def laplacian_variance(luma: Luma) -> float:
    """Variance of the four-neighbour Laplacian inside the border; 0 below three pixels a side.

    The focus measure LAPV of Pech-Pacheco, Cristobal, Chamorro-Martinez and Fernandez-Valdivia,
    "Diatom autofocusing in brightfield microscopy", ICPR 2000, vol. 3, 314-317.
    """
    if min(luma.shape) < 3:
        return 0.0
    exact = luma.astype(np.float64)
    neighbours = exact[:-2, 1:-1] + exact[2:, 1:-1] + exact[1:-1, :-2] + exact[1:-1, 2:]
    return float((neighbours - 4 * exact[1:-1, 1:-1]).var())


def _working_luma(image: Image.Image) -> Luma:
    """(height, width) in 0..255."""
    gray = _gray(image).convert("F")
    shrink = WORKING_SIDE_PX / max(gray.size)
    if shrink < 1:
        width, height = (max(1, round(side * shrink)) for side in gray.size)
        gray = gray.resize((width, height), Image.Resampling.BILINEAR)  # Pillow's is antialiased
    return np.asarray(gray)


def _gray(image: Image.Image) -> Image.Image:
    """What the service sees: 16 bits scaled to 8, transparency over white."""
    if image.mode.startswith("I"):  # a plain conversion would clip 16 bits
        return Image.fromarray(np.asarray(image).astype(np.float32) / 257)
    if image.has_transparency_data:
        layers = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
    return image.convert("L")
