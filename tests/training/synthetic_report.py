"""A synthetic evaluation report."""

from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from eulerlora.answer import Predictions
from eulerlora.scores.ood_scores import FeatureDistance, FeatureStatistics
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.checkpoints import ScoreThreshold, Threshold
from tests.conftest import DET, STOCH
from training.data.images import LabelledImage
from training.evaluation.evaluate import Evaluation
from training.evaluation.intervals import proportion
from training.evaluation.mode_report import EvaluatedSet
from training.evaluation.report_schema import Report

REPORTS = TypeAdapter(Report)
Facts = dict[str, Any]
"""A part of `report.json`."""


def estimate(value: float, low: float | None = None, high: float | None = None) -> Facts:
    return {"value": value, "low": low, "high": high}


def near(value: float) -> Facts:
    return estimate(value, value - 0.05, value + 0.05)


def share(hits: int, images: int) -> object:
    return proportion(np.arange(images) < hits, np.arange(images))


def of_class(sensitivity: object, specificity: object = None, value: object = None) -> Facts:
    return {"sensitivity": sensitivity, "specificity": specificity, "predictive_value": value}


def of_score(value: float, flagged: object) -> Facts:
    metrics = {"auroc": value, "auprc": value + 0.01, "fpr_at_95_tpr": value + 0.02}
    return {"metrics": {name: near(of) for name, of in metrics.items()}, "flagged": flagged}


def of_group(images: int, clusters: int, target: int) -> Facts:
    return {
        "images": images, "clusters": clusters, "target": target,
        "metrics": {"accuracy": near(0.5), "overconfidence": near(0.1), "auroc": near(0.8)},
        "sensitivity": share(target // 2, target),
        "specificity": share((images - target) // 2, images - target),
    }  # fmt: skip


def of_set(group: str, images: int, of: int, seen: int, resembles: str | None) -> Facts:
    return {
        "group": group, "generated": group == "shifted", "used": {"images": images, "of": of},
        "seen": seen, "resembles": resembles,
    }  # fmt: skip


MODES = [
    {
        "options": options,
        "trajectories": 2 * samples,
        "metrics": {
            "accuracy": near(0.5 + samples / 100), "macro_f1": near(0.4), "macro_auroc": None,
            "ece": near(0.2), "nll": near(1.0), "brier": near(0.7), "aurc": near(0.12),
            "augrc": near(0.08),
        },
        "error_ranking": {
            score: {"auroc": near(0.7), "aurc": near(0.2)}
            for score in ("msp", "entropy", "mutual_information")
        },
        "classes": {
            "red": of_class(share(3, 12), share(9, 10), share(3, 4)), "blue": of_class(None)
        },
        "difference": {} if options == DET else {
            "nll": estimate(0.003, 0.001, 0.005),
            "accuracy": estimate(-0.002, -0.004, 0.001),
            "brier": estimate(0.001, 0.0, 0.002),
        },
        "thresholds": {"msp": 0.6, "feature_distance": 35.0} if options == DET else {},
        "flagged": {} if options == STOCH else {
            "msp": share(61, 1234), "feature_distance": share(70, 1234)
        },
        "ood": {
            name: {
                "scores": {
                    "msp": of_score(0.5, share(4, 10) if options == DET else None),
                    "energy": of_score(0.6, None),
                    "feature_distance": of_score(0.9, share(8, 10) if options == DET else None),
                },
                "accuracy": share(9, 20) if name == "haze" else None,
            }
            for name in ("haze", "other", "close")
        },
        "groups": {
            "size": {
                "large": of_group(900, 700, 100),
                "small": of_group(49, 40, 20),
                "rare": of_group(500, 400, 9),
            }
        },
    }
    for options, samples in ((DET, 1), (STOCH, 4))
]  # fmt: skip


def report(**changes: object) -> Report:
    """The report of these facts, some of them changed."""
    facts = {
        "model": "tiny", "revision": "sha256:00",
        "method": {
            "title": "LoRA, rank 20", "sampled": False, "recipe_sha256": "00", "seed": 0
        },
        "data": "squares, test part", "images": 1234, "unit": "lesion", "units": 800,
        "sampled": "lesion", "clusters": 800, "seen": 0, "fitted": 0, "target": ("red",),
        "ood_sets": {
            "haze": of_set("shifted", 100, 100, 0, "the data set itself"),
            "other": of_set("far", 2_000, 10_000, 7, "everyday photographs"),
            "close": of_set("near", 30, 30, 0, None),
        },
        "modes": MODES,
    }  # fmt: skip
    return REPORTS.validate_python(facts | changes)


def report_json(of: Report) -> bytes:
    """The content of `report.json`."""
    return REPORTS.dump_json(of)


REPORT = report()


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
