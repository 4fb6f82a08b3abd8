"""Evaluates a checkpoint on its test part and on out-of-distribution images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eulerlora.model import EulerLoRA
from eulerlora.settings import Mode
from eulerlora.uncertainty import summarise
from training.datasets import ImageParts, LabelledImage
from training.inference import predict_all
from training.metrics import classification_metrics, ood_metrics

TEST = "test"


@dataclass(frozen=True)
class ModeReport:
    """A checkpoint's figures in one mode.

    metrics: of the test part. sensitivity: share of each class's test images that get its label;
    None for a class without any. ood: metrics by the name of the out-of-distribution set.
    flagged: share of each set, the test part too, below the checkpoint's threshold, where it
    has one for this mode and sample count.
    """

    mode: Mode
    samples: int
    trajectories: int
    metrics: Mapping[str, float]
    sensitivity: Mapping[str, float | None]
    ood: Mapping[str, Mapping[str, float]]
    threshold: float | None
    flagged: Mapping[str, float]


@dataclass(frozen=True)
class Report:
    """All figures of one evaluation, and what they were measured on."""

    model: str
    revision: str
    data: str
    images: int
    ood_images: Mapping[str, int]
    modes: Sequence[ModeReport]


def evaluate(
    model: EulerLoRA,
    images: ImageParts,
    ood: Mapping[str, Sequence[LabelledImage]],
    questions: Sequence[tuple[Mode, int]],
) -> Report:
    """The report of a model on a data set's test part, once for each (mode, samples)."""
    test = images.parts[TEST]
    return Report(
        model=model.config.name,
        revision=model.revision,
        data=f"{images.name}, test part",
        images=len(test),
        ood_images={name: len(outside) for name, outside in ood.items()},
        modes=[_evaluate_mode(model, test, ood, *question) for question in questions],
    )


def _evaluate_mode(
    model: EulerLoRA,
    test: Sequence[LabelledImage],
    ood: Mapping[str, Sequence[LabelledImage]],
    mode: Mode,
    samples: int,
) -> ModeReport:
    found = predict_all(model, test, mode, samples, f"{mode} test")
    labels = torch.tensor([each.label for each in test])
    inside = summarise(found.flatten(1, 2).exp())
    outside = {
        name: summarise(
            predict_all(model, images, mode, samples, f"{mode} {name}").flatten(1, 2).exp()
        ).msp
        for name, images in ood.items()
    }
    threshold = model.config.threshold(mode, samples)
    sets = {TEST: inside.msp} | outside
    return ModeReport(
        mode=mode,
        samples=samples,
        trajectories=found.shape[1] * found.shape[2],
        metrics=classification_metrics(found.flatten(1, 2), labels),
        sensitivity=_sensitivity(inside.probabilities.argmax(dim=-1), labels, model.classes),
        ood={name: ood_metrics(inside.msp, scores) for name, scores in outside.items()},
        threshold=threshold,
        flagged={}
        if threshold is None
        else {name: float((msp < threshold).double().mean()) for name, msp in sets.items()},
    )


def _sensitivity(
    predicted: Tensor, labels: Tensor, classes: Sequence[str]
) -> dict[str, float | None]:
    right = {name: predicted[labels == index] == index for index, name in enumerate(classes)}
    return {
        name: float(hits.double().mean()) if len(hits) else None for name, hits in right.items()
    }
