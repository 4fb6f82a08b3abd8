"""Markdown tables of out-of-distribution sets, by group and OOD score."""

from collections.abc import Callable, Iterator
from typing import get_args

from training.evaluation.report_schema import ModeReport, Report
from training.recipe.schema import OodGroup
from training.reporting.tables import (
    OOD_METRICS,
    SCORE_NAMES,
    estimate_text,
    proportion_text,
    subset_text,
    table,
)


def ood_set_table(report: Report) -> str:
    """Returns the out-of-distribution sets with their groups and what they resemble."""
    rows = [
        [name, facts.group, subset_text(facts.used), facts.resembles or ""]
        for name, facts in report.ood_sets.items()
    ]
    return table(["set", "group", "images", "resembles what training was shown"], rows)


def ood_table(report: Report, mode: ModeReport, metric: str) -> str:
    """Returns a metric of each OOD score by set, sorted by group."""
    scores = [name for name in SCORE_NAMES if any(name in ood.scores for ood in mode.ood.values())]
    return table(
        [OOD_METRICS[metric], *(SCORE_NAMES[score] for score in scores)],
        _by_group(
            report,
            lambda name: [
                estimate_text(mode.ood[name].scores[score].metrics.get(metric)) for score in scores
            ],
        ),
    )


def flagged_table(report: Report, mode: ModeReport) -> str:
    """Returns the share flagged by each score with a threshold, by set, and the accuracy."""
    scores = [score for score in SCORE_NAMES if score in mode.thresholds]
    labelled = any(ood.accuracy is not None for ood in mode.ood.values())
    head = ["", *(f"flagged by {SCORE_NAMES[score]}" for score in scores)]
    head += ["accuracy"] if labelled else []

    def cells(name: str) -> list[str]:
        ood = mode.ood[name]
        shares = [proportion_text(ood.scores[score].flagged) for score in scores]
        return shares + ([proportion_text(ood.accuracy)] if labelled else [])

    test_part = ["test part", *(proportion_text(mode.flagged.get(score)) for score in scores)]
    test_part += [estimate_text(mode.metrics.get("accuracy"))] if labelled else []
    return table(head, [test_part, *_by_group(report, cells)])


def ood_groups(report: Report) -> dict[str, list[str]]:
    """Returns the names of the sets by group, in the order far, near, shifted."""
    by_group: dict[str, list[str]] = {}
    for group in get_args(OodGroup):
        names = [name for name, facts in report.ood_sets.items() if facts.group == group]
        by_group |= {group: names} if names else {}
    return by_group


def _by_group(report: Report, cells: Callable[[str], list[str]]) -> Iterator[list[str]]:
    """Yields a row for each group and set. cells: of a set, by its name."""
    for group, names in ood_groups(report).items():
        yield [f"**{group}**", *("" for _ in cells(names[0]))]
        yield from ([name, *cells(name)] for name in names)
