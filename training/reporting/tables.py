"""The tables of a report, as Markdown; each figure with its 95% confidence interval."""

from collections.abc import Iterable, Iterator, Sequence

from training.evaluation.intervals import RESAMPLES, Estimate
from training.evaluation.report_schema import TEST, GroupFigures, ModeReport, Report, Subset
from training.evaluation.sensitivity import Proportion

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
    """The test part's metrics, one column for each mode."""
    modes = report.modes
    rows = [
        [name, *(_estimate(each.metrics.get(key)) for each in modes)]
        for key, name in METRICS.items()
    ]
    rows.append(["OOD threshold on MSP", *(_number(each.threshold) for each in modes)])
    rows.append(["flagged, test part", *(_estimate(each.flagged[TEST]) for each in modes)])
    return table(["", *(each.title for each in modes)], rows)


def intervals_note(report: Report) -> str:
    """What the intervals are."""
    drawn = "images" if report.clusters == report.images else "lesions, all images of one together"
    return (
        f"In brackets: 95% confidence intervals, from {RESAMPLES:,} resamples of the {drawn} "
        "(percentile bootstrap); of shares with their counts in parentheses, exact ones, for which "
        "every image counts on its own. They tell what other test images of the same kind would "
        "change, not what another training run or another clinic would. An ECE grows with chance "
        "alone, so that its interval lies too high."
    )


def class_table(mode: ModeReport) -> str:
    """Sensitivity, specificity and predictive value of each class in a mode."""
    rows = [
        [
            name,
            "0" if found.sensitivity is None else f"{found.sensitivity.images:,}",
            _proportion(found.sensitivity),
            _proportion(found.specificity),
            _proportion(found.predictive_value),
        ]
        for name, found in mode.classes.items()
    ]
    return table(["class", "images", "sensitivity", "specificity", "predictive value"], rows)


def ood_table(report: Report) -> str:
    """How well MSP tells each out-of-distribution set from the test part."""
    return table(["", *(each.title for each in report.modes)], _ood_rows(report))


def group_table(report: Report, mode: ModeReport) -> str:
    """The groups' figures in a mode."""
    target = listed(report.target, "or")
    head = ["", "images", *(["lesions"] if report.clusters < report.images else []), "accuracy"]
    head += ["MSP - accuracy", f"AUROC, {target}" if report.target else "macro-AUROC"]
    head += [f"sensitivity, {target}"] if report.target else []
    head += [] if mode.threshold is None else ["flagged"]
    rows: list[list[str]] = []
    for kind, groups in mode.groups.items():
        rows.append([f"**{kind}**", *("" for _ in head[1:])])
        rows += [_group_row(report, mode, name, found) for name, found in groups.items()]
    return table(head, rows)


def corruption_table(mode: ModeReport) -> str:
    """The corruptions' figures in a mode."""
    rows = [
        [name, *(_estimate(found.get(key)) for key in CORRUPTION_METRICS)]
        for name, found in mode.corruptions.items()
    ]
    return table(["corruption", *CORRUPTION_METRICS.values()], rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers."""
    ruler = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join([_row(head), ruler, *(_row(each) for each in rows)])


def listed(names: Sequence[str], word: str) -> str:
    """Such as "a, b or c"."""
    *first, last = names or [""]
    return f"{', '.join(first)} {word} {last}" if first else last


def used(subset: Subset) -> str:
    """Such as "500 of 2,003"."""
    some = f"{subset.images:,}"
    return some if subset.images == subset.of else f"{some} of {subset.of:,}"


def _ood_rows(report: Report) -> Iterator[list[str]]:
    for ood, subset in report.ood_images.items():
        yield [f"**{ood}** ({used(subset)} images)", *("" for _ in report.modes)]
        for key, name in OOD_METRICS.items():
            yield [name, *(_estimate(each.ood[ood].get(key)) for each in report.modes)]
        yield ["flagged", *(_estimate(each.flagged.get(ood)) for each in report.modes)]


def _group_row(report: Report, mode: ModeReport, name: str, found: GroupFigures) -> list[str]:
    few = found.images < FEW_IMAGES or (bool(report.target) and found.target < FEW_TARGETS)
    counts = [found.images, *([found.clusters] if report.clusters < report.images else [])]
    keys = ["accuracy", "overconfidence", "auroc"]
    return [
        f"{name} ({TOO_FEW})" if few else name,
        *(f"{each:,}" for each in counts),
        *(_estimate(found.metrics.get(key)) for key in keys),
        *([_proportion(found.sensitivity)] if report.target else []),
        *([] if mode.threshold is None else [_estimate(found.metrics.get("flagged"))]),
    ]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(each.replace("|", r"\|") for each in cells) + " |"


def _number(figure: float | None) -> str:
    return "n/a" if figure is None else f"{figure:.3f}"


def _estimate(found: Estimate | None) -> str:
    return "n/a" if found is None else f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _proportion(found: Proportion | None) -> str:
    if found is None:
        return "n/a"
    interval = f"[{found.low:.3f}, {found.high:.3f}]"
    return f"{found.share:.3f} {interval} ({found.hits:,}/{found.images:,})"
