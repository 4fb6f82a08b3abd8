"""Markdown tables of a report; every estimate has its 95% confidence interval."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import get_args

from eulerlora.scores.ood_scores import ScoreName
from eulerlora_contract.printable import markdown_table
from training.data.images import OodGroup
from training.evaluation.intervals import MIN_CLUSTERS, RESAMPLES, Estimate, Proportion
from training.evaluation.metrics import MEAN_LOGITS
from training.evaluation.report_schema import (
    FLAG_METRICS,
    GroupMetrics,
    ModeReport,
    Report,
    SetCoverage,
)

METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "macro_auroc": "macro-AUROC",
    "ece": "ECE (10 bins)",
    "classwise_ece": "class-wise ECE (10 bins)",
    "smooth_ece": "SmoothECE",
    "nll": "NLL (nats)",
    "brier": "Brier score",
    "aurc": "AURC",
    "augrc": "AUGRC",
}
MEAN_LOGITS_METRICS = {
    f"{key}{MEAN_LOGITS}": METRICS[key] for key in ("accuracy", "ece", "nll", "brier")
}
"""Those of the mean logits, with the titles of those of the mean probability."""
OOD_METRICS = {"auroc": "AUROC", "auprc": "AUPRC", "fpr_at_95_tpr": "FPR at 95% TPR"}
_ERROR_SCORES = {
    "msp": "MSP",
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "between_adapters": "variance between adapters",
    "between_views": "variance between views",
}
_RANKING_METRICS = {"auroc": "AUROC", "aurc": "AURC"}
SCORE_NAMES: Mapping[ScoreName, str] = {
    "msp": "MSP",
    "energy": "energy",
    "feature_distance": "feature distance",
}
_FLAGGED_NAMES = {name: f"flagged by {SCORE_NAMES[score]}" for score, name in FLAG_METRICS.items()}
_CARD_METRICS = ("accuracy", "macro_auroc", "ece", "nll")
CARD_CLASSES = 10
"""Classes that a model card, which is one page, describes."""
FEW_IMAGES = 50
FEW_TARGETS = 10
TOO_FEW = "too few"


def counted_images(report: Report) -> str:
    """Such as "93 images of 70 lesions of 66 groups"."""
    counts = {report.unit: report.units, report.sampled: report.clusters}
    units = (f" of {count:,} {unit}s" for unit, count in counts.items() if unit != "picture")
    return f"{report.images:,} images{''.join(units)}"


def metrics_table(report: Report) -> str:
    modes = report.modes
    rows = [
        [name, *(cell(mode.metrics.get(key)) for mode in modes)] for key, name in METRICS.items()
    ]
    for score, name in SCORE_NAMES.items():
        if any(score in mode.thresholds for mode in modes):
            limits = [cell(mode.thresholds.get(score)) for mode in modes]
            shares = [cell(mode.flagged.get(score)) for mode in modes]
            rows += [[f"OOD threshold, {name}", *limits], [f"flagged by {name}", *shares]]
    return markdown_table(["", *(mode.title for mode in modes)], rows)


def card_table(report: Report) -> str:
    """The main metrics of a model card, and the range of flagged shares in far and near sets.

    The latter are those of the feature distance, where it has a threshold, which flags most. What
    should be flagged of shifted sets depends on the use.
    """
    rows = [
        [METRICS[key], *(cell(mode.metrics.get(key)) for mode in report.modes)]
        for key in _CARD_METRICS
    ]
    scores = [score for score in FLAG_METRICS if any(score in m.flagged for m in report.modes)]
    for score in scores:
        shares = (_share(mode.flagged.get(score)) for mode in report.modes)
        rows.append([f"flagged by {SCORE_NAMES[score]}", *shares])
    groups = {group: names for group, names in ood_groups(report).items() if group != "shifted"}
    for group, names in groups.items():
        for score in scores[-1:]:
            ranges = [_flagged_range(mode, names, score) for mode in report.modes]
            if any(ranges):
                sets = f"{len(names)} {group} set{'s' * (len(names) > 1)}"
                rows.append([f"the same, {sets}", *(found or "n/a" for found in ranges)])
    return markdown_table(["", *(mode.title for mode in report.modes)], rows)


def _flagged_range(mode: ModeReport, names: Sequence[str], score: ScoreName) -> str | None:
    flagged = [
        mode.ood[name].scores[score].flagged for name in names if score in mode.ood[name].scores
    ]
    shares = [one.share for one in flagged if one is not None]
    if len(shares) > 1:
        return f"{min(shares):.2f} to {max(shares):.2f}"
    return f"{shares[0]:.2f}" if shares else None


def _share(value: Proportion | None) -> str:
    return "n/a" if value is None else value.text()


def card_sensitivities(report: Report) -> dict[str, str]:
    """The sensitivity of each class in the last mode with what it rests on, such as
    "0.250 [0.055, 0.572] (12)"; with many classes, the lowest ones.
    """
    mode = report.modes[-1]

    def lowest(name: str) -> float:
        sensitivity = mode.classes[name].sensitivity
        return 2.0 if sensitivity is None else sensitivity.share  # those without images last

    names = list(mode.classes)
    if len(names) > CARD_CLASSES:
        names = sorted(names, key=lowest)[:CARD_CLASSES]
    clustered = report.sampled != "picture"
    sensitivities = {name: mode.classes[name].sensitivity for name in names}
    return {
        name: f"{_share(sensitivity)} ({_counts(sensitivity, clustered)[-1]})"
        for name, sensitivity in sensitivities.items()
    }


def intervals_note(report: Report) -> str:
    sampled, binomial = "images", "are the exact binomial intervals of Clopper and Pearson"
    if report.sampled != "picture":
        sampled = f"{report.sampled}s; the images of a {report.sampled} stay together"
        binomial = (
            "are those of Korn and Graubard: binomial intervals, widened by the correlation of the "
            f"images of a {report.sampled}"
        )
    return (
        "Shares and means are of images where nothing else is named. "
        "Brackets contain 95% confidence intervals. The intervals of shares, such as the accuracy, "
        f"{binomial}. All other intervals are percentile bootstrap intervals from "
        f"{RESAMPLES:,} resamples of the {sampled}. There is no interval for fewer than "
        f"{MIN_CLUSTERS} of these, also of either kind that a value compares (such as "
        "those of a class and the others), nor for a value that is the same in all resamples. The "
        "intervals cover the choice of test images, not another training run or another clinic. "
        "Sampling noise increases the three calibration errors, so their intervals are biased "
        "upwards."
    )


def class_table(report: Report, mode: ModeReport) -> str:
    clustered = report.sampled != "picture"
    head = ["class", "images", *([f"{report.sampled}s"] if clustered else [])]
    rows = [
        [
            name,
            *_counts(metrics.sensitivity, clustered),
            cell(metrics.sensitivity),
            cell(metrics.specificity),
            cell(metrics.predictive_value),
            cell(metrics.ranking.get("auroc")),
            cell(metrics.ranking.get("auprc")),
        ]
        for name, metrics in mode.classes.items()
    ]
    head += ["sensitivity", "specificity", "predictive value", "AUROC", "average precision"]
    return markdown_table(head, rows)


def error_ranking_table(report: Report) -> str:
    rows = [
        [
            f"{metric}, {score}",
            *(cell(mode.error_ranking.get(score_key, {}).get(key)) for mode in report.modes),
        ]
        for key, metric in _RANKING_METRICS.items()
        for score_key, score in _ERROR_SCORES.items()
        if any(score_key in mode.error_ranking for mode in report.modes)
    ]
    return markdown_table(["", *(mode.title for mode in report.modes)], rows)


def group_table(report: Report, mode: ModeReport) -> str:
    target = enumeration(report.target, "or")
    units = [f"{report.sampled}s"] if report.sampled != "picture" else []
    head = ["", "images", *units, "accuracy", "MSP - accuracy"]
    head += [f"AUROC, {target}" if report.target else "macro-AUROC"]
    head += [f"sensitivity, {target}", f"specificity, {target}"] if report.target else []
    head += [_FLAGGED_NAMES[name] for name in _flag_metrics(mode)]
    rows: list[list[str]] = []
    for attribute, groups in mode.groups.items():
        rows.append([f"**{attribute}**", *("" for _ in head[1:])])
        rows += [_group_row(report, mode, name, metrics) for name, metrics in groups.items()]
    return markdown_table(head, rows)


def prediction_set_table(report: Report, sets: Sequence[SetCoverage]) -> str:
    """Covered units and mean set size by class, with columns for each coverage."""
    if not sets:
        return "not calibrated"
    head = ["class", f"{report.unit}s"]
    for entry in sets:
        head += [f"covered, stated {entry.coverage:g}", f"set size, {entry.coverage:g}"]
    rows = []
    for name, first in sets[0].classes.items():
        row = [name, f"{first.units.images:,}"]
        for entry in sets:
            result, always = entry.classes[name], " always" * (name in entry.always_included)
            row += [f"{cell(result.units)}{always}", f"{result.mean_size:.2f}"]
        rows.append(row)
    sizes = (text for entry in sets for text in ("", f"{entry.mean_size:.2f}"))
    return markdown_table(head, [*rows, ["all images", "", *sizes]])


def enumeration(names: Sequence[str], conjunction: str) -> str:
    """Names as text, such as "a, b or c"."""
    *first, last = names or [""]
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def _group_row(report: Report, mode: ModeReport, name: str, group: GroupMetrics) -> list[str]:
    few = group.images < FEW_IMAGES or (bool(report.target) and group.target < FEW_TARGETS)
    counts = [group.images, *([group.clusters] if report.sampled != "picture" else [])]
    keys = ["accuracy", "overconfidence", "auroc"]
    return [
        f"{name} ({TOO_FEW})" if few else name,
        *(f"{count:,}" for count in counts),
        *(cell(group.metrics.get(key)) for key in keys),
        *([cell(group.sensitivity), cell(group.specificity)] if report.target else []),
        *(cell(group.metrics.get(key)) for key in _flag_metrics(mode)),
    ]


def _flag_metrics(mode: ModeReport) -> list[str]:
    return [name for score, name in FLAG_METRICS.items() if score in mode.thresholds]


def _counts(proportion: Proportion | None, clustered: bool) -> list[str]:
    counts = (0, 0) if proportion is None else (proportion.images, proportion.clusters)
    return [f"{count:,}" for count in (counts if clustered else counts[:1])]


def cell(value: Estimate | Proportion | float | None, form: str = ".3f") -> str:
    """A figure with its interval, and with its counts if it is a share; "n/a" for None."""
    if value is None:
        return "n/a"
    if isinstance(value, Proportion):
        return f"{value.text()} ({value.hits:,}/{value.images:,})"
    return value.text(form) if isinstance(value, Estimate) else f"{value:{form}}"


def ood_set_table(report: Report) -> str:
    rows = []
    for name, facts in report.ood_sets.items():
        used = f"{facts.used.images:,}"
        if facts.used.limited:
            used += f" of {facts.used.of:,}"
        seen = f"{facts.seen:,} of these images" if facts.seen else None
        rows.append([name, facts.group, used, "; ".join(filter(None, [seen, facts.resembles]))])
    return markdown_table(
        ["set", "group", "images", "training was shown these or similar images"], rows
    )


def ood_tables(report: Report, mode: ModeReport) -> str:
    metrics = [_ood_table(report, mode, metric) for metric in ("auroc", "fpr_at_95_tpr")]
    return "\n\n".join([_flagged_table(report, mode), *metrics])


def _ood_table(report: Report, mode: ModeReport, metric: str) -> str:
    scores = [name for name in SCORE_NAMES if any(name in ood.scores for ood in mode.ood.values())]
    return markdown_table(
        [OOD_METRICS[metric], *(SCORE_NAMES[score] for score in scores)],
        _by_group(
            report,
            lambda name: [
                cell(mode.ood[name].scores[score].metrics.get(metric)) for score in scores
            ],
        ),
    )


def _flagged_table(report: Report, mode: ModeReport) -> str:
    scores = [score for score in SCORE_NAMES if score in mode.thresholds]
    labelled = any(ood.accuracy is not None for ood in mode.ood.values())
    head = ["", *(f"flagged by {SCORE_NAMES[score]}" for score in scores)]
    head += ["accuracy"] if labelled else []

    def cells(name: str) -> list[str]:
        ood = mode.ood[name]
        shares = [cell(ood.scores[score].flagged) for score in scores]
        return shares + ([cell(ood.accuracy)] if labelled else [])

    test_part = ["test part", *(cell(mode.flagged.get(score)) for score in scores)]
    test_part += [cell(mode.metrics.get("accuracy"))] if labelled else []
    return markdown_table(head, [test_part, *_by_group(report, cells)])


def ood_groups(report: Report) -> dict[str, list[str]]:
    """The names of the sets by group, in the order far, near, shifted."""
    by_group: dict[str, list[str]] = {}
    for group in get_args(OodGroup):
        names = [name for name, facts in report.ood_sets.items() if facts.group == group]
        by_group |= {group: names} if names else {}
    return by_group


def _by_group(report: Report, cells: Callable[[str], list[str]]) -> Iterator[list[str]]:
    """Yields a row for each group and set; `cells` returns those of a set by its name."""
    for group, names in ood_groups(report).items():
        yield [f"**{group}**", *("" for _ in cells(names[0]))]
        yield from ([name, *cells(name)] for name in names)
