"""The drawn examples of the page and other images, as files to upload."""

from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image

Upload = dict[str, object]
Example = Literal["irregular", "even", "even, turned"]
EXAMPLES = Path(__file__).parents[2] / "eulerlora_clinic" / "service" / "page"


def lesion_file(example: Example = "irregular", width: int = 400, height: int = 300) -> bytes:
    """A JPEG file of a spot on skin, an example of the page, perhaps upside down."""
    name, _, turned = example.partition(", ")
    with Image.open(EXAMPLES / f"example-{name}.jpg") as image:
        drawn = image.rotate(180 if turned else 0).resize((width, height))
    buffer = BytesIO()
    drawn.save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def upload(name: str, content: bytes, media_type: str = "image/jpeg") -> Upload:
    """A file in the form that Playwright accepts."""
    return {"name": name, "mimeType": media_type, "buffer": content}


def lesion(name: str, example: Example = "irregular") -> Upload:
    return upload(name, lesion_file(example))


def broken(name: str) -> Upload:
    """A truncated JPEG file."""
    return upload(name, lesion_file()[:3000])


def fractal(name: str = "fractal.png", size: tuple[int, int] = (400, 300)) -> Upload:
    """An image unlike any training image."""
    drawn = Image.effect_mandelbrot(size, (-2, -1.5, 1, 1.5), 100).convert("RGB")
    buffer = BytesIO()
    drawn.save(buffer, "PNG")
    return upload(name, buffer.getvalue(), "image/png")
