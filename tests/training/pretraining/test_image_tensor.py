"""Many images as one tensor."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from training.data.labelled_images import LabelledImage
from training.data.sources import read_image
from training.pretraining.image_tensor import image_tensor, on_device_if_fits


def images_of(*shapes: tuple[int, int]) -> list[LabelledImage]:
    generator = torch.Generator().manual_seed(0)
    return [
        LabelledImage(
            str(index),
            torch.randint(0, 256, (3, *shape), dtype=torch.uint8, generator=generator),
            index % 2,
        )
        for index, shape in enumerate(shapes)
    ]


def sources(images: Sequence[LabelledImage]) -> list[Tensor]:
    return [read_image(each.name, each.source) for each in images]


def test_images_of_one_size_are_kept_as_they_are() -> None:
    images = images_of((8, 6), (8, 6), (8, 6))
    found = image_tensor(images, 8)
    assert torch.equal(found.pixels, torch.stack(sources(images)))
    assert found.labels.tolist() == [0, 1, 0]
    assert len(found) == 3


@pytest.mark.parametrize("shapes", [[(8, 6), (8, 6), (9, 6)], [(12, 10), (12, 10)]])
def test_others_are_squashed_to_the_largest_size(shapes: list[tuple[int, int]]) -> None:
    images = images_of(*shapes)
    found = image_tensor(images, 8).pixels
    assert found.shape == (len(shapes), 3, 8, 8)
    for pixels, source in zip(found, sources(images), strict=True):
        assert torch.equal(pixels, F.resize(source, [8, 8], antialias=True))


def test_encoded_images_are_read(image_folder: Path) -> None:
    path = image_folder / "test" / "red" / "00.png"
    image = LabelledImage("00.png", path, 1)
    assert torch.equal(image_tensor([image], 64).pixels[0], read_image("00.png", path))


def test_a_cpu_s_images_stay_where_they_are() -> None:
    sets = [image_tensor(images_of((8, 8)), 8)]
    assert on_device_if_fits(sets, torch.device("cpu")) is sets


@pytest.mark.parametrize(("free", "moved"), [(2 * 3 * 64, True), (2 * 3 * 64 - 1, False)])
def test_a_gpu_gets_the_images_if_half_of_its_memory_holds_them(
    monkeypatch: pytest.MonkeyPatch, free: int, moved: bool
) -> None:
    (images,) = sets = [image_tensor(images_of((8, 8)), 8)]
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (free, 10**9))
    monkeypatch.setattr("torch.Tensor.to", lambda *_: "moved")
    (found,) = on_device_if_fits(sets, torch.device("cuda", 0))
    assert (found.pixels == "moved") if moved else (found is images)
    assert found.labels is images.labels
