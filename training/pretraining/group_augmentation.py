"""Random views of many images at once, by torchvision's transforms, on the images' own device.

A transform draws once for the images that it is given together. A batch is therefore cut into
groups, few enough for a GPU to be kept busy and many enough for a batch to see many draws.
"""

import torch
from torch import Tensor
from torchvision.transforms import v2

from training.recipe.pretraining import AugmentationSettings


def group_transform(settings: AugmentationSettings, size: int) -> v2.Transform:
    """(pixels, shares) -> (views, shares), mixed where images are mixed.

    pixels: (n, 3, height, width) uint8. shares: (n, classes) of one label set. views: (n, 3,
    size, size) in [0, 1]; no mean is taken off, as nowhere in this project.
    """
    policy = {"trivial": [v2.TrivialAugmentWide()], "rand": [v2.RandAugment()], "none": []}
    mixed = v2.RandomChoice([v2.MixUp(alpha=settings.mixup), v2.CutMix(alpha=settings.cutmix)])
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(settings.crop_area, 1.0)),
            v2.RandomHorizontalFlip(),
            *policy[settings.policy],
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomErasing(settings.erasing),
            v2.RandomApply([mixed], settings.mixed),
        ]
    )


def in_groups(
    transform: v2.Transform, pixels: Tensor, shares: Tensor, group: int
) -> tuple[Tensor, Tensor]:
    """The transform of each `group` images, all together again; it draws from torch's generator."""
    parts = zip(pixels.split(group), shares.split(group), strict=True)
    views, mixed = zip(*(transform(*part) for part in parts), strict=True)
    return torch.cat(views), torch.cat(mixed)
