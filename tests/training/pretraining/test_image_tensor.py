"""All images of a set in one tensor."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from training.data.images import LabelledImage, read_image
from training.pretraining.mixed_batches import image_tensor, on_device_if_fits


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
    return [read_image(image.name, image.source) for image in images]


def test_images_of_one_size_are_unchanged() -> None:
    images = images_of((8, 6), (8, 6), (8, 6))
    tensor = image_tensor(images, 4)
    assert all(kept is image.source for kept, image in zip(tensor.pixels, images, strict=True))
    assert torch.equal(tensor.select(torch.tensor([2, 0])), torch.stack(sources(images))[[2, 0]])
    assert tensor.labels.tolist() == [0, 1, 0]
    assert len(tensor) == 3


@pytest.mark.parametrize("shapes", [[(8, 6), (8, 6), (9, 6)], [(17, 10), (17, 10)]])
def test_other_images_are_resized_to_the_size_of_the_network(shapes: list[tuple[int, int]]) -> None:
    images = images_of(*shapes)
    tensor = image_tensor(images, 8).select(torch.arange(len(shapes)))
    assert tensor.shape == (len(shapes), 3, 8, 8)
    for pixels, source in zip(tensor, sources(images), strict=True):
        assert torch.equal(pixels, F.resize(source, [8, 8], antialias=True))


class Selected:
    """Selected images on a machine without a GPU."""

    def to(self, _: torch.device) -> str:
        return "moved"


@pytest.mark.parametrize(("free", "moved"), [(2 * 3 * 64, True), (2 * 3 * 64 - 1, False)])
def test_images_move_to_a_gpu_if_they_fit_into_half_of_its_free_memory(
    monkeypatch: pytest.MonkeyPatch, free: int, moved: bool
) -> None:
    (images,) = sets = [image_tensor(images_of((8, 8)), 8)]
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (free, 10**9))
    monkeypatch.setattr(
        "training.pretraining.mixed_batches.ImageTensor.select", lambda *_: Selected()
    )
    (tensor,) = on_device_if_fits(sets, torch.device("cuda", 0))
    assert (tensor.pixels == "moved") if moved else (tensor is images)
    assert tensor.labels is images.labels
