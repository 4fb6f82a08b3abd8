"""A synthetic evaluation report."""

import numpy as np
import torch

from eulerlora.answer import Predictions
from eulerlora.scores.ood_scores import FeatureDistance, FeatureStatistics
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.checkpoints import ScoreThreshold, Threshold
from tests.conftest import DET, STOCH
from training.data.images import LabelledImage
from training.evaluation.evaluate import Evaluation
from training.evaluation.intervals import Estimate, Proportion, proportion
from training.evaluation.mode_report import EvaluatedSet
from training.evaluation.report_schema import (
    ClassMetrics,
    GroupMetrics,
    ModeReport,
    OodMetrics,
    OodSetFacts,
    Report,
    ScoreMetrics,
    Subset,
)


def estimate(value: float) -> Estimate:
    return Estimate(value, value - 0.05, value + 0.05)


def share(hits: int, images: int) -> Proportion | None:
    return proportion(np.arange(images) < hits, np.arange(images))


def score_metrics(value: float, flagged: Proportion | None) -> ScoreMetrics:
    metrics = {"auroc": value, "auprc": value + 0.01, "fpr_at_95_tpr": value + 0.02}
    return ScoreMetrics({name: estimate(metric) for name, metric in metrics.items()}, flagged)


def group(images: int, clusters: int, target: int) -> GroupMetrics:
    return GroupMetrics(
        images=images,
        clusters=clusters,
        target=target,
        metrics={
            "accuracy": estimate(0.5),
            "overconfidence": estimate(0.1),
            "auroc": estimate(0.8),
        },
        sensitivity=share(target // 2, target),
        specificity=share((images - target) // 2, images - target),
    )


REPORT = Report(
    model="tiny",
    revision="sha256:00",
    data="squares, test part",
    images=1234,
    unit="lesion",
    units=800,
    sampled="lesion",
    clusters=800,
    seen=0,
    fitted=0,
    target=("red",),
    ood_sets={
        "haze": OodSetFacts("shifted", True, Subset(100, 100), 0, "the data set itself"),
        "other": OodSetFacts("far", False, Subset(2_000, 10_000), 7, "everyday photographs"),
        "close": OodSetFacts("near", False, Subset(30, 30), 0, None),
    },
    modes=[
        ModeReport(
            options=options,
            trajectories=2 * samples,
            metrics={
                "accuracy": estimate(0.5 + samples / 100),
                "macro_f1": estimate(0.4),
                "macro_auroc": None,
                "ece": estimate(0.2),
                "nll": estimate(1.0),
                "brier": estimate(0.7),
                "aurc": estimate(0.12),
                "augrc": estimate(0.08),
            },
            error_ranking={
                score: {"auroc": estimate(0.7), "aurc": estimate(0.2)}
                for score in ("msp", "entropy", "mutual_information")
            },
            classes={
                "red": ClassMetrics(share(3, 12), share(9, 10), share(3, 4)),
                "blue": ClassMetrics(None, None, None),
            },
            difference={}
            if options == DET
            else {
                "nll": Estimate(0.003, 0.001, 0.005),
                "accuracy": Estimate(-0.002, -0.004, 0.001),
                "brier": Estimate(0.001, 0.0, 0.002),
            },
            thresholds={} if threshold is None else {"msp": threshold, "feature_distance": 35.0},
            flagged={}
            if threshold is None
            else {"msp": share(61, 1234), "feature_distance": share(70, 1234)},
            ood={
                name: OodMetrics(
                    scores={
                        "msp": score_metrics(0.5, threshold and share(4, 10)),
                        "energy": score_metrics(0.6, None),
                        "feature_distance": score_metrics(0.9, threshold and share(8, 10)),
                    },
                    accuracy=share(9, 20) if name == "haze" else None,
                )
                for name in ("haze", "other", "close")
            },
            groups={
                "size": {
                    "large": group(900, 700, 100),
                    "small": group(49, 40, 20),
                    "rare": group(500, 400, 9),
                }
            },
        )
        for options, samples, threshold in ((DET, 1, 0.6), (STOCH, 4, None))
    ],
)


def synthetic_evaluation(report: Report) -> Evaluation:
    """Predictions for three images of two classes in each set."""
    probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]], dtype=torch.float64)
    partition = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    trajectories = Trajectories.of(
        logits=(probabilities.log() + partition[:, None])[:, None, None],
        features=torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])[:, None, None],
        views=torch.zeros(3, 1, 1, dtype=torch.int64),
    )
    distance = FeatureDistance(FeatureStatistics(torch.zeros(1, 2), torch.eye(2)))
    thresholds = Threshold(
        options=DET, msp=0.55, kept=0.95, images=3, data="squares",
        feature_distance=ScoreThreshold(threshold=2.5, kept=0.95, upper_quartile=2.0),
    )  # fmt: skip
    predictions = [Predictions.of(trajectories, distance, thresholds) for _ in report.modes]

    def images(name: str, group: str, labels: tuple[int, ...]) -> EvaluatedSet:
        shown = [
            LabelledImage(
                f"{name}/{index}",
                torch.full((3, 40, 30), 80 * index, dtype=torch.uint8),
                label,
                f"lesion {index}",
                {"size": "large"},
            )
            for index, label in enumerate(labels)
        ]
        return EvaluatedSet(name, group, shown, group != "far", predictions)

    return Evaluation(
        report,
        ("red", "blue"),
        test=images("test", "test", (0, 0, 1)),
        ood={
            name: images(name, facts.group, (-1, -1, -1)) for name, facts in report.ood_sets.items()
        },
        training=[{"loss_by_epoch": [1.2, 0.9]}],
    )
