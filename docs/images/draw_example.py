"""Draws example-lesion.jpg, the synthetic image of the README: python docs/images/draw_example.py

The image looks like a dermatoscopic photograph and shows no real lesion: a pigmented lesion with an
irregular border and a pigment network, on skin with hairs, at 600 x 450 pixels like HAM10000. It is
under the licence of this repository.
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

WIDTH, HEIGHT = 600, 450
SKIN = np.array([0.90, 0.66, 0.59])
BROWN = np.array([0.59, 0.36, 0.26])
DARK_BROWN = np.array([0.29, 0.17, 0.14])
HAIR = np.array([0.20, 0.13, 0.12])


def smooth_noise(random: np.random.Generator, scale: int) -> np.ndarray:
    """Noise with details of about `scale` pixels, with mean 0 and standard deviation 1."""
    small = random.standard_normal((HEIGHT // scale + 3, WIDTH // scale + 3)).astype(np.float32)
    large = Image.fromarray(small).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    noise = np.asarray(large)
    return (noise - noise.mean()) / noise.std()


def mix(base: np.ndarray, colour: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """`base` where `weight` is 0 and `colour` where it is 1."""
    return base + weight[..., None] * (colour - base)


def hairs(random: np.random.Generator, count: int) -> np.ndarray:
    """Opacity of thin curved hairs, (height, width)."""
    image = Image.new("L", (3 * WIDTH, 3 * HEIGHT))  # reduced at the end, for smooth edges
    draw = ImageDraw.Draw(image)
    t = np.linspace(0, 1, 60)[:, None]
    for _ in range(count):
        start, end = random.uniform(-80, [WIDTH + 80, HEIGHT + 80], size=(2, 2))
        middle = (start + end) / 2 + random.normal(0, 40, size=2)
        curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end
        draw.line([tuple(3 * point) for point in curve], int(random.integers(120, 220)), width=5)
    return np.asarray(image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)) / 255


def draw_lesion(seed: int) -> Image.Image:
    """An image that the seed determines."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(float)
    from_centre = np.hypot((x - 305) / 165, (y - 228) / 125) + 0.10 * smooth_noise(random, 70)
    from_centre += 0.035 * smooth_noise(random, 20)
    lesion = 1 / (1 + np.exp((from_centre - 1) / 0.045))
    centre = 1 / (1 + np.exp((from_centre - 0.55 + 0.15 * smooth_noise(random, 60)) / 0.09))
    # ridges where smooth noise crosses 0 form the meshes of the pigment network
    network = np.exp(-((smooth_noise(random, 9) / 0.35) ** 2)) * lesion * (1 - 0.6 * centre)

    shade = 0.025 * smooth_noise(random, 120) + 0.012 * smooth_noise(random, 6)
    pixels = np.broadcast_to(SKIN, (HEIGHT, WIDTH, 3)) * (1 + shade[..., None])
    pixels = mix(pixels, BROWN, 0.75 * lesion)
    pixels = mix(pixels, DARK_BROWN, 0.55 * centre + 0.28 * network * (1 - centre))
    pixels = mix(pixels, HAIR, hairs(random, 7))
    pixels = pixels * (1 - 0.28 * (np.hypot(x - 300, y - 225) / 375) ** 4)[..., None]
    pixels = pixels + 0.012 * random.standard_normal((HEIGHT, WIDTH, 1))
    return Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))


if __name__ == "__main__":
    image = draw_lesion(seed=7).filter(ImageFilter.GaussianBlur(0.6))
    image.save(Path(__file__).with_name("example-lesion.jpg"), quality=85)
