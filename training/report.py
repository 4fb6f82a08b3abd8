"""Evaluation reports as JSON and Markdown."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from training.evaluate import ModeReport, Report

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
    """The report as Markdown tables, one column for each mode."""
    lines = [
        f"Measured on {report.data}: {report.images:,} images.",
        "",
        _row("", [_title(each) for each in report.modes]),
        "|---|" + "---:|" * len(report.modes),
    ]
    lines += [_figures(report, name, lambda m, k=key: m.metrics[k]) for key, name in METRICS.items()]
    for ood, count in report.ood_images.items():
        lines += [
            _figures(report, f"{name}, MSP against {ood}", lambda m, o=ood, k=key: m.ood[o][k])
            for key, name in OOD_METRICS.items()
        ]
        lines.append(_figures(report, f"flagged of {count:,} {ood}", lambda m, o=ood: m.flagged.get(o)))
    lines.append(_figures(report, "flagged of the test images", lambda m: m.flagged.get("test")))
    lines.append(_figures(report, "OOD threshold on MSP", lambda m: m.threshold))
    for name in report.modes[0].sensitivity:
        lines.append(_figures(report, f"sensitivity, {name}", lambda m, n=name: m.sensitivity[n]))
    return "\n".join(lines) + "\n"


def _title(each: ModeReport) -> str:
    return each.mode if each.mode == "det" else f"stoch, {each.samples} samples"


def _figures(report: Report, name: str, value: Callable[[ModeReport], float | None]) -> str:
    found = [value(each) for each in report.modes]
    return _row(name, ["n/a" if number is None else f"{number:.3f}" for number in found])


def _row(name: str, cells: list[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"
