"""Evaluation reports as JSON and Markdown."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from training.evaluate import TEST, ModeReport, Report

METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "macro_auroc": "macro-AUROC",
    "ece": "ECE (10 bins)",
    "nll": "NLL (nats)",
    "brier": "Brier score",
}
OOD_METRICS = {"auroc": "AUROC", "auprc": "AUPRC", "fpr_at_95_tpr": "FPR at 95% TPR"}


def write_report(folder: Path, report: Report) -> None:
    """Writes `report.json` and `report.md` to a folder, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    (folder / "report.md").write_text(f"# {report.model}\n\n{markdown(report)}")


def markdown(report: Report) -> str:
    """The report as a Markdown table, one column for each mode."""
    lines = [
        f"Measured on {report.data}: {report.images:,} images.",
        "",
        _row("", [_title(each) for each in report.modes]),
        "|---|" + "---:|" * len(report.modes),
    ]
    for name, figures in _figures(report):
        cells = ["n/a" if figure is None else f"{figure:.3f}" for figure in figures]
        lines.append(_row(name, cells))
    return "\n".join(lines) + "\n"


def _figures(report: Report) -> Iterator[tuple[str, list[float | None]]]:
    """Each figure's name, and its value in every mode."""
    modes = report.modes
    for key, name in METRICS.items():
        yield name, [each.metrics[key] for each in modes]
    for name in modes[0].sensitivity:
        yield f"sensitivity, {name}", [each.sensitivity[name] for each in modes]
    for ood in report.ood_images:
        for key, name in OOD_METRICS.items():
            yield f"{name} of MSP against {ood}", [each.ood[ood][key] for each in modes]
    yield "OOD threshold on MSP", [each.threshold for each in modes]
    yield "flagged, test part", [each.flagged.get(TEST) for each in modes]
    for ood, count in report.ood_images.items():
        yield f"flagged, {ood} ({count:,} images)", [each.flagged.get(ood) for each in modes]


def _title(each: ModeReport) -> str:
    return each.mode if each.mode == "det" else f"stoch, {each.samples} samples"


def _row(name: str, cells: list[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"
