"""Evaluation reports: a folder with JSON, Markdown and pictures."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.evaluate import TEST, Evaluation, Report
from training.pictures import pictures_of, png
from training.sensitivity import Sensitivity

JSON, MARKDOWN = "report.json", "report.md"
METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "macro_auroc": "macro-AUROC",
    "ece": "ECE (10 bins)",
    "nll": "NLL (nats)",
    "brier": "Brier score",
}
SELECTIVE_METRICS = {"aurc": "AURC", "augrc": "AUGRC"}
OOD_METRICS = {"auroc": "AUROC", "auprc": "AUPRC", "fpr_at_95_tpr": "FPR at 95% TPR"}


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
    content = json.dumps(_without_nan(asdict(report)), indent=2, allow_nan=False)
    _write(folder / JSON, f"{content}\n".encode())


def markdown(report: Report) -> str:
    """The report as Markdown tables, one column for each mode."""
    titles = [each.title for each in report.modes]
    parts = [
        f"Measured on {report.data}: {report.images:,} images.",
        _table(["", *titles], _figures(report)),
        "Sensitivity by class [its exact 95% confidence interval] (images that got their label):",
        _table(["", "images", *titles], _sensitivities(report)),
    ]
    if report.ood_images:
        parts += [
            "Out-of-distribution images, told apart by MSP (in-distribution is positive):",
            _table(["", *titles], _ood_figures(report)),
        ]
    return "\n\n".join(parts) + "\n"


def _figures(report: Report) -> Iterator[list[str]]:
    modes = report.modes
    for key, name in METRICS.items():
        yield [name, *(_number(each.metrics[key]) for each in modes)]
    for key, name in SELECTIVE_METRICS.items():
        yield [name, *(_number(each.selective[key]) for each in modes)]
    yield ["OOD threshold on MSP", *(_number(each.threshold) for each in modes)]
    yield ["flagged, test part", *(_number(each.flagged.get(TEST)) for each in modes)]


def _sensitivities(report: Report) -> Iterator[list[str]]:
    for name, first in report.modes[0].sensitivity.items():
        images = "0" if first is None else f"{first.images:,}"
        yield [name, images, *(_interval(each.sensitivity[name]) for each in report.modes)]


def _ood_figures(report: Report) -> Iterator[list[str]]:
    for ood, used in report.ood_images.items():
        some = f"{used.images:,}" if used.images == used.of else f"{used.images:,} of {used.of:,}"
        yield [f"**{ood}** ({some} images)", *("" for _ in report.modes)]
        for key, name in OOD_METRICS.items():
            yield [name, *(_number(each.ood[ood][key]) for each in report.modes)]
        yield ["flagged", *(_number(each.flagged.get(ood)) for each in report.modes)]


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers."""
    ruler = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join([_row(head), ruler, *(_row(each) for each in rows)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(each.replace("|", r"\|") for each in cells) + " |"


def _number(figure: float | None) -> str:
    return "n/a" if figure is None or math.isnan(figure) else f"{figure:.3f}"


def _interval(found: Sensitivity | None) -> str:
    if found is None:
        return "n/a"
    return f"{found.sensitivity:.3f} [{found.low:.3f}, {found.high:.3f}] ({found.hits:,})"


def _without_nan(value: Any) -> Any:
    """The same tables and lists with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: Path, content: bytes) -> None:
    """Writes a file that appears whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
