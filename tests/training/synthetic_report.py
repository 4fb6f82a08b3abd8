"""A synthetic evaluation report."""

import numpy as np

from training.evaluation.intervals import Estimate, Proportion, proportion
from training.evaluation.report_schema import (
    CLEAN,
    ClassMetrics,
    GroupMetrics,
    ModeReport,
    Report,
    Subset,
)


def estimate(value: float) -> Estimate:
    return Estimate(value, value - 0.05, value + 0.05)


def share(hits: int, images: int) -> Proportion | None:
    """Returns the share of hits among images of as many lesions."""
    return proportion(np.arange(images) < hits, np.arange(images))


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
    )


CORRUPTED = {"accuracy": estimate(0.4), "msp": estimate(0.6), "entropy": estimate(1.1)}

REPORT = Report(
    model="tiny",
    revision="sha256:00",
    data="squares, test part",
    images=1234,
    clusters=800,
    target=("red",),
    ood_images={"other": Subset(2_000, 10_000)},
    corrupted=Subset(100, 1234),
    modes=[
        ModeReport(
            mode=mode,
            samples=samples,
            sampler=None if mode == "det" else "independent",
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
            ood={
                "other": {
                    "auroc": estimate(0.91),
                    "auprc": estimate(0.92),
                    "fpr_at_95_tpr": estimate(0.93),
                }
            },
            threshold=threshold,
            flagged={
                "test": None if threshold is None else estimate(0.05),
                "other": None if threshold is None else estimate(0.75),
            },
            groups={
                "size": {
                    "large": group(900, 700, 100),
                    "small": group(49, 40, 20),
                    "rare": group(500, 400, 9),
                }
            },
            corruptions={CLEAN: CORRUPTED, "fog": CORRUPTED | {"auroc": estimate(0.7)}},
        )
        for mode, samples, threshold in (("det", 1, 0.6), ("stoch", 4, None))
    ],
)
