"""The comparison of a user's training runs: tables of all methods, and one chart of each kind."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from matplotlib.figure import Figure

from eulerlora.checkpoint.files import CONFIG_FILE
from eulerlora_contract.errors import DataError, SettingsError
from eulerlora_contract.output_files import write_text
from eulerlora_contract.printable import markdown_table, printable
from eulerlora_contract.sampling import Options
from training.evaluation.comparison import (
    LEVEL,
    POWER,
    REJECTED_GROUPS,
    EndpointResult,
    Resampled,
    StoredPredictions,
    adjusted,
    endpoint_result,
    ood_metric,
    read_predictions,
    resampled_metrics,
)
from training.evaluation.intervals import MIN_CLUSTERS, cluster_indices, unit_weights
from training.evaluation.metrics import (
    CalibrationBins,
    RiskCoverage,
    calibration_bins,
    risk_coverage,
)
from training.evaluation.report_schema import JSON, REPORT, TEST, Report, read_report
from training.reporting.charts import (
    FigureFormat,
    reliability_chart,
    risk_coverage_chart,
    roc_chart,
    write_figure,
)
from training.reporting.tables import METRICS, counted_images

COMPARISON = "comparison.md"
_SHOWN = ("accuracy", "macro_auroc", "nll", "ece", "brier", "aurc")
_OOD = {ood_metric(group, "msp"): f"MSP AUROC, {group}" for group in REJECTED_GROUPS}
_HIGHER_IS_BETTER = {"accuracy", "macro_auroc", *_OOD}
_TESTED = {name: METRICS[name] for name in _SHOWN} | _OOD
"""The metrics that may be tested, with their titles."""


@dataclass(frozen=True)
class _Run:
    """A run in one mode.

    Attributes:
        folder: As it was named.
        sets: Predictions by set, the test part first.
        metrics: Resampled.
    """

    folder: Path
    report: Report
    sets: Mapping[str, StoredPredictions]
    metrics: Resampled


@dataclass(frozen=True)
class Arm:
    """A method in one mode, with the runs that differ in their seeds alone.

    Attributes:
        trajectories: Rows of an answer.
    """

    name: str
    options: Options
    trajectories: int
    runs: tuple[_Run, ...]

    @property
    def by_seed(self) -> Mapping[int | Path, _Run]:
        """The runs by seed, by folder if the seed is not recorded."""
        seeds = ((run.report.method.seed, run) for run in self.runs)
        return {run.folder if seed is None else seed: run for seed, run in seeds}

    def values(self, metric: str) -> list[float]:
        """Of each run; empty if the sets do not define the metric."""
        return [
            float(run.metrics[metric][0])
            for run in self.runs
            if metric in run.metrics and not np.isnan(run.metrics[metric][0])
        ]


@dataclass(frozen=True)
class Comparison:
    """All arms, and the tested differences to the reference.

    Attributes:
        differences: Empty if there is one arm, or too few groups of test images for intervals.
    """

    arms: tuple[Arm, ...]
    reference: Arm
    differences: tuple[EndpointResult, ...]

    @property
    def report(self) -> Report:
        """That of the first run, which names the test images."""
        return self.arms[0].runs[0].report


def compare_runs(
    folders: Sequence[Path], reference: Path | None, tested: Sequence[str]
) -> Comparison:
    """Compares runs of any methods and seeds on the same test images.

    The arms are the methods, each in mode det and, if it is sampled, in its other modes. All are
    compared with the last arm of the reference.

    Args:
        folders: Of trainings, or written by `evaluate --out`.
        reference: One of them; None for the first one.
        tested: Names of metrics: accuracy, macro_auroc, nll, ece, brier, aurc, far_msp, near_msp.

    Raises:
        SettingsError: For another metric.
        DataError: For a folder without a report or predictions, for a run that saw other test
            images, classes or out-of-distribution sets than the first one, and for the same run or
            seed twice.
    """
    for metric in tested:
        if metric not in _TESTED:
            raise SettingsError(f"expected a metric of {', '.join(_TESTED)}, got {metric}")
    reports = {folder: _read_report(folder) for folder in folders}
    if reference is not None and reference not in reports:
        raise DataError(f"--reference: expected one of the runs, got {reference}")
    images = _predictions(folders[0], reports[folders[0]].modes[0].options)
    for folder, report in reports.items():
        sets = _predictions(folder, report.modes[0].options)
        _check_same_images(folder, sets, folders[0], images)
    _check_distinct(reports)
    groups: dict[str, list[Path]] = {}
    for folder, report in reports.items():
        groups.setdefault(report.method.recipe_sha256, []).append(folder)
    arms: dict[Path, list[Arm]] = {}
    titles = [reports[of_group[0]].method.title for of_group in groups.values()]
    for of_group, title in zip(groups.values(), titles, strict=True):
        first = reports[of_group[0]]
        # Methods with one title differ in another setting, which the name of a folder tells apart.
        name = title if titles.count(title) == 1 else f"{title} ({of_group[0].name})"
        for mode in first.modes if first.method.sampled else first.modes[:1]:
            runs = []
            for folder in sorted(of_group, key=lambda folder: reports[folder].method.seed or 0):
                sets = _predictions(folder, mode.options)
                runs.append(_Run(folder, reports[folder], sets, resampled_metrics(sets)))
            arm = Arm(
                f"{name}, {mode.title}" if first.method.sampled else name,
                mode.options,
                mode.trajectories,
                tuple(runs),
            )
            for folder in of_group:
                arms.setdefault(folder, []).append(arm)
    compared = tuple({id(arm): arm for of_run in arms.values() for arm in of_run}.values())
    chosen = arms[folders[0] if reference is None else reference][-1]
    clusters = cluster_indices(images[TEST].clusters)
    results = [
        _difference(metric, arm, chosen)
        for arm in compared
        for metric in tested
        if arm is not chosen and arm.values(metric) and len(np.unique(clusters)) >= MIN_CLUSTERS
    ]
    return Comparison(compared, chosen, adjusted(results))


def _difference(metric: str, arm: Arm, reference: Arm) -> EndpointResult:
    """That of the seeds of both arms; without a common seed that of all runs, unpaired."""
    common = _common_seeds(arm, reference)
    values = (
        np.stack([side.by_seed[seed].metrics[metric] for seed in common or side.by_seed])
        for side in (arm, reference)
    )
    return endpoint_result(metric, arm.name, reference.name, *values, paired=bool(common))


def _common_seeds(arm: Arm, reference: Arm) -> list[int | Path]:
    return [seed for seed in arm.by_seed if seed in reference.by_seed]


def _pairing(arm: Arm, reference: Arm) -> str:
    """The seeds that a difference rests on, and those left out."""
    common, seeds = _common_seeds(arm, reference), {**arm.by_seed, **reference.by_seed}
    if not common:
        known = all(isinstance(seed, int) for seed in seeds)
        return f"{'other seeds' if known else 'seeds not recorded'}: not paired"
    left_out = [seed for seed in seeds if seed not in common]
    paired = f"{_counted_seeds(common)} of both"
    return f"{paired}; {_counted_seeds(left_out)} left out" if left_out else paired


def _counted_seeds(seeds: Sequence[int | Path]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _read_report(folder: Path) -> Report:
    inner = _report_folder(folder)
    if (folder / CONFIG_FILE).exists() and not (inner / JSON).exists():
        raise DataError(
            f"{folder}: expected a checkpoint with a report, got none; make one with `eulerlora "
            f"evaluate {folder} --data DIR --out {folder / REPORT}`"
        )
    return read_report(inner)


def _report_folder(folder: Path) -> Path:
    return folder / REPORT if (folder / REPORT).is_dir() else folder


def _predictions(folder: Path, options: Options) -> dict[str, StoredPredictions]:
    return read_predictions(_report_folder(folder), options, ("msp",))


def _check_distinct(reports: Mapping[Path, Report]) -> None:
    """Raises DataError if two runs are the same, or two of a method have the same seed."""
    seen: dict[object, Path] = {}
    for folder, report in reports.items():
        keys: list[tuple[object, str]] = [(report.revision, "another model, got the same revision")]
        if (seed := report.method.seed) is not None:
            of_seed = report.method.recipe_sha256, seed
            keys.append((of_seed, f"another seed of {report.method.title}, got {seed}"))
        for key, expected in keys:
            if key in seen:
                raise DataError(f"{folder}: expected {expected} as in {seen[key]}")
            seen[key] = folder


def _check_same_images(
    folder: Path,
    sets: Mapping[str, StoredPredictions],
    first: Path,
    expected: Mapping[str, StoredPredictions],
) -> None:
    """Raises DataError unless a run has the images, labels and classes of the first one."""
    if sets.keys() != expected.keys():
        raise DataError(
            f"{folder}: expected the sets of {first} ({', '.join(expected)}), got {', '.join(sets)}"
        )
    for name, of_set in sets.items():
        others = expected[name]
        if of_set.classes != others.classes:
            raise DataError(
                f"{folder}: expected the classes of {first} ({', '.join(others.classes)}), got "
                f"{', '.join(of_set.classes)}"
            )
        ours, theirs = (
            list(zip(one.names, one.labels.tolist(), strict=True)) for one in (of_set, others)
        )
        if ours != theirs:
            different = sorted(set(ours) ^ set(theirs)) or ours
            raise DataError(
                f"{folder}: expected the {len(theirs):,} images of {first} in the set {name}, got "
                f"others, such as {printable(different[0][0])}"
            )


def comparison_markdown(comparison: Comparison) -> str:
    """Two tables: what every method reached, and the tested differences."""
    return "\n\n".join(_sections(comparison)) + "\n"


def _sections(comparison: Comparison) -> Iterator[str]:
    report = comparison.report
    yield f"# Comparison on {report.data}"
    yield (
        f"Test images: {counted_images(report)}. Mean ± standard deviation (n - 1) over the runs "
        "of a method, which differ in their seed."
    )
    yield markdown_table(*_arm_table(comparison))
    yield from _settings_notes(comparison)
    seen = {run.folder: run.report.seen for arm in comparison.arms for run in arm.runs}
    for count in dict.fromkeys(filter(None, seen.values())):
        folders = [str(folder) for folder, of_run in seen.items() if of_run == count]
        runs = "All runs" if len(folders) == len(seen) else ", ".join(folders)
        yield (
            f"**{runs}: the training of the model or of its backbone was shown {count:,} of the "
            "test images: the figures are too good.**"
        )
    if not comparison.differences:
        if len(comparison.arms) > 1:
            yield f"Nothing is tested: fewer than {MIN_CLUSTERS} groups of test images."
        return
    yield f"## Differences to {comparison.reference.name}"
    yield markdown_table(*_difference_table(comparison), text_columns=3)
    yield _note(comparison)


def _settings_notes(comparison: Comparison) -> Iterator[str]:
    """Yields a line with the settings that differ between runs, and their values in order."""
    methods = {run.folder: run.report.method for arm in comparison.arms for run in arm.runs}
    values: dict[str, dict[str, None]] = {}
    for method in methods.values():
        for key, value in method.settings.items():
            values.setdefault(key, {})[json.dumps(value, sort_keys=True).strip('"')] = None
    differing = [f"{key} ({', '.join(of)})" for key, of in values.items() if len(of) > 1]
    if differing:
        yield (
            "**Beside the method these settings differ, and may explain a difference: "
            f"{printable('; '.join(differing))}.**"
        )
    if unknown := [str(folder) for folder, method in methods.items() if not method.settings]:
        yield f"Settings are not recorded in {', '.join(unknown)}."


def _note(comparison: Comparison) -> str:
    tests = len(comparison.differences)
    shown = sum(one.shown for one in comparison.differences)
    single = [arm.name for arm in comparison.arms if len(arm.runs) == 1]
    seeds = "" if len(single) == len(comparison.arms) else " and new seeds"
    note = (
        f"Intervals of 95% are for new test images{seeds}. Differences shown, with a p below "
        f"{LEVEL:.2g} after Holm's correction: {shown} of {tests}. No difference shown is not "
        f"equal: such runs show a difference of `detectable` with a probability of {POWER:.0%}."
    )
    if single:
        note += (
            f" A single run ({'; '.join(single)}) says nothing about other seeds: the intervals of "
            "its differences are for new images only."
        )
    alone = {one.arm for one in comparison.differences if len(one.by_seed) == 1} - {*single}
    if alone and comparison.reference.name not in single:
        note += (
            f" Intervals of a single common seed ({'; '.join(sorted(alone))}) are for new images "
            "only."
        )
    return note


def _arm_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows."""
    shown = [metric for metric in _TESTED if comparison.arms[0].values(metric)]
    rows = []
    for arm in comparison.arms:
        values = [arm.values(metric) for metric in shown]
        rows.append([arm.name, f"{len(arm.runs)}", f"{arm.trajectories}", *map(_over_runs, values)])
    return ["method", "runs", "rows", *(_TESTED[metric] for metric in shown)], rows


def _over_runs(values: Sequence[float]) -> str:
    if not values:
        return "n/a"
    deviation = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{deviation}"


def _difference_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows."""
    head = [
        "method", "metric", "result", "difference", "95% interval", "p, Holm", "detectable", "seeds"
    ]  # fmt: skip
    arms = {arm.name: arm for arm in comparison.arms}
    rows = [
        [
            one.arm,
            _TESTED[one.metric],
            _verdict(one),
            f"{one.difference:+.4f}",
            *(
                (
                    f"{one.low:+.4f} to {one.high:+.4f}",
                    _p_value(one.adjusted_p),
                    f"{one.detectable:.4f}",
                )
                if one.low < one.high
                else ("no interval", "n/a", "n/a")  # equal in all resamples, which says nothing
            ),
            _pairing(arms[one.arm], comparison.reference),
        ]
        for one in comparison.differences
    ]
    return head, rows


def _verdict(one: EndpointResult) -> str:
    if not one.shown:
        return one.verdict
    return "better" if (one.metric in _HIGHER_IS_BETTER) == (one.difference > 0) else "worse"


def _p_value(p: float | None) -> str:
    if p is None:
        return "n/a"
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def write_comparison(
    folder: Path, comparison: Comparison, figures: Sequence[FigureFormat] = ()
) -> None:
    """Writes the tables as Markdown, LaTeX and CSV, and the charts.

    Args:
        folder: Empty, such as that of `new_folder`.
        comparison: What is written.
        figures: Further formats of the charts, beside PNG.
    """
    sections = [*_sections(comparison), "## Charts"]
    for name, (alt_text, figure) in _charts(comparison).items():
        for suffix in dict.fromkeys(("png", *figures)):
            write_figure(figure, folder / f"{name}.{suffix}")
        sections.append(f"![{alt_text}]({name}.png)")
    tables = [_arm_table(comparison)]
    tables += [_difference_table(comparison)] if comparison.differences else []
    latex = "\n".join([_LATEX_HEAD, *(_latex_table(head, rows) for head, rows in tables)])
    write_text(folder / "comparison.tex", latex)
    write_text(folder / "comparison.csv", _csv(comparison))
    write_text(folder / COMPARISON, "\n\n".join(sections) + "\n")


def _csv(comparison: Comparison) -> str:
    """A row for each method and metric, with the values of its runs and the tested difference."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["method", "rows", "metric", "mean", "sd", "seeds", "values", "minus", "difference", "low",
         "high", "p", "p_holm", "detectable", "seeds_compared"]
    )  # fmt: skip
    tested = {(one.arm, one.metric): one for one in comparison.differences}
    for arm in comparison.arms:
        for metric in _TESTED:
            if values := arm.values(metric):
                one = tested.get((arm.name, metric))
                of_runs = [mean(values), stdev(values) if len(values) > 1 else None]
                seeds = [str(seed) if isinstance(seed, int) else "" for seed in arm.by_seed]
                difference: list[str] = [""] * 8
                if one is not None:
                    numbers = (one.difference, one.low, one.high, one.p, one.adjusted_p)
                    difference = [one.minus, *map(_number, (*numbers, one.detectable))]
                    difference.append(_pairing(arm, comparison.reference))
                writer.writerow(
                    [arm.name, arm.trajectories, metric, *map(_number, of_runs), " ".join(seeds),
                     " ".join(map(_number, values)), *difference]
                )  # fmt: skip
    return text.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "<": "$<$"}
)
_LATEX_HEAD = r"% Needs \usepackage{booktabs} in the preamble."
_SIGNS = re.compile(r"(?<!\w)([-+])(?=\d)")


def _latex_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""A table for LaTeX's package booktabs."""
    lines = [r"\begin{tabular}{l" + "r" * (len(head) - 1) + "}", r"\toprule"]
    lines += [" & ".join(_latex(text) for text in head) + r" \\", r"\midrule"]
    lines += [" & ".join(_latex(text) for text in row) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex(text: str) -> str:
    return _SIGNS.sub(r"$\1$", printable(text).translate(_LATEX))


def _charts(comparison: Comparison) -> dict[str, tuple[str, Figure]]:
    """Alternative texts and figures by name of the file."""
    arms, report = comparison.arms, comparison.report
    subtitle = f"{report.data}\n{counted_images(report)}"
    bins = {arm.name: [_bins(run.sets[TEST]) for run in arm.runs] for arm in arms}
    curves = {arm.name: [_risk_coverage(run.sets[TEST]) for run in arm.runs] for arm in arms}
    charts = {
        "reliability": ("Reliability", reliability_chart(bins, f"Reliability\n{subtitle}")),
        "risk-coverage": (
            "Risk-coverage curves",
            risk_coverage_chart(curves, f"Risk by coverage\n{subtitle}"),
        ),
    }
    scores = {
        f"{of_set.group}: {name}": {
            arm.name: [(run.sets[TEST].scores["msp"], run.sets[name].scores["msp"])
                       for run in arm.runs]
            for arm in arms
        }
        for name, of_set in arms[0].runs[0].sets.items()
        if name != TEST
    }  # fmt: skip
    if scores:
        title = f"Test images against other sets, by MSP\n{subtitle}"
        charts["roc"] = ("ROC of the MSP", roc_chart(scores, title))
    return charts


def _bins(test: StoredPredictions) -> CalibrationBins:
    return calibration_bins(test.probabilities, test.labels)


def _risk_coverage(test: StoredPredictions) -> RiskCoverage:
    wrong = test.probabilities.argmax(axis=1) != test.labels
    return risk_coverage(test.probabilities.max(axis=1), wrong, unit_weights(len(wrong)))
