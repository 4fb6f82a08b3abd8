"""Predictions of a model for a set of images, equal to those of the service."""

import math
from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.utils.data import Dataset

from eulerlora.images.preprocess import content_seed, network_input
from eulerlora.model import EulerLoRA
from eulerlora.sampling.adaptive import StoppingRule
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.progress import track
from eulerlora_contract.sampling import Options
from training.data.images import LabelledImage, load

_BATCH_IMAGES = 32


class _SeededImages(Dataset[tuple[Tensor, int]]):
    """Resized images with the seeds that the service derives from their content."""

    def __init__(self, images: Sequence[LabelledImage], model: EulerLoRA) -> None:
        self.images = images
        self.preprocessing = model.config.preprocessing
        self.sampling_digest = model.config.sampling_digest

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        pixels = image.pixels()
        return network_input(pixels, self.preprocessing), content_seed(pixels, self.sampling_digest)


def predict_all(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    options: Sequence[Options],
    label: str,
    rule: StoppingRule | None = None,
) -> list[Trajectories]:
    """The trajectories of a model for at least one image, for each of `options`.

    Each image is read, decoded and resized once. `label` is the name of the progress bar; `rule` is
    as in `EulerLoRA.run`.

    Raises:
        NonFiniteError: For NaN or infinite logits.
    """
    batches = load(_SeededImages(images, model), workers=1, batch_size=_BATCH_IMAGES)
    tracked = track(batches, label, "batches", math.ceil(len(images) / _BATCH_IMAGES))

    def inputs() -> Iterator[tuple[Tensor, int]]:
        for pixels, seeds in tracked:
            yield from zip(pixels, seeds.tolist(), strict=True)

    results = model.run(inputs(), options, rule=rule)
    for trajectories in results:
        trajectories.check_finite()
    return results
