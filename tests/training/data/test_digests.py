"""Digests of training images: which copies they recognise, and their file."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from eulerlora.checkpoint.files import TRAINING_IMAGES_FILE
from eulerlora_client.errors import CheckpointError
from training.data.digests import image_digests, images_in_training, named_with_seen
from training.data.images import LabelledImage


def encoded(pixels: np.ndarray, kind: str, **options: object) -> bytes:
    content = BytesIO()
    Image.fromarray(pixels).save(content, kind, **options)
    return content.getvalue()


@pytest.fixture
def copies() -> dict[str, LabelledImage]:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x010E] = "a description"
    sources = {
        "png": encoded(pixels, "PNG"),
        "metadata": encoded(pixels, "PNG", exif=exif),
        "webp": encoded(pixels, "WEBP", lossless=True),
        "jpeg": encoded(pixels, "JPEG"),
        "shape": encoded(pixels.reshape(32, 24, 3), "PNG"),
    }
    return {name: LabelledImage(name, source, 0) for name, source in sources.items()}


def test_lossless_copies_are_recognised_and_other_images_are_not(
    copies: dict[str, LabelledImage], tmp_path: Path
) -> None:
    assert images_in_training(tmp_path, list(copies.values())) is None
    other, own = image_digests([copies["shape"]]), image_digests([copies["png"]])
    save_file({"backbone": other, "adapters": own}, tmp_path / TRAINING_IMAGES_FILE)
    seen = images_in_training(tmp_path, list(copies.values()))
    assert seen is not None
    assert [image.name for image in seen] == ["png", "metadata", "webp", "shape"]
    assert " 4 of its images" in named_with_seen("set", tmp_path, list(copies.values()))
    assert named_with_seen("set", tmp_path, [copies["jpeg"]]) == "set"


@pytest.mark.parametrize("content", [b"", {"adapters": torch.zeros(3)}])
def test_a_damaged_file_is_refused(content: object, tmp_path: Path) -> None:
    path = tmp_path / TRAINING_IMAGES_FILE
    if isinstance(content, dict):
        save_file(content, path)
    else:
        path.touch()
    with pytest.raises(CheckpointError) as caught:
        images_in_training(tmp_path, [])
    assert caught.value.path == path
