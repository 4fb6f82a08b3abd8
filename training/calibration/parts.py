"""The parts of a calibration as a table: what each one needs, what is available, and its result.

`eulerlora calibrate`, `policy fit` and `site fit` print it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.sampling.adaptive import MIN_IMAGES
from eulerlora.scores.prediction_sets import ALWAYS_INCLUDED, min_units
from eulerlora_contract.answers import TargetClasses
from eulerlora_contract.policy.results import counted
from training.calibration.policy import PolicyFit, urgent_sample_size
from training.evaluation.intervals import tolerance_sample_size
from training.reporting.tables import TOO_FEW, markdown_table

FEATURES, OOD = "feature means", "OOD thresholds"
ROUTINE, _URGENT = "routine threshold", "urgent threshold"


@dataclass(frozen=True)
class FittedPart:
    """A part of a calibration, with what a fit needs and what the images have, in `unit`."""

    part: str
    needed: int
    available: int
    unit: str
    result: str = ""

    @property
    def met(self) -> bool:
        return self.available >= self.needed


def parts_table(parts: Iterable[FittedPart]) -> str:
    rows = [
        [
            part.part,
            f"{part.needed} {part.unit}",
            f"{part.available:,}",
            part.result if part.met else f"{part.result}; {TOO_FEW}" if part.result else TOO_FEW,
        ]
        for part in parts
    ]
    return markdown_table(["part", "needed", "available", "result"], rows)


def results_table(title: str, columns: Mapping[str, Mapping[str, str]]) -> str:
    """Results by name as a Markdown table, with the results of each of `columns`."""
    names = dict.fromkeys(name for results in columns.values() for name in results)
    rows = [[name, *(results.get(name, "n/a") for results in columns.values())] for name in names]
    return markdown_table([title, *columns], rows)


def calibrated_parts(config: CheckpointConfig) -> Iterator[FittedPart]:
    features, margins = config.features, config.margins
    if features is not None:
        yield FittedPart(FEATURES, 1, features.images, "images", f"{features.components} means")
    for entry in config.thresholds:
        part = f"{OOD}, {entry.mode} {entry.samples} in {entry.precision}"
        result = f"MSP >= {entry.msp:.4f} keeps {entry.kept:.1%} of the images"
        if (tolerance := entry.tolerance) is not None:
            needed, units = tolerance_sample_size(tolerance.share), f"{tolerance.unit}s"
            yield FittedPart(part, needed, tolerance.units, units, f"{result}; {tolerance.summary}")
    if margins is not None:
        agreement = f"label and flags of {margins.compared_with} samples in {margins.agreement:.1%}"
        result = f"{agreement} (level {margins.level:g})"
        yield FittedPart("decision margins", MIN_IMAGES, margins.images, "images", result)
    for change in config.bfloat16:
        result = f"{change.summary}: {'accepted' if change.admissible else 'refused'} by auto"
        yield FittedPart("precision", 1, change.images, "images", result)
    for sets in config.prediction_sets:
        part = f"{sets_part(sets.coverage)}, {sets.mode} {sets.samples} in {sets.precision}"
        by_class = zip(config.classes, sets.thresholds, sets.units, sets.confidences, strict=True)
        limits = ", ".join(
            f"{label.name} {'always' if limit == ALWAYS_INCLUDED else f'{limit:.4f}'} ({count}, "
            f"confidence {confidence:.0%})"
            for label, limit, count, confidence in by_class
        )
        needed, available, classes = min_units(sets.coverage), min(sets.units), "each class"
        if available < needed:  # the rare classes are in every set
            available, classes = max(sets.units), "a class"
        unit = f"{sets.unit}s of {classes}"
        yield FittedPart(part, needed, available, unit, f"1 - p up to {limits}")


def policy_parts(fit: PolicyFit) -> Iterator[FittedPart]:
    target, routine, urgent = fit.target, fit.routine, fit.urgent
    parts = target_parts(
        routine.lesions, fit.lesions, routine.wanted, urgent.wanted, target, f"{fit.unit}s"
    )
    results = (
        f"{target.routine:g}: {routine.hits} of {counted(routine, fit.unit)} found, lower bound "
        f"{routine.lower_bound:.3f}",
        "reached" if routine.established else "not reached",
        f"{target.urgent:g}: {urgent.hits} of {counted(urgent, fit.unit)} are {target.name}, lower "
        f"bound {urgent.lower_bound:.3f}, {'' if urgent.established else 'not '}established",
    )
    for part, result in zip(parts, results, strict=True):
        yield replace(part, result=result)
    reached = f"{fit.entropy_nats:g} nats, reached by {fit.uncertain:.3f}"
    yield FittedPart("entropy threshold", 1, fit.images, "images", reached)


def sets_part(coverage: float) -> str:
    return f"prediction sets {coverage:g}"


def target_parts(
    critical: int,
    total: int,
    sensitivity: float,
    predictive_value: float,
    target: TargetClasses,
    units: str,
) -> Iterator[FittedPart]:
    """The parts of a policy in their order, without results.

    `critical` and `total` are numbers of `units`, such as lesions; `sensitivity` is that of the
    routine threshold, `predictive_value` that of the urgent threshold.
    """
    unit, needed = f"{units} of {target.critical.name}", tolerance_sample_size(sensitivity)
    yield FittedPart(ROUTINE, 1, critical, unit)
    yield FittedPart(f"bound of {sensitivity:g}", needed, critical, f"{unit} without a miss")
    yield FittedPart(_URGENT, urgent_sample_size(predictive_value), total, units)
