"""Batches of several sets, augmented in groups on the device that holds the pixels.

The images of a set have one size; they are mapped from the cache or on the training device.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from eulerlora.settings import Preprocessing
from training.data.augmentation import CPU, camera_view, dermoscopy_or_camera_view, seeded
from training.data.images import LabelledImage, read_image
from training.fit.batches import shard_indices
from training.fit.run import Run
from training.recipe.pretraining import (
    AugmentationSettings,
    PretrainingStage,
    PretrainingView,
)

LARGEST_RATIO = 2
"""Largest side of a stored image, per side of the network's input."""


@dataclass(frozen=True, eq=False)  # comparing tensors gives no single truth value
class ImageTensor:
    """pixels: n images of shape (3, height, width) uint8, on any device; a sequence of images if
    they are mapped from a file. labels: (n,) int64, on the CPU.
    """

    pixels: Tensor | Sequence[Tensor]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor) -> Tensor:
        """Returns the images of these indices, (k, 3, height, width), where they are stored."""
        if isinstance(self.pixels, Tensor):
            return self.pixels[indices.to(self.pixels.device)]
        return torch.stack([self.pixels[index] for index in indices.tolist()])


def image_tensor(images: Sequence[LabelledImage], image_size: int) -> ImageTensor:
    """Returns the images at their original size, without a copy of decoded ones, if all have the
    same size, of at most LARGEST_RATIO * image_size.

    Otherwise each is resized to image_size x image_size, bilinear with antialias.
    """
    pixels = [read_image(image.name, image.source) for image in images]
    shapes = {image.shape for image in pixels}
    if len(shapes) > 1 or max(max(shape[1:]) for shape in shapes) > LARGEST_RATIO * image_size:
        pixels = [F.resize(image, [image_size, image_size]) for image in pixels]
    return ImageTensor(pixels, torch.tensor([image.label for image in images]))


def on_device_if_fits(sets: Sequence[ImageTensor], device: torch.device) -> Sequence[ImageTensor]:
    """Moves the sets to a GPU if they take at most half of its free memory."""
    if device.type != "cuda":
        return sets
    free, _ = torch.cuda.mem_get_info(device)
    required = sum(image.numel() for images in sets for image in images.pixels)
    if required > free // 2:
        return sets
    return [
        ImageTensor(images.select(torch.arange(len(images))).to(device), images.labels)
        for images in sets
    ]


GroupTransform = Callable[[Tensor, Tensor], "PretrainingBatch"]
"""(pixels, targets) -> (views, targets) of a group of images of one set."""

VIEWS_OF_AN_IMAGE = 2
"""Views of each unlabelled image in a batch."""

PretrainingBatch = tuple[Tensor, Tensor]
"""Views (n, 3, size, size) in [0, 1]; targets (n, classes of all sets + 1).

Targets are probabilities within the image's set. The last column is 0 for a labelled image, and for
an unlabelled one its number, from 1.
"""


@dataclass(frozen=True, eq=False)
class PretrainingSet:
    """The images of a set and how a run uses them.

    classes: number of classes; 0 for unlabelled images. views: as in `PretrainingData`. repeats:
    how often an epoch contains each image.
    """

    images: ImageTensor
    classes: int
    views: PretrainingView = "natural"
    repeats: int = 1


class MixedBatches:
    """Batches that contain the images of every set `repeats` times per epoch, in random order.

    Within a batch, images are ordered by set, and MixUp and CutMix combine images of the same set
    only. The random numbers of a batch depend on seed, epoch, batch and process only.
    """

    def __init__(self, sets: Sequence[PretrainingSet], stage: PretrainingStage, run: Run) -> None:
        self.sets, self.stage, self.run = sets, stage, run
        natural = group_transform(stage.augmentation, stage.image_size)
        camera = camera_view(stage.image_size)
        half = dermoscopy_or_camera_view(Preprocessing(size=stage.image_size))
        self.transforms: dict[PretrainingView, GroupTransform] = {
            "natural": natural,
            "cameras": lambda pixels, targets: (camera(pixels), targets),
            "half-cameras": lambda pixels, targets: (half(pixels), targets),
        }
        self.first_image = [0, *accumulate(len(part.images) * part.repeats for part in sets)]
        self.first_class = [0, *accumulate(part.classes for part in sets)]
        self.first_number = [0, *accumulate(len(part.images) for part in sets)]

    @property
    def images(self) -> int:
        """Images per epoch."""
        return self.first_image[-1]

    def epoch(self, epoch: int, skip: int) -> Iterator[PretrainingBatch]:
        """Yields batches, beginning with batch `skip`; on a GPU it prepares the next one early."""
        run = self.run
        shards = list(shard_indices(self.images, self.stage, run.seed, epoch, run.shard))

        def batch(number: int) -> PretrainingBatch:
            with seeded(CPU, run.seed, epoch, number, run.shard.index):
                return self.batch(shards[number])

        numbers, device = range(skip, len(shards)), run.accelerator.device
        if device.type == "cuda":
            yield from _on_side_stream(batch, numbers, device)
        else:
            yield from map(batch, numbers)

    def batch(self, indices: Sequence[int]) -> PretrainingBatch:
        """Returns the batch of these images, indexed over all sets; -1 is padding."""
        selected = torch.tensor(indices)
        parts = [self._part(number, selected) for number in range(len(self.sets))]
        views, targets = zip(*(part for part in parts if part is not None), strict=True)
        return torch.cat(views), torch.cat(targets)

    def _part(self, number: int, selected: Tensor) -> PretrainingBatch | None:
        """Returns the views of one set's images, or None; padding belongs to the first set."""
        part = self.sets[number]
        start, end = self.first_image[number : number + 2]
        padding = selected < 0
        in_set = (selected >= start) & (selected < end) | padding & (number == 0)
        if not in_set.any():
            return None
        local = (selected[in_set] - start).clamp(min=0) % len(part.images)
        targets = torch.zeros(len(local), self.first_class[-1] + 1)
        if part.classes:
            labels = part.images.labels[local] + self.first_class[number]
            targets[torch.arange(len(local)), labels] = (~padding[in_set]).float()
        else:
            targets[:, -1] = self.first_number[number] + local + 1
            local, targets = (
                tensor.repeat_interleave(VIEWS_OF_AN_IMAGE, dim=0) for tensor in (local, targets)
            )
            order = torch.randperm(len(local))  # views of an image share no group's draws
            local, targets = local[order], targets[order]
        device = self.run.accelerator.device
        pixels = part.images.select(local).to(device)
        transform = self.transforms[part.views]
        return transform_groups(
            transform, pixels, targets.to(device), self.stage.augmentation.group
        )


def group_transform(settings: AugmentationSettings, size: int) -> GroupTransform:
    """Returns the transform (pixels, targets) -> (views, targets) of a group of images.

    pixels: (n, 3, height, width) uint8. targets: (n, classes) of one label set. views: (n, 3,
    size, size) in [0, 1], without mean and standard deviation normalisation.
    """
    policy = {"trivial": [v2.TrivialAugmentWide()], "rand": [v2.RandAugment()], "none": []}
    mixed = v2.RandomChoice([v2.MixUp(alpha=settings.mixup), v2.CutMix(alpha=settings.cutmix)])
    transform: GroupTransform = v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(settings.crop_area, 1.0)),
            v2.RandomHorizontalFlip(),
            *policy[settings.policy],
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomErasing(settings.erasing),
            v2.RandomApply([mixed], settings.mixed),
        ]
    )
    return transform


def transform_groups(
    transform: GroupTransform, pixels: Tensor, targets: Tensor, group: int
) -> PretrainingBatch:
    """Applies the transform to `group` images at a time; it draws from torch's global generator.

    A torchvision transform draws once per call. Groups are small enough for many draws per batch
    and large enough to use a GPU well.
    """
    groups = zip(pixels.split(group), targets.split(group), strict=True)
    views, mixed = zip(*(transform(*part) for part in groups), strict=True)
    return torch.cat(views), torch.cat(mixed)


def _on_side_stream(
    make: Callable[[int], PretrainingBatch], numbers: Sequence[int], device: torch.device
) -> Iterator[PretrainingBatch]:
    """Yields `prefetch(make, numbers)`, made on a separate CUDA stream in parallel with steps."""
    stream = torch.cuda.Stream(device)

    def make_on_stream(number: int) -> PretrainingBatch:
        with torch.cuda.stream(stream):
            batch = make(number)
            stream.synchronize()
            return batch

    for batch in prefetch(make_on_stream, numbers):
        for tensor in batch:  # keeps the allocator from reusing the memory before the step ends
            tensor.record_stream(torch.cuda.current_stream(device))
        yield batch


def prefetch(
    make: Callable[[int], PretrainingBatch], numbers: Sequence[int]
) -> Iterator[PretrainingBatch]:
    """Yields `make(number)` for each number; a thread makes the next one during its use."""
    with ThreadPoolExecutor(1) as pool:
        pending = deque(pool.submit(make, number) for number in numbers[:1])
        for number in numbers[1:]:
            batch = pending.popleft().result()
            pending.append(pool.submit(make, number))
            yield batch
        for last in pending:
            yield last.result()
