"""Evaluates a checkpoint on its test part, on corruptions of it and on other images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from eulerlora.model import EulerLoRA
from eulerlora.settings import Sampler
from eulerlora.uncertainty import Uncertainty, summarise
from training.data.datasets import ImageParts, LabelledImage
from training.data.splits import evenly_spaced
from training.evaluation.corruptions import CORRUPTIONS, Corrupted
from training.evaluation.inference import Question, predict_all
from training.evaluation.intervals import Ints
from training.evaluation.mode_report import (
    Truth,
    corruption_metrics,
    flagged_share,
    group_figures,
    inside_metrics,
    outside_metrics,
    truth_of,
)
from training.evaluation.report_schema import TEST, ModeReport, Report, Subset
from training.evaluation.sensitivity import class_figures


@dataclass(frozen=True)
class Answers:
    """What a model answered in one mode; what figures and pictures are made from.

    log_probabilities: (n, trajectories, classes) of the test part. found: what they say together.
    outside: of each out-of-distribution set, corrupted: of each corruption, by name.
    """

    log_probabilities: Tensor
    found: Uncertainty
    outside: Mapping[str, Uncertainty]
    corrupted: Mapping[str, Uncertainty]


@dataclass(frozen=True)
class Evaluation:
    """A report, and the answers behind it: one for each of the report's modes.

    classes: names in the order of the probabilities. labels: (n,) of the test part.
    """

    report: Report
    classes: tuple[str, ...]
    labels: Ints
    answers: Sequence[Answers]


def evaluate(
    model: EulerLoRA,
    images: ImageParts,
    ood: Mapping[str, Sequence[LabelledImage]],
    questions: Sequence[Question],
    ood_images: int | None = None,
    corrupted_images: int = 0,
    sampler: Sampler | None = None,
) -> Evaluation:
    """A model on a data set's test part, once for each (mode, samples); images are read once.

    ood: out-of-distribution sets by name, of which at most `ood_images` images each are used,
    evenly spaced; None uses all. corrupted_images: how many of the test part are corrupted in
    turn by each of CORRUPTIONS, evenly spaced. sampler: of the samples in `stoch`; None takes the
    checkpoint's.
    """
    sampler = sampler or model.config.sampler
    test = images.parts[TEST]
    used = {name: evenly_spaced(outside, ood_images) for name, outside in ood.items()}
    chosen = evenly_spaced(range(len(test)), corrupted_images)

    def ask(shown: Sequence[LabelledImage], label: str) -> list[Tensor]:
        return predict_all(model, shown, questions, label, sampler)

    answers = _answers(ask, test, used, [test[index] for index in chosen])
    truth = truth_of(images)
    report = Report(
        model=model.config.name,
        revision=model.revision,
        data=f"{images.name}, test part",
        images=len(test),
        clusters=len(set(truth.clusters.tolist())),
        target=images.target,
        ood_images={name: Subset(len(used[name]), len(ood[name])) for name in ood},
        corrupted=Subset(len(chosen), len(test)),
        modes=[
            _mode_report(model, question, sampler, each, truth, np.array(chosen, dtype=np.int64))
            for question, each in zip(questions, answers, strict=True)
        ],
    )
    return Evaluation(report, model.classes, truth.labels, answers)


def _answers(
    ask: Callable[[Sequence[LabelledImage], str], list[Tensor]],
    test: Sequence[LabelledImage],
    ood: Mapping[str, Sequence[LabelledImage]],
    corrupted: Sequence[LabelledImage],
) -> list[Answers]:
    """To each question. corrupted: the images that are, by each corruption in turn."""
    corruptions = {each.name: Corrupted(corrupted, each) for each in CORRUPTIONS if corrupted}
    inside = ask(test, TEST)
    outside = {name: ask(each, name) for name, each in ood.items()}
    under = {name: ask(each, name) for name, each in corruptions.items()}
    return [
        Answers(
            log_probabilities=inside[index].flatten(1, 2),
            found=_summary(inside[index]),
            outside={name: _summary(each[index]) for name, each in outside.items()},
            corrupted={name: _summary(each[index]) for name, each in under.items()},
        )
        for index in range(len(inside))
    ]


def _summary(log_probabilities: Tensor) -> Uncertainty:
    """log_probabilities: (n, adapters, samples, classes)."""
    return summarise(log_probabilities.flatten(1, 2).exp())


def _mode_report(
    model: EulerLoRA,
    question: Question,
    sampler: Sampler,
    answers: Answers,
    truth: Truth,
    corrupted: Ints,
) -> ModeReport:
    """corrupted: the indices of the images that were."""
    mode, samples = question
    threshold = model.config.threshold(mode, samples, sampler)
    found, msp = answers.found, answers.found.msp.numpy()
    outside = {name: each.msp.numpy() for name, each in answers.outside.items()}
    clean = Uncertainty(**{name: each[corrupted] for name, each in vars(found).items()})
    return ModeReport(
        mode=mode,
        samples=samples,
        sampler=sampler if mode == "stoch" else None,
        trajectories=answers.log_probabilities.shape[1],
        metrics=inside_metrics(answers.log_probabilities, found, truth),
        classes=class_figures(
            found.probabilities.argmax(dim=-1).numpy(), truth.labels, model.classes
        ),
        ood={name: outside_metrics(msp, each, truth) for name, each in outside.items()},
        threshold=threshold,
        flagged={
            TEST: flagged_share(msp, threshold, truth.clusters),
            **{
                name: flagged_share(each, threshold, np.arange(len(each)))
                for name, each in outside.items()
            },
        },
        groups=group_figures(found, truth, threshold),
        corruptions=corruption_metrics(
            clean,
            answers.corrupted,
            truth.labels[corrupted],
            np.unique(truth.clusters[corrupted], return_inverse=True)[1],
            threshold,
        ),
    )
