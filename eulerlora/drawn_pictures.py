"""Drawn pictures by which two ways to run a model are compared: spots on skin, and a plain mix.

They come from seeds, so that every machine compares the same pictures.
"""

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

HEIGHT, WIDTH = 150, 200
SPOTS = (
    ((0.90, 0.66, 0.59), (0.45, 0.26, 0.18), 0),
    ((0.93, 0.75, 0.68), (0.70, 0.45, 0.38), 1),
    ((0.80, 0.58, 0.48), (0.20, 0.13, 0.12), 0),
    ((0.95, 0.80, 0.76), (0.75, 0.25, 0.28), 0),
    ((0.55, 0.38, 0.30), (0.32, 0.28, 0.33), 1),
)
"""The colours of skin and spot in sRGB, and the seed, of each picture. The seeds are the first ones
for which no decision of the embedded model is near its boundary, where rounding of any size would
change it."""
MIN_RADIUS, MAX_RADIUS = 0.35, 0.75
"""Of a spot, relative to half the height and half the width of the picture."""
BORDER, EDGE, TEXTURE, GRAIN = 0.15, 0.06, 0.12, 0.02
"""Irregularity and width of a spot's border; contrast of its inside, and of the whole picture."""


def drawn_pictures() -> list[Tensor]:
    """Returns pictures (3, HEIGHT, WIDTH) uint8: the spots, and a mix of colours."""
    spots = [
        _spot(torch.tensor(skin), torch.tensor(inside), Generator().manual_seed(seed))
        for skin, inside, seed in SPOTS
    ]
    mix = torch.stack([_noise(Generator().manual_seed(100 + channel), 4) for channel in range(3)])
    return [_bytes(picture) for picture in (*spots, 0.5 + 0.2 * mix)]


def _spot(skin: Tensor, inside: Tensor, generator: Generator) -> Tensor:
    """Returns (3, HEIGHT, WIDTH). skin, inside: colours (3,)."""
    span = MAX_RADIUS - MIN_RADIUS
    radii = MIN_RADIUS + span * torch.rand(2, generator=generator)
    y, x = torch.linspace(-1, 1, HEIGHT)[:, None], torch.linspace(-1, 1, WIDTH)
    distance = torch.hypot(y / radii[0], x / radii[1]) + BORDER * _noise(generator, 6)
    opacity = torch.sigmoid((1 - distance) / EDGE) * (1 - TEXTURE * _noise(generator, 25).abs())
    colour = skin[:, None, None] + opacity * (inside - skin)[:, None, None]
    return colour * (1 + GRAIN * _noise(generator, 60))


def _noise(generator: Generator, cells: int) -> Tensor:
    """Returns (HEIGHT, WIDTH) noise with about `cells` details along a side."""
    coarse = torch.randn(1, 1, cells, cells, generator=generator)
    return F.interpolate(coarse, (HEIGHT, WIDTH), mode="bicubic", align_corners=True)[0, 0]


def _bytes(picture: Tensor) -> Tensor:
    return (255 * picture.clamp(0, 1)).round().to(torch.uint8)
