"""All trajectories of a model on a set of images, as the service would answer them."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eulerlora.errors import NonFiniteError
from eulerlora.model import EulerLoRA
from eulerlora.predict import predict_rows
from eulerlora.preprocess import resize
from eulerlora.seeds import content_seed
from eulerlora.settings import Draw, Mode
from training.datasets import LabelledImage
from training.image_sources import read_image
from training.loop import progress

BATCH_ROWS = 256


class _Questions(Dataset[tuple[Tensor, int]]):
    """Resized pictures with the seed that the service would derive for each."""

    def __init__(self, images: Sequence[LabelledImage], model: EulerLoRA) -> None:
        self.images = images
        self.size = model.config.preprocessing.size
        self.revision = model.revision

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        pixels = read_image(image.name, image.source)
        return resize(pixels, self.size), content_seed(pixels, self.revision)


def predict_all(
    model: EulerLoRA, images: Sequence[LabelledImage], mode: Mode, samples: int, label: str
) -> Tensor:
    """Log-probabilities (n, adapters, samples, classes) of all images, float64.

    label: what the progress bar calls the work. Raises NonFiniteError for a broken model.
    """
    adapters = model.network.settings.adapters
    batch_size = max(1, BATCH_ROWS // (adapters * samples))
    batches = DataLoader(_Questions(images, model), batch_size=batch_size, num_workers=1)
    found = []
    for pixels, seeds in progress(batches, label):
        draws = [Draw(mode=mode, samples=samples, seed=seed) for seed in seeds.tolist()]
        found += predict_rows(model.runtime, pixels.to(model.device), draws)
    every: Tensor = torch.stack(found).unflatten(1, (adapters, samples))
    if not every.isfinite().all():
        raise NonFiniteError("the network gave logits that are NaN or infinite")
    return every
