"""Draws the labelled pictures of the tutorials: coloured shapes, and spots on skin."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIZE = 96
Draw = Callable[[ImageDraw.ImageDraw, tuple[float, float, float, float], str], None]


def draw_shapes(folder: Path, per_class: int = 30, seed: int = 0) -> None:
    """Writes a folder for each shape with pictures of that shape in random places and colours."""
    shapes: dict[str, Draw] = {
        "circle": lambda draw, box, colour: draw.ellipse(box, colour),
        "square": lambda draw, box, colour: draw.rectangle(box, colour),
        "triangle": lambda draw, box, colour: draw.polygon(
            [(box[0], box[3]), ((box[0] + box[2]) / 2, box[1]), (box[2], box[3])], colour
        ),
    }
    random = np.random.default_rng(seed)
    for name, shape in shapes.items():
        for index in range(per_class):
            background, colour = (
                f"hsl({random.integers(360)}, 40%, {light}%)" for light in (80, 35)
            )
            image = Image.new("RGB", (SIZE, SIZE), background)
            left, top = random.uniform(4, 40, 2)
            side = random.uniform(34, 50)
            shape(ImageDraw.Draw(image), (left, top, left + side, top + side), colour)
            save(noisy(image, random), folder / name / f"{index:03}.png")


def draw_spots(folder: Path, per_class: int = 40, seed: int = 0) -> None:
    """Writes pictures of even and of uneven spots on skin; they show no real lesion."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE] - SIZE / 2
    for name, roughness, darkness in (("even", 0.05, 0.35), ("uneven", 0.35, 0.75)):
        for index in range(per_class):
            angle = np.arctan2(y, x)
            waves = sum(
                random.normal() * np.sin(k * angle + random.uniform(0, 6)) / k for k in range(2, 7)
            )
            inside = np.hypot(x, y) < random.uniform(18, 26) * (1 + roughness * waves)
            skin = np.array([205, 150, 165]) + random.normal(0, 6, 3)
            pixels = np.where(
                inside[..., None], skin * (1 - darkness * random.uniform(0.8, 1)), skin
            )
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            save(noisy(image, random), folder / name / f"{index:03}.png")


def noisy(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Adds noise, so that no two pictures are equal."""
    pixels = np.asarray(image) + random.normal(0, 8, (SIZE, SIZE, 1))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def save(image: Image.Image, path: Path) -> None:
    """Writes a picture; creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
