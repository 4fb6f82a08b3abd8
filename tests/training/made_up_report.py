"""A report on a model that nobody evaluated."""

from training.evaluation.intervals import Estimate
from training.evaluation.report_schema import CLEAN, GroupFigures, ModeReport, Report, Subset
from training.evaluation.sensitivity import ClassFigures, proportion


def near(value: float) -> Estimate:
    return Estimate(value, value - 0.05, value + 0.05)


def group(images: int, clusters: int, target: int) -> GroupFigures:
    return GroupFigures(
        images=images,
        clusters=clusters,
        target=target,
        metrics={"accuracy": near(0.5), "overconfidence": near(0.1), "auroc": near(0.8)},
        sensitivity=proportion(target // 2, target),
    )


CORRUPTED = {"accuracy": near(0.4), "msp": near(0.6), "entropy": near(1.1)}

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
                "accuracy": near(0.5 + samples / 100),
                "macro_f1": near(0.4),
                "macro_auroc": None,
                "ece": near(0.2),
                "nll": near(1.0),
                "brier": near(0.7),
                "aurc": near(0.12),
                "augrc": near(0.08),
            },
            classes={
                "red": ClassFigures(proportion(3, 12), proportion(9, 10), proportion(3, 4)),
                "blue": ClassFigures(None, None, None),
            },
            ood={"other": {"auroc": near(0.91), "auprc": near(0.92), "fpr_at_95_tpr": near(0.93)}},
            threshold=threshold,
            flagged={
                "test": None if threshold is None else near(0.05),
                "other": None if threshold is None else near(0.75),
            },
            groups={
                "size": {
                    "large": group(900, 700, 100),
                    "small": group(49, 40, 20),
                    "rare": group(500, 400, 9),
                }
            },
            corruptions={CLEAN: CORRUPTED, "fog": CORRUPTED | {"auroc": near(0.7)}},
        )
        for mode, samples, threshold in (("det", 1, 0.6), ("stoch", 4, None))
    ],
)
