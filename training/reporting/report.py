"""Evaluation reports: a folder with JSON, Markdown and pictures."""

from collections.abc import Callable, Iterator
from pathlib import Path

from eulerlora.atomic_files import whole_file
from training.evaluation.evaluate import Evaluation
from training.evaluation.report_schema import JSON, ModeReport, Report, report_json
from training.reporting.pictures import pictures_of, png
from training.reporting.tables import (
    FEW_IMAGES,
    FEW_TARGETS,
    TOO_FEW,
    class_table,
    corruption_table,
    group_table,
    intervals_note,
    listed,
    metrics_table,
    ood_table,
    used,
)

MARKDOWN = "report.md"


def write_report(folder: Path, evaluation: Evaluation) -> None:
    """Writes `report.md`, the pictures that it shows and `report.json` to a folder.

    The folder is made if missing. `report.json` goes first and comes last: where it is, the rest
    is whole and belongs to it.
    """
    report = evaluation.report
    folder.mkdir(parents=True, exist_ok=True)
    (folder / JSON).unlink(missing_ok=True)
    sections = [f"# {report.model} on {report.data}", markdown(report).strip(), "## Pictures"]
    for picture in pictures_of(evaluation):
        _write(folder / picture.file, png(picture.figure))
        sections.append(f"![{picture.description}]({picture.file})")
    _write(folder / MARKDOWN, ("\n\n".join(sections) + "\n").encode())
    _write(folder / JSON, report_json(report))


def markdown(report: Report) -> str:
    """All figures, in sections with headings of the second level."""
    sections = [measured(report), metrics_table(report), intervals_note(report)]
    for title, text in figure_sections(report):
        sections += [f"## {title}", text]
    return "\n\n".join(sections) + "\n"


def measured(report: Report) -> str:
    """What the figures were measured on."""
    lesions = f" of {report.clusters:,} lesions" if report.clusters < report.images else ""
    return f"Measured on {report.data}: {report.images:,} images{lesions}."


def figure_sections(report: Report) -> Iterator[tuple[str, str]]:
    """Title and text of all sections below the metrics; those without figures are left out."""
    yield "By class", _by_mode(report, class_table)
    if any(each.groups for each in report.modes):
        tables = _folded(report, lambda mode: group_table(report, mode))
        yield "By group", f"{_groups_note(report)}\n\n{tables}"
    if report.ood_images:
        yield "Out-of-distribution images", f"{OOD_NOTE}\n\n{ood_table(report)}"
    if report.corrupted.images:
        tables = _folded(report, corruption_table)
        yield "Corrupted images", f"{_corruptions_note(report)}\n\n{tables}"


OOD_NOTE = (
    "Told apart from the test part by the maximum softmax probability (MSP), by which "
    "in-distribution images are positive; flagged is the share below the threshold."
)


def _by_mode(report: Report, table: Callable[[ModeReport], str]) -> str:
    return "\n\n".join(f"Mode {each.title}:\n\n{table(each)}" for each in report.modes)


def _folded(report: Report, table: Callable[[ModeReport], str]) -> str:
    """The first mode's table, and those of the others, which are much the same, to unfold."""
    first, *others = report.modes
    return "\n\n".join(
        [
            f"Mode {first.title}:\n\n{table(first)}",
            *(
                f"<details>\n<summary>Mode {each.title}</summary>\n\n{table(each)}\n\n</details>"
                for each in others
            ),
        ]
    )


def _groups_note(report: Report) -> str:
    sure = "MSP - accuracy is how much too sure the model is on average, below 0 too unsure."
    few = f'"{TOO_FEW}" marks groups with fewer than {FEW_IMAGES} images'
    if not report.target:
        return f"{sure} {few}, from which nothing can be concluded."
    target = listed(report.target, "or")
    return (
        f"{sure} AUROC tells {target} from the rest by their summed probability; sensitivity is "
        f"the share of them that gets any of these labels. {few}, or {FEW_TARGETS} of {target}, "
        "from which nothing can be concluded."
    )


def _corruptions_note(report: Report) -> str:
    return (
        f"{used(report.corrupted)} test images, evenly spaced, each changed at its own size, the "
        "same way every time. AUROC tells clean from corrupted images by MSP. A mildly corrupted "
        "picture still shows the same thing: there a high AUROC is not plainly good, and one near "
        "0.5 with an unchanged accuracy is what one wants. What is wanted of a strong corruption "
        "is that accuracy and MSP fall together."
    )


def _write(path: Path, content: bytes) -> None:
    with whole_file(path) as partial:
        partial.write_bytes(content)
