"""Evaluation reports: a folder with JSON, Markdown, charts and the predictions.

The columns of the predictions are described in docs/how-to/evaluate.md.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from gzip import GzipFile
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

from eulerlora.answer import Predictions
from eulerlora.scores.ood_scores import SCORES
from eulerlora_contract.output_files import atomic_write
from eulerlora_contract.printable import printable
from eulerlora_contract.sampling import Options
from training.evaluation.evaluate import Evaluation
from training.evaluation.intervals import MIN_CLUSTERS, Estimate, Proportion
from training.evaluation.mode_report import EvaluatedSet
from training.evaluation.report_schema import (
    JSON,
    PREDICTIONS,
    ModeReport,
    ProbeComparison,
    Report,
    report_json,
)
from training.reporting.charts import FigureFormat, write_figure
from training.reporting.report_charts import chart_files
from training.reporting.tables import (
    FEW_IMAGES,
    FEW_TARGETS,
    METRICS,
    TOO_FEW,
    card_table,
    cell,
    class_table,
    counted_images,
    enumeration,
    error_ranking_table,
    group_table,
    intervals_note,
    metrics_table,
    ood_set_table,
    ood_tables,
    prediction_set_table,
)

_RANKING_NOTE = (
    "AUROC is the probability that an image with a wrong label is more uncertain than one with the "
    "right label: 0.5 for a random order. AURC is the mean share of wrong labels among the most "
    "certain images, over all numbers of images; without any ranking it equals 1 - accuracy, and "
    "lower is better."
)
_SETS_NOTE = (
    "A {0} is covered if the prediction sets of all of its images contain its class; the "
    "intervals are by {0}. At least the stated share of the {0}s of each class is "
    "expected to be covered: with the confidence of the class in `config.json`, on average over "
    "calibrations where it states none. `always`: the calibration had too few {0}s, so the "
    "class is in every set. The set size is a mean over images."
)
_OOD_NOTE = (
    "Sets are `far` (other subjects), `near` (similar subjects that belong to no class) or "
    "`shifted` (the classes, from another camera or with changed colours). Scores: the maximum "
    "softmax probability (MSP), which sets the flag `ood`; the energy, minus the log-sum-exp of "
    "the logits; and the distance of the features to those of training images, which sets "
    "`unfamiliar`. Images of the test part are positive in AUROC and in the FPR at 95% TPR. The "
    "share flagged uses the checkpoint's thresholds."
)
RESULTS = "results.csv"
PROBE = "the linear probe that the training started from"
_PREDICTIONS_NOTE = (
    f"`{RESULTS}` has all figures. `{PREDICTIONS}` has a row for each image, set and mode: the "
    "true class, the probability of each class, entropies, scores and flags, from which all "
    "figures can be computed again."
)
_OPEN = (
    "where the images come from, their licence, and the consent or approval for their use",
    "how the true classes are known, and who labelled the images",
    "that no image of the test part, of its patients or devices, chose a setting or threshold",
    "results of other seeds, with mean and standard deviation (`eulerlora compare`), and the "
    "number of runs that were left out",
    "results on images of another source, or that there are none",
    "what the model is compared with, and that both had the same images and effort",
    "what the probabilities are used for, and what a wrong one costs",
)
"""What a paper must state and the program cannot know."""


def write_report(
    folder: Path,
    evaluation: Evaluation,
    figures: Sequence[FigureFormat] = (),
    pictures: bool = False,
) -> None:
    """Writes `report.md`, charts, predictions, `results.csv` and `report.json`.

    Args:
        folder: Empty, such as that of `new_folder`.
        evaluation: What is reported.
        figures: Further formats of the charts, beside PNG.
        pictures: Adds charts with test images.
    """
    report = evaluation.report
    sections = [f"# {report.title}", markdown(report).strip(), "## Charts"]
    for chart in chart_files(evaluation, pictures):
        for suffix in dict.fromkeys(("png", *figures)):
            path = (folder / chart.name).with_suffix(f".{suffix}")
            write_figure(chart.figure, path)
        sections.append(f"![{chart.alt_text}]({chart.name})")
    _write(folder / PREDICTIONS, _predictions_csv(evaluation))
    _write(folder / RESULTS, results_csv(report))
    sections += ["## Predictions", _PREDICTIONS_NOTE]
    sections += ["## Checklist for a paper", _checklist(report)]
    _write(folder / "report.md", ("\n\n".join(sections) + "\n").encode())
    _write(folder / JSON, report_json(report))


def markdown(report: Report) -> str:
    """All results as Markdown sections with level-2 headings."""
    sections = _summary_sections(report)
    for title, text in _result_sections(report):
        sections += [f"## {title}", text]
    return "\n\n".join(sections) + "\n"


def _summary_sections(report: Report) -> list[str]:
    """The paragraphs on the test part: data, metrics, differences between modes, notes."""
    first, *others = report.modes
    notes = "\n".join(f"- {printable(note)}" for note in report.notes)
    sections = [_data_summary(report), notes, metrics_table(report)]
    sections += [_difference(first, mode, report.clusters) for mode in others]
    if report.probe is not None:
        sections.append(probe_note(report.probe))
    return [section for section in [*sections, intervals_note(report)] if section]


def card_results(report: Report) -> list[str]:
    """The paragraphs of a model card: the main figures and what they rest on."""
    sections = [
        _data_summary(report),
        card_table(report),
        probe_note(report.probe) if report.probe is not None else "",
    ]
    return [section for section in sections if section]


def _data_summary(report: Report) -> str:
    precision = "" if report.precision == "float32" else f", predicted in {report.precision}"
    measured = f"Measured on {report.data}: {counted_images(report)}{precision}."
    notes = "".join(f" **{note}.**" for note in basis_notes(report))
    return f"{measured}{notes}"


def probe_note(probe: ProbeComparison) -> str:
    """How the model compares with the linear probe that its training started from."""
    basis = f"{probe.images:,} test images of {probe.groups:,} groups"
    started = f"{PROBE} (accuracy {probe.accuracy:.3f})"
    nll, accuracy = probe.nll_difference, probe.accuracy_difference
    if probe.verdict == "not tested" or nll is None or accuracy is None:
        reason = _no_interval(probe.groups)
        return f"Not tested against {started}: {reason} ({basis})"
    verdict = {
        "better": f"Better than {started}",
        "no difference shown": f"No difference to {started} is shown",
        "worse": f"Worse than {started}",
    }[probe.verdict]
    return (
        f"{verdict}: NLL {nll.text('+.3f')}, accuracy {accuracy.text('+.3f')} (paired 95% "
        f"intervals, {basis})"
    )


def _no_interval(groups: int) -> str:
    if groups < MIN_CLUSTERS:
        return f"fewer than {MIN_CLUSTERS} groups give no interval"
    return "the difference is the same in all resamples, which gives no interval"


def basis_notes(report: Report) -> Iterator[str]:
    """Yields what it means that test images were trained on or fitted to, or may have been."""
    if report.seen is None:
        yield (
            "The images that the model was trained on are not recorded: test images among them "
            "are not recognised, and make figures too good"
        )
    elif report.seen:
        yield (
            f"The training of the model or of its backbone was shown {report.seen:,} of the "
            f"{report.images:,} test images: all figures on them are too good"
        )
    if report.fitted is None:
        yield (
            "The images that the thresholds, temperature and prediction sets were fitted to are "
            "not recorded: test images among them are not recognised, and make calibration errors, "
            "NLL, flagged and covered shares too good"
        )
    elif report.fitted:
        yield (
            f"The thresholds, temperature or prediction sets were fitted to {report.fitted:,} of "
            f"the {report.images:,} test images: calibration errors, NLL, flagged and covered "
            "shares on them are too good"
        )


def _result_sections(report: Report) -> Iterator[tuple[str, str]]:
    """Yields title and text of the sections after the metrics; skips sections without results."""
    yield "Ranking of errors", f"{_RANKING_NOTE}\n\n{error_ranking_table(report)}"
    yield "By class", _folded(report, lambda mode: class_table(report, mode))
    if any(mode.prediction_sets for mode in report.modes):
        tables = _folded(report, lambda mode: prediction_set_table(report, mode.prediction_sets))
        yield "Prediction sets", f"{_SETS_NOTE.format(report.unit)}\n\n{tables}"
    if any(mode.groups for mode in report.modes):
        tables = _folded(report, lambda mode: group_table(report, mode))
        yield "By group", f"{_groups_note(report)}\n\n{tables}"
    if report.ood_sets:
        tables = _folded(report, lambda mode: ood_tables(report, mode))
        text = [_OOD_NOTE, ood_set_table(report), _resemblance_note(report), tables]
        yield "Out-of-distribution images", "\n\n".join(text)


def _checklist(report: Report) -> str:
    """What a paper with these results states: what the report knows, then what people know."""
    samples = enumeration(
        [
            f"{mode.title} ({_counted_trajectories(mode.trajectories)}, {sampling})"
            for mode in report.modes
            for sampling in [
                "deterministic" if mode.options.mode == "det" else f"sampler {mode.options.sampler}"
            ]
        ],
        "and",
    )
    counts = ", ".join(
        f"{name} {0 if metrics.sensitivity is None else metrics.sensitivity.images:,}"
        for name, metrics in report.modes[0].classes.items()
    )
    known = [
        f"model: `{report.model}` ({report.method.title}), {report.revision}; its card has recipe, "
        "seed, commit and data",
        f"test images: {report.data}, {counted_images(report)} ({counts})",
        "; ".join(basis_notes(report))
        or "no test image was in training, pretraining or calibration, as far as recorded",
        f"predictions: {samples}, in {report.precision}",
        f"intervals: 95%, over {report.sampled}s, for the choice of test images only",
        "OOD thresholds: those of the tables, fitted to the data that `config.json` names",
    ]
    return "\n".join([*(f"- [x] {item}" for item in known), *(f"- [ ] {item}" for item in _OPEN)])


def _counted_trajectories(count: int) -> str:
    return f"{count} trajectory" if count == 1 else f"{count} trajectories"


def _resemblance_note(report: Report) -> str:
    shown = [
        name
        for name, facts in report.ood_sets.items()
        if (facts.seen or facts.resembles is not None) and facts.group != "shifted"
    ]
    basis = (
        "The last column counts images of the checkpoint's training, and compares the names of the "
        "sets with the data in its provenance (training, pretraining of the backbone, outlier "
        "exposure); an empty cell means that no relation is known."
    )
    if not shown:
        return basis
    return (
        f"{basis} The figures of {enumeration(shown, 'and')} are in-family figures: training was "
        "shown the same or similar pictures, and other pictures can give lower ones."
    )


def _difference(first: ModeReport, mode: ModeReport, groups: int) -> str:
    nll = mode.difference.get("nll")
    if nll is None:
        return ""
    result = f"No difference in NLL between mode {mode.title} and mode {first.title} is shown"
    if nll.low is None:
        reason = _no_interval(groups)
        result = f"Mode {mode.title} is not tested against mode {first.title}: {reason}"
    elif nll.differs:
        relation = "higher" if nll.value > 0 else "lower"
        result = f"Mode {mode.title} has a {relation} NLL than mode {first.title}"
    differences = enumeration(
        [
            f"{METRICS[key]} {cell(mode.difference.get(key), '+.4f')}"
            for key in ("nll", "accuracy", "brier")
        ],
        "and",
    )
    return (
        f"{result}. Metrics of {mode.title} less those of {first.title}, for the same images: "
        f"{differences}."
    )


def _folded(report: Report, table: Callable[[ModeReport], str]) -> str:
    """The first mode's table, and the similar tables of other modes as folded details."""
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


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as partial:
        partial.write_bytes(content)


def results_csv(report: Report) -> bytes:
    """All figures of a report as CSV, a row for each.

    The columns: the options of the prediction; part, such as `test part`, `class`, an attribute of
    groups, a group of out-of-distribution sets, or `prediction set 0.9`; name in that part; metric;
    value with its 95% interval; for a share also its hits, images and clusters. An empty cell means
    that the figure or its interval is not defined.
    """
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_RESULT_COLUMNS)
    for mode in report.modes:
        for part, name, metrics in _result_parts(report, mode):
            for metric, value in metrics.items():
                cells = _result_cells(value)
                writer.writerow([*asdict(mode.options).values(), part, name, metric, *cells])
    return text.getvalue().encode("utf-8", "surrogateescape")


_RESULT_COLUMNS = (
    *(option.name for option in fields(Options)),
    "part",
    "name",
    "metric",
    "value",
    "low",
    "high",
    "hits",
    "images",
    "clusters",
)
_Results = Mapping[str, Estimate | Proportion | float | None]


def _result_cells(value: Estimate | Proportion | float | None) -> list[float | str | None]:
    match value:
        case Proportion():
            share = [f"{number:.6g}" for number in (value.share, value.low, value.high)]
            return [*share, value.hits, value.images, value.clusters]
        case Estimate():
            numbers = (value.value, value.low, value.high)
            return [*(None if n is None else f"{n:.6g}" for n in numbers), None, None, None]
    return [None if value is None else f"{value:.6g}", *[None] * 5]


def _result_parts(report: Report, mode: ModeReport) -> Iterator[tuple[str, str, _Results]]:
    """Yields part, name and figures."""
    yield "test part", "", mode.metrics
    yield f"less {report.modes[0].title}", "", mode.difference
    yield "test part", "threshold", {str(name): value for name, value in mode.thresholds.items()}
    yield "test part", "flagged", {str(name): value for name, value in mode.flagged.items()}
    for score, ranking in mode.error_ranking.items():
        yield "wrong labels", score, ranking
    for name, of_class in mode.classes.items():
        shares = {
            key: getattr(of_class, key)
            for key in ("sensitivity", "specificity", "predictive_value")
        }
        yield "class", name, shares | dict(of_class.ranking)
    for sets in mode.prediction_sets:
        part = f"prediction set {sets.coverage:g}"
        yield part, "", {"mean_size": sets.mean_size}
        for name, covered in sets.classes.items():
            yield part, name, {"covered": covered.units, "mean_size": covered.mean_size}
    for attribute, groups in mode.groups.items():
        for name, group in groups.items():
            counts = {"images": group.images, "clusters": group.clusters, "target": group.target}
            shares = {"sensitivity": group.sensitivity, "specificity": group.specificity}
            yield attribute, name, counts | dict(group.metrics) | shares
    for name, ood in mode.ood.items():
        part = report.ood_sets[name].group
        yield part, name, {"accuracy": ood.accuracy}
        for score, of_score in ood.scores.items():
            figures = {**of_score.metrics, "flagged": of_score.flagged}
            yield part, name, {f"{score}_{key}": value for key, value in figures.items()}


def _predictions_csv(evaluation: Evaluation) -> bytes:
    """The table as compressed CSV; equal predictions give equal bytes."""
    classes, content = evaluation.classes, BytesIO()
    attributes = dict.fromkeys(
        name for image in evaluation.test.images for name in image.attributes
    )
    tables = (
        _columns(images, mode, predictions, classes, list(attributes))
        for images in (evaluation.test, *evaluation.ood.values())
        for mode, predictions in zip(evaluation.report.modes, images.predictions, strict=True)
    )
    # Without the time of compression, which the format would store.
    with (
        GzipFile("", "wb", fileobj=content, mtime=0) as compressed,
        TextIOWrapper(compressed, "utf-8", "surrogateescape", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        for number, columns in enumerate(tables):
            if number == 0:
                writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return content.getvalue()


def _columns(
    images: EvaluatedSet,
    mode: ModeReport,
    predictions: Predictions,
    classes: Sequence[str],
    attributes: Sequence[str],
) -> dict[str, Sequence[object]]:
    scores, flags = predictions.ood_scores, predictions.flags
    shown, count = images.images, len(images.images)
    empty = [""] * count
    return {
        "set": [images.name] * count,
        "group": [images.group] * count,
        "name": [image.name for image in shown],
        "cluster": [image.cluster or "" for image in shown],
        "label": [classes[image.label] if image.label >= 0 else "" for image in shown],
        **{name: [value] * count for name, value in asdict(mode.options).items()},
        **{
            f"p_{name}": column
            for name, column in zip(classes, predictions.probabilities.T.tolist(), strict=True)
        },
        **{
            name: getattr(predictions, name).tolist()
            for name in ("entropy", "expected_entropy", "mutual_information")
        },
        **{s: scores[s].value.tolist() if s in scores else empty for s in SCORES},
        **{f"flagged_{s}": flags[s].int().tolist() if s in flags else empty for s in SCORES},
        **{f"test_{name}": [i.attributes.get(name, "") for i in shown] for name in attributes},
    }
