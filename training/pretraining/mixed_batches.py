"""Batches of several labelled sets together, made where their pixels are."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from training.data.seeded import seeded
from training.fit.batches import shares
from training.fit.run import Run
from training.pretraining.group_augmentation import group_transform, in_groups
from training.pretraining.image_tensor import ImageTensor
from training.recipe.pretraining import PretrainingStage

CPU = torch.device("cpu")  # transforms draw there, wherever the pixels are

Batch = tuple[Tensor, Tensor]
"""Views (n, 3, size, size) in [0, 1]; shares (n, classes of all sets), within each image's set."""


class MixedBatches:
    """Every image of every set once an epoch, in one random order.

    sets: whose images are mixed. classes: how many each set has. A batch has the images of one set
    after those of another; only images of the same set are mixed with each other. What is drawn
    for a batch is a function of seed, epoch, batch and process alone.
    """

    def __init__(
        self,
        sets: Sequence[ImageTensor],
        classes: Sequence[int],
        stage: PretrainingStage,
        run: Run,
    ) -> None:
        self.sets, self.stage, self.run = sets, stage, run
        self.transform = group_transform(stage.augmentation, stage.image_size)
        self.starts = [0, *accumulate(len(each) for each in sets)]
        self.first_class = [0, *accumulate(classes)]

    @property
    def images(self) -> int:
        """How many images an epoch has."""
        return self.starts[-1]

    def of_epoch(self, epoch: int, skip: int) -> Iterator[Batch]:
        """An epoch's batches from the `skip`-th on; on a GPU the next one is made meanwhile."""
        own = list(shares(self.images, self.stage, self.run.seed, epoch, self.run.share))

        def batch(number: int) -> Batch:
            with seeded(CPU, self.run.seed, epoch, number, self.run.share.process):
                return self.batch(own[number])

        numbers, device = range(skip, len(own)), self.run.accelerator.device
        if device.type == "cuda":
            yield from _on_own_stream(batch, numbers, device)
        else:
            yield from map(batch, numbers)

    def batch(self, indices: Sequence[int]) -> Batch:
        """The batch of these images, counted over all sets; -1 is padding."""
        wanted = torch.tensor(indices)
        parts = [self._of_set(number, wanted) for number in range(len(self.sets))]
        views, mixed = zip(*(part for part in parts if part is not None), strict=True)
        return torch.cat(views), torch.cat(mixed)

    def _of_set(self, number: int, wanted: Tensor) -> Batch | None:
        """The part of a batch that is of one set; padding is of the first one."""
        start, end = self.starts[number : number + 2]
        padding = wanted < 0
        of_set = (wanted >= start) & (wanted < end) | padding & (number == 0)
        if not of_set.any():
            return None
        images, device = self.sets[number], self.run.accelerator.device
        local = (wanted[of_set] - start).clamp(min=0)
        labels = images.labels[local] + self.first_class[number]
        one_hot = F.one_hot(labels, self.first_class[-1]) * ~padding[of_set, None]
        pixels = images.pixels[local.to(images.pixels.device)].to(device)
        group = self.stage.augmentation.group
        return in_groups(self.transform, pixels, one_hot.float().to(device), group)


def _on_own_stream(
    make: Callable[[int], Batch], numbers: Sequence[int], device: torch.device
) -> Iterator[Batch]:
    """`ahead` on a CUDA stream of its own, so that making waits for no step, nor a step for it."""
    stream = torch.cuda.Stream(device)

    def made(number: int) -> Batch:
        with torch.cuda.stream(stream):
            batch = make(number)
            stream.synchronize()
            return batch

    for batch in ahead(made, numbers):
        for tensor in batch:  # whose memory is free again only after the step
            tensor.record_stream(torch.cuda.current_stream(device))
        yield batch


def ahead(make: Callable[[int], Batch], numbers: Sequence[int]) -> Iterator[Batch]:
    """What `make` gives for each number; a thread makes the next one while one is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = deque(pool.submit(make, number) for number in numbers[:1])
        for number in numbers[1:]:
            batch = coming.popleft().result()
            coming.append(pool.submit(make, number))
            yield batch
        for last in coming:
            yield last.result()
