"""All trajectories of a model on a set of images, as the service would answer them."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eulerlora.errors import NonFiniteError
from eulerlora.model import EulerLoRA
from eulerlora.predict import predict_rows
from eulerlora.preprocess import resize
from eulerlora.seeds import content_seed
from eulerlora.settings import Draw, Mode, Sampler
from training.data.datasets import LabelledImage
from training.data.image_sources import read_image
from training.fit.progress import progress

Question = tuple[Mode, int]
"""A mode and a number of samples per adapter; 1 in `det`."""

BATCH_ROWS = 256


class _Inputs(Dataset[tuple[Tensor, int]]):
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
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    questions: Sequence[Question],
    label: str,
    sampler: Sampler | None = None,
) -> list[Tensor]:
    """Log-probabilities (n, adapters, samples, classes) of all images, float64, by question.

    Each image is read, decoded and resized once. label: what the progress bar calls the work.
    sampler: of the questions in `stoch`; None takes the checkpoint's.
    Raises NonFiniteError for a broken model.
    """
    chosen = sampler or model.config.sampler
    images_at_once = max(_images_at_once(model, samples) for _, samples in questions)
    batches = DataLoader(_Inputs(images, model), images_at_once, num_workers=1)
    found: list[list[Tensor]] = [[] for _ in questions]
    for pixels, seeds in progress(batches, label):
        for question, answers in zip(questions, found, strict=True):
            answers.extend(_answers(model, pixels.to(model.device), seeds, question, chosen))
    return [
        _finite(torch.stack(answers).unflatten(1, (-1, samples)))
        for answers, (_, samples) in zip(found, questions, strict=True)
    ]


def _answers(
    model: EulerLoRA, pixels: Tensor, seeds: Tensor, question: Question, sampler: Sampler
) -> Iterator[Tensor]:
    """Each image's (trajectories, classes), a bounded number of rows at a time."""
    mode, samples = question
    size = _images_at_once(model, samples)
    for part, own in zip(pixels.split(size), seeds.split(size), strict=True):
        asked = Draw(mode=mode, samples=samples, sampler=sampler)
        draws = [asked.model_copy(update={"seed": seed}) for seed in own.tolist()]
        yield from predict_rows(model.runtime, part, draws)


def _images_at_once(model: EulerLoRA, samples: int) -> int:
    return max(1, BATCH_ROWS // (model.network.settings.adapters * samples))


def _finite(log_probabilities: Tensor) -> Tensor:
    if not log_probabilities.isfinite().all():
        raise NonFiniteError("the network gave logits that are NaN or infinite")
    return log_probabilities
