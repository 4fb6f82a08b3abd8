"""Evaluates a checkpoint on its test part and on out-of-distribution images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eulerlora.model import EulerLoRA
from eulerlora.settings import Mode, Sampler
from eulerlora.uncertainty import Uncertainty, summarise
from training.datasets import ImageParts, LabelledImage
from training.inference import Question, predict_all
from training.metrics import classification_metrics, ood_metrics
from training.selective import RiskCoverage, risk_coverage, selective_metrics
from training.sensitivity import Sensitivity, class_sensitivities

TEST = "test"


@dataclass(frozen=True)
class ModeReport:
    """A checkpoint's figures in one mode.

    sampler: of the samples; None in `det`. metrics: of the test part. selective: AURC and AUGRC
    of the test part by MSP. sensitivity: by class; None for a class without images. ood: metrics
    by the name of the out-of-distribution set. flagged: share of each set, the test part too,
    below the checkpoint's threshold, where it has one for this mode, sample count and sampler.
    """

    mode: Mode
    samples: int
    sampler: Sampler | None
    trajectories: int
    metrics: Mapping[str, float]
    selective: Mapping[str, float]
    sensitivity: Mapping[str, Sensitivity | None]
    ood: Mapping[str, Mapping[str, float]]
    threshold: float | None
    flagged: Mapping[str, float]

    @property
    def title(self) -> str:
        """The mode and its samples, for people."""
        if self.mode == "det":
            return self.mode
        balanced = "balanced " if self.sampler == "balanced" else ""
        return f"stoch, {self.samples} {balanced}sample{'' if self.samples == 1 else 's'}"


@dataclass(frozen=True)
class Subset:
    """How many images of how many were used."""

    images: int
    of: int


@dataclass(frozen=True)
class Report:
    """All figures of one evaluation, and what they were measured on."""

    model: str
    revision: str
    data: str
    images: int
    ood_images: Mapping[str, Subset]
    modes: Sequence[ModeReport]


@dataclass(frozen=True)
class Answers:
    """What a model answered in one mode; what pictures are drawn from.

    probabilities: (n, classes), mean over the trajectories. msp: (n,) of the test part; outside:
    (m,) of each out-of-distribution set, by name. curve: the test part's risk by coverage.
    """

    probabilities: Tensor
    msp: Tensor
    outside: Mapping[str, Tensor]
    curve: RiskCoverage


@dataclass(frozen=True)
class Evaluation:
    """A report, and the answers behind it: one for each of the report's modes.

    classes: names in the order of the probabilities. labels: (n,) of the test part.
    """

    report: Report
    classes: tuple[str, ...]
    labels: Tensor
    answers: Sequence[Answers]


def evaluate(
    model: EulerLoRA,
    images: ImageParts,
    ood: Mapping[str, Sequence[LabelledImage]],
    questions: Sequence[Question],
    ood_images: int | None = None,
    sampler: Sampler | None = None,
) -> Evaluation:
    """A model on a data set's test part, once for each (mode, samples); images are read once.

    ood: out-of-distribution sets by name, of which at most `ood_images` images each are used,
    evenly spaced; None uses all. sampler: of the samples in `stoch`; None takes the checkpoint's.
    """
    sampler = sampler or model.config.sampler
    test = images.parts[TEST]
    used = {name: evenly_spaced(outside, ood_images) for name, outside in ood.items()}
    labels = torch.tensor([each.label for each in test])
    found = predict_all(model, test, questions, TEST, sampler)
    outside = {
        name: predict_all(model, each, questions, name, sampler) for name, each in used.items()
    }
    answers = [
        _answers(found[index], labels, {name: each[index] for name, each in outside.items()})
        for index in range(len(questions))
    ]
    report = Report(
        model=model.config.name,
        revision=model.revision,
        data=f"{images.name}, test part",
        images=len(test),
        ood_images={name: Subset(len(used[name]), len(ood[name])) for name in ood},
        modes=[
            _figures(model, question, sampler, each.flatten(1, 2), answer, labels)
            for question, each, answer in zip(questions, found, answers, strict=True)
        ],
    )
    return Evaluation(report, model.classes, labels, answers)


def evenly_spaced(images: Sequence[LabelledImage], count: int | None) -> Sequence[LabelledImage]:
    """`count` of the images, from the first on at equal distances; all where there are no more."""
    if count is None or count >= len(images):
        return images
    return [images[index * len(images) // count] for index in range(count)]


def _answers(inside: Tensor, labels: Tensor, outside: Mapping[str, Tensor]) -> Answers:
    """inside, outside: log-probabilities (n, adapters, samples, classes)."""
    found = _summary(inside)
    wrong = found.probabilities.argmax(dim=-1) != labels
    return Answers(
        probabilities=found.probabilities,
        msp=found.msp,
        outside={name: _summary(each).msp for name, each in outside.items()},
        curve=risk_coverage(found.msp.numpy(), wrong.numpy()),
    )


def _summary(log_probabilities: Tensor) -> Uncertainty:
    return summarise(log_probabilities.flatten(1, 2).exp())


def _figures(
    model: EulerLoRA,
    question: Question,
    sampler: Sampler,
    trajectories: Tensor,
    answers: Answers,
    labels: Tensor,
) -> ModeReport:
    """trajectories: log-probabilities (n, trajectories, classes) of the test part."""
    mode, samples = question
    threshold = model.config.threshold(mode, samples, sampler)
    predicted = answers.probabilities.argmax(dim=-1)
    sets = {TEST: answers.msp, **answers.outside}
    return ModeReport(
        mode=mode,
        samples=samples,
        sampler=sampler if mode == "stoch" else None,
        trajectories=trajectories.shape[1],
        metrics=classification_metrics(trajectories, labels),
        selective=selective_metrics(answers.curve),
        sensitivity=class_sensitivities(predicted, labels, model.classes),
        ood={name: ood_metrics(answers.msp, scores) for name, scores in answers.outside.items()},
        threshold=threshold,
        flagged={}
        if threshold is None
        else {name: float((msp < threshold).double().mean()) for name, msp in sets.items()},
    )
