"""Evaluation reports: a folder with JSON, Markdown and charts."""

from collections.abc import Callable, Iterator
from pathlib import Path

from eulerlora.atomic_files import atomic_write
from training.evaluation.evaluate import Evaluation
from training.evaluation.report_schema import JSON, ModeReport, Report, report_json
from training.reporting.chart_files import chart_files, png
from training.reporting.tables import (
    FEW_IMAGES,
    FEW_TARGETS,
    TOO_FEW,
    class_table,
    corruption_table,
    enumeration,
    error_ranking_table,
    group_table,
    intervals_note,
    metrics_table,
    ood_table,
    subset_text,
)

MARKDOWN = "report.md"


def write_report(folder: Path, evaluation: Evaluation) -> None:
    """Writes `report.md`, its charts and `report.json` to a folder; creates it if missing.

    `report.json` is removed first and written last: if it exists, the folder is complete.
    """
    report = evaluation.report
    folder.mkdir(parents=True, exist_ok=True)
    (folder / JSON).unlink(missing_ok=True)
    sections = [f"# {report.model} on {report.data}", markdown(report).strip(), "## Charts"]
    for chart in chart_files(evaluation):
        _write(folder / chart.name, png(chart.figure))
        sections.append(f"![{chart.alt_text}]({chart.name})")
    _write(folder / MARKDOWN, ("\n\n".join(sections) + "\n").encode())
    _write(folder / JSON, report_json(report))


def markdown(report: Report) -> str:
    """Returns all results as Markdown sections with level-2 headings."""
    sections = [data_summary(report), metrics_table(report), intervals_note(report)]
    for title, text in result_sections(report):
        sections += [f"## {title}", text]
    return "\n\n".join(sections) + "\n"


def data_summary(report: Report) -> str:
    """Returns a sentence about the test data."""
    lesions = f" of {report.clusters:,} lesions" if report.clusters < report.images else ""
    return f"Measured on {report.data}: {report.images:,} images{lesions}."


def result_sections(report: Report) -> Iterator[tuple[str, str]]:
    """Yields title and text of the sections after the metrics; skips sections without results."""
    yield "Ranking of errors", f"{RANKING_NOTE}\n\n{error_ranking_table(report)}"
    yield "By class", _by_mode(report, lambda mode: class_table(report, mode))
    if any(mode.groups for mode in report.modes):
        tables = _folded(report, lambda mode: group_table(report, mode))
        yield "By group", f"{_groups_note(report)}\n\n{tables}"
    if report.ood_images:
        yield "Out-of-distribution images", f"{OOD_NOTE}\n\n{ood_table(report)}"
    if report.corrupted.images:
        tables = _folded(report, corruption_table)
        yield "Corrupted images", f"{_corruptions_note(report)}\n\n{tables}"


RANKING_NOTE = (
    "AUROC is the probability that an image with a wrong label is more uncertain than one with the "
    "right label: 0.5 for a random order. AURC is the mean share of wrong labels among the most "
    "certain images, over all numbers of images; without any ranking it equals 1 - accuracy, and "
    "lower is better."
)
OOD_NOTE = (
    "The score is the maximum softmax probability (MSP); images of the test part are positive. "
    "`flagged` is the share of images below the OOD threshold."
)


def _by_mode(report: Report, table: Callable[[ModeReport], str]) -> str:
    return "\n\n".join(f"Mode {mode.title}:\n\n{table(mode)}" for mode in report.modes)


def _folded(report: Report, table: Callable[[ModeReport], str]) -> str:
    """Returns the first mode's table, and the similar tables of other modes as folded details."""
    first, *others = report.modes
    return "\n\n".join(
        [
            f"Mode {first.title}:\n\n{table(first)}",
            *(
                f"<details>\n<summary>Mode {mode.title}</summary>\n\n{table(mode)}\n\n</details>"
                for mode in others
            ),
        ]
    )


def _groups_note(report: Report) -> str:
    gap = (
        "MSP - accuracy is positive for an overconfident model, negative for an underconfident one."
    )
    few = f'"{TOO_FEW}" marks groups with fewer than {FEW_IMAGES} images'
    if not report.target:
        return f"{gap} {few}; their results are not conclusive."
    target = enumeration(report.target, "or")
    return (
        f"{gap} AUROC compares {target} with the other classes by their summed probability. "
        f"Sensitivity is the share of images of {target} with any of these labels. {few} or fewer "
        f"than {FEW_TARGETS} images of {target}; their results are not conclusive."
    )


def _corruptions_note(report: Report) -> str:
    return (
        f"{subset_text(report.corrupted)} test images, evenly spaced. The corruptions are applied "
        "at the original image size and are deterministic. AUROC compares clean with corrupted "
        "images by MSP. A mild corruption does not change the content: the expected result is an "
        "unchanged accuracy and an AUROC near 0.5. Under a strong corruption, MSP should decrease "
        "together with accuracy."
    )


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as partial:
        partial.write_bytes(content)
