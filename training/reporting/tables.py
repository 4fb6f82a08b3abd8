"""Markdown tables of a report; every estimate has its 95% confidence interval."""

from collections.abc import Iterable, Iterator, Sequence

from training.evaluation.intervals import RESAMPLES, Estimate, Proportion
from training.evaluation.report_schema import TEST, GroupMetrics, ModeReport, Report, Subset

METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "macro_auroc": "macro-AUROC",
    "ece": "ECE (10 bins)",
    "nll": "NLL (nats)",
    "brier": "Brier score",
    "aurc": "AURC",
    "augrc": "AUGRC",
}
OOD_METRICS = {"auroc": "AUROC", "auprc": "AUPRC", "fpr_at_95_tpr": "FPR at 95% TPR"}
ERROR_SCORES = {"msp": "MSP", "entropy": "entropy", "mutual_information": "mutual information"}
RANKING_METRICS = {"auroc": "AUROC", "aurc": "AURC"}
CORRUPTION_METRICS = {
    "accuracy": "accuracy",
    "msp": "mean MSP",
    "entropy": "mean entropy (nats)",
    "auroc": "AUROC",
    "flagged": "flagged",
}
FEW_IMAGES = 50
FEW_TARGETS = 10
TOO_FEW = "too few"


def metrics_table(report: Report) -> str:
    """Returns the metrics of the test part, one column for each mode."""
    modes = report.modes
    rows = [
        [name, *(_estimate(mode.metrics.get(key)) for mode in modes)]
        for key, name in METRICS.items()
    ]
    rows.append(["OOD threshold on MSP", *(_number(mode.threshold) for mode in modes)])
    rows.append(["flagged, test part", *(_estimate(mode.flagged[TEST]) for mode in modes)])
    return table(["", *(mode.title for mode in modes)], rows)


def intervals_note(report: Report) -> str:
    """Returns an explanation of the confidence intervals."""
    unit, binomial = "images", "are the exact binomial intervals of Clopper and Pearson"
    if report.clusters < report.images:
        unit = "lesions; the images of a lesion stay together"
        binomial = (
            "are those of Korn and Graubard: binomial intervals, widened by the correlation of the "
            "images of a lesion"
        )
    return (
        "Brackets contain 95% confidence intervals. The intervals of shares with counts in "
        f"parentheses {binomial}. All other intervals are percentile bootstrap intervals from "
        f"{RESAMPLES:,} resamples of the {unit}. The intervals cover the choice of test images, "
        "not another training run or another clinic. Sampling noise increases the ECE, so its "
        "interval is biased upwards."
    )


def class_table(report: Report, mode: ModeReport) -> str:
    """Returns sensitivity, specificity and predictive value by class."""
    clustered = report.clusters < report.images
    head = ["class", "images", *(["lesions"] if clustered else [])]
    rows = [
        [
            name,
            *_counts(metrics.sensitivity, clustered),
            _proportion(metrics.sensitivity),
            _proportion(metrics.specificity),
            _proportion(metrics.predictive_value),
        ]
        for name, metrics in mode.classes.items()
    ]
    return table([*head, "sensitivity", "specificity", "predictive value"], rows)


def error_ranking_table(report: Report) -> str:
    """Returns how well each score of uncertainty ranks errors, one column for each mode."""
    rows = [
        [
            f"{metric}, {score}",
            *(_estimate(mode.error_ranking[score_key].get(key)) for mode in report.modes),
        ]
        for key, metric in RANKING_METRICS.items()
        for score_key, score in ERROR_SCORES.items()
    ]
    return table(["", *(mode.title for mode in report.modes)], rows)


def ood_table(report: Report) -> str:
    """Returns the OOD metrics of the MSP, by out-of-distribution set."""
    return table(["", *(mode.title for mode in report.modes)], _ood_rows(report))


def group_table(report: Report, mode: ModeReport) -> str:
    """Returns the metrics of a mode by group."""
    target = enumeration(report.target, "or")
    head = ["", "images", *(["lesions"] if report.clusters < report.images else []), "accuracy"]
    head += ["MSP - accuracy", f"AUROC, {target}" if report.target else "macro-AUROC"]
    head += [f"sensitivity, {target}"] if report.target else []
    head += [] if mode.threshold is None else ["flagged"]
    rows: list[list[str]] = []
    for attribute, groups in mode.groups.items():
        rows.append([f"**{attribute}**", *("" for _ in head[1:])])
        rows += [_group_row(report, mode, name, metrics) for name, metrics in groups.items()]
    return table(head, rows)


def corruption_table(mode: ModeReport) -> str:
    """Returns the metrics of a mode by corruption."""
    rows = [
        [name, *(_estimate(metrics.get(key)) for key in CORRUPTION_METRICS)]
        for name, metrics in mode.corruptions.items()
    ]
    return table(["corruption", *CORRUPTION_METRICS.values()], rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table with text in the first column and numbers in the others."""
    separator = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join([_row(head), separator, *(_row(row) for row in rows)])


def enumeration(names: Sequence[str], conjunction: str) -> str:
    """Returns names as text, such as "a, b or c"."""
    *first, last = names or [""]
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def subset_text(subset: Subset) -> str:
    """Returns the size of a subset, such as "500 of 2,003", or "2,003" for all images."""
    images = f"{subset.images:,}"
    return images if subset.images == subset.of else f"{images} of {subset.of:,}"


def _ood_rows(report: Report) -> Iterator[list[str]]:
    for ood, subset in report.ood_images.items():
        yield [f"**{ood}** ({subset_text(subset)} images)", *("" for _ in report.modes)]
        for key, name in OOD_METRICS.items():
            yield [name, *(_estimate(mode.ood[ood].get(key)) for mode in report.modes)]
        yield ["flagged", *(_estimate(mode.flagged.get(ood)) for mode in report.modes)]


def _group_row(report: Report, mode: ModeReport, name: str, group: GroupMetrics) -> list[str]:
    few = group.images < FEW_IMAGES or (bool(report.target) and group.target < FEW_TARGETS)
    counts = [group.images, *([group.clusters] if report.clusters < report.images else [])]
    keys = ["accuracy", "overconfidence", "auroc"]
    return [
        f"{name} ({TOO_FEW})" if few else name,
        *(f"{count:,}" for count in counts),
        *(_estimate(group.metrics.get(key)) for key in keys),
        *([_proportion(group.sensitivity)] if report.target else []),
        *([] if mode.threshold is None else [_estimate(group.metrics.get("flagged"))]),
    ]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "n/a"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _counts(proportion: Proportion | None, clustered: bool) -> list[str]:
    """Returns the numbers of images and, if clustered, of lesions."""
    counts = (0, 0) if proportion is None else (proportion.images, proportion.clusters)
    return [f"{count:,}" for count in (counts if clustered else counts[:1])]


def _proportion(proportion: Proportion | None) -> str:
    if proportion is None:
        return "n/a"
    interval = f"[{proportion.low:.3f}, {proportion.high:.3f}]"
    return f"{proportion.share:.3f} {interval} ({proportion.hits:,}/{proportion.images:,})"
