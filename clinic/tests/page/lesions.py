"""The drawn examples of the page and other images, as files to upload."""

from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from PIL import Image

Upload = dict[str, object]
EXAMPLES = Path(__file__).parents[2] / "eulerlora_clinic" / "service" / "page"


class Lesion(NamedTuple):
    """A drawn lesion: the name of an example, perhaps upside down."""

    example: str
    is_turned: bool = False


IRREGULAR, EVEN, TURNED = Lesion("irregular"), Lesion("even"), Lesion("even", is_turned=True)


def lesion_image(lesion: Lesion, width: int = 400, height: int = 300) -> Image.Image:
    """An RGB image of a spot on skin."""
    with Image.open(EXAMPLES / f"example-{lesion.example}.jpg") as image:
        return image.rotate(180 if lesion.is_turned else 0).resize((width, height))


def file_of(image: Image.Image) -> bytes:
    """The image as a JPEG file."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def upload(name: str, content: bytes, media_type: str = "image/jpeg") -> Upload:
    """A file in the form that Playwright accepts."""
    return {"name": name, "mimeType": media_type, "buffer": content}


def lesion(name: str, drawn: Lesion = IRREGULAR) -> Upload:
    """The image of a lesion as a file."""
    return upload(name, file_of(lesion_image(drawn)))


def broken(name: str) -> Upload:
    """A truncated JPEG file."""
    return upload(name, file_of(lesion_image(IRREGULAR))[:3000])


def fractal() -> dict[str, object]:
    """An image unlike any training image."""
    drawn = Image.effect_mandelbrot((400, 300), (-2, -1.5, 1, 1.5), 100).convert("RGB")
    buffer = BytesIO()
    drawn.save(buffer, "PNG")
    return upload("fractal.png", buffer.getvalue(), "image/png")
