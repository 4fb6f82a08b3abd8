"""Draws the synthetic images of the README and of the page: python docs/images/draw_example.py

The lesions look like dermatoscopic photographs and show no real lesion: pigmented lesions with a
pigment network, on skin with hairs, at 600 x 450 pixels like HAM10000. The house is an example of
an image that is no lesion. All are under the licence of this repository.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

WIDTH, HEIGHT = 600, 450
SKIN = np.array([0.81, 0.60, 0.66])
BROWN = np.array([0.68, 0.32, 0.21])
DARK_BROWN = np.array([0.34, 0.15, 0.14])
HAIR = np.array([0.20, 0.13, 0.12])
PAGE = Path(__file__).parents[2] / "clinic" / "eulerlora_clinic" / "service" / "page"
PAGE_SIZE = (400, 300)


@dataclass(frozen=True)
class Lesion:
    """Parameters of a lesion. radii: in pixels. border: amplitudes of coarse and fine noise of the
    outline. centre: opacity of the dark centre. network: of the pigment network.
    """

    seed: int
    radii: tuple[float, float] = (165, 125)
    border: tuple[float, float] = (0.10, 0.035)
    centre: float = 0.55
    network: float = 0.28


README = Lesion(seed=7)
EVEN = Lesion(seed=12, radii=(105, 92), border=(0.03, 0.01), centre=0.25, network=0.12)
IRREGULAR = Lesion(seed=5, radii=(190, 130), border=(0.17, 0.05), centre=0.85, network=0.4)


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


def draw_lesion(drawn: Lesion) -> Image.Image:
    """An image that the parameters determine."""
    random = np.random.default_rng(drawn.seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(float)
    coarse, fine = drawn.border
    from_centre = np.hypot((x - 305) / drawn.radii[0], (y - 228) / drawn.radii[1])
    from_centre += coarse * smooth_noise(random, 70)
    from_centre += fine * smooth_noise(random, 20)
    lesion = 1 / (1 + np.exp((from_centre - 1) / 0.16))
    centre = 1 / (1 + np.exp((from_centre - 0.55 + 0.15 * smooth_noise(random, 60)) / 0.09))
    # ridges where smooth noise crosses 0 form the meshes of the pigment network
    network = np.exp(-((smooth_noise(random, 9) / 0.35) ** 2)) * lesion * (1 - 0.6 * centre)

    shade = 0.02 * smooth_noise(random, 120) + 0.003 * smooth_noise(random, 6)
    pixels = np.broadcast_to(SKIN, (HEIGHT, WIDTH, 3)) * (1 + shade[..., None])
    pixels = mix(pixels, BROWN, 0.84 * lesion)
    pixels = mix(pixels, DARK_BROWN, drawn.centre * centre + drawn.network * network * (1 - centre))
    pixels = mix(pixels, HAIR, hairs(random, 7))
    pixels = pixels * (1 - 0.31 * (np.hypot(x - 300, y - 225) / 375) ** 4)[..., None]
    pixels = pixels + 0.012 * random.standard_normal((HEIGHT, WIDTH, 1))
    return Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))


def draw_house() -> Image.Image:
    """A house on a lawn under a blue sky."""
    random = np.random.default_rng(3)
    y = np.mgrid[:HEIGHT, :WIDTH][0] / HEIGHT
    sky, lawn = np.array([0.45, 0.68, 0.92]), np.array([0.30, 0.55, 0.22])
    pixels = mix(np.broadcast_to(sky, (HEIGHT, WIDTH, 3)), lawn, (y > 0.66).astype(float))
    pixels = (
        pixels * (1 + 0.05 * smooth_noise(random, 60) + 0.03 * smooth_noise(random, 5))[..., None]
    )
    image = Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.ellipse((470, 40, 540, 110), "#ffe27a")
    draw.rectangle((170, 190, 410, 350), "#f3ead8")
    draw.polygon([(140, 195), (290, 85), (440, 195)], "#9c3b2e")
    draw.rectangle((262, 260, 322, 350), "#5b4030")
    for left in (192, 342):
        draw.rectangle((left, 225, left + 46, 275), "#33516b", "#ffffff", 4)
    return image


def save(image: Image.Image, file: Path, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    """Writes an image as JPEG, without metadata."""
    smooth = image.filter(ImageFilter.GaussianBlur(0.6))
    smooth.resize(size, Image.Resampling.LANCZOS).save(file, quality=85)


if __name__ == "__main__":
    save(draw_lesion(README), Path(__file__).with_name("example-lesion.jpg"))
    save(draw_lesion(EVEN), PAGE / "example-even.jpg", PAGE_SIZE)
    save(draw_lesion(IRREGULAR), PAGE / "example-irregular.jpg", PAGE_SIZE)
    save(draw_house(), PAGE / "example-house.jpg", PAGE_SIZE)
