"""The parts of a calibration as a table: what each one needs, what is available, and its result.

`eulerlora calibrate` prints it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.sampling.adaptive import MIN_IMAGES
from eulerlora.scores.prediction_sets import ALWAYS_INCLUDED, min_units
from eulerlora_contract.printable import markdown_table
from eulerlora_contract.sampling import Options
from training.evaluation.intervals import tolerance_sample_size
from training.reporting.tables import TOO_FEW

FEATURES, OOD = "feature means", "OOD thresholds"
_MARGINS = "decision margins"


@dataclass(frozen=True)
class FittedPart:
    """A part of a calibration.

    Attributes:
        needed: What a fit needs, in `unit`.
        available: What the images have, in `unit`.
    """

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


def calibrated_parts(config: CheckpointConfig) -> Iterator[FittedPart]:
    features, margins = config.features, config.margins
    if features is not None:
        yield FittedPart(FEATURES, 1, features.images, "images", f"{features.components} means")
    for entry in config.thresholds:
        part = f"{OOD}, {_key(entry.options)}"
        result = f"MSP >= {entry.msp:.4f} keeps {entry.kept:.1%} of the images"
        if (tolerance := entry.tolerance) is not None:
            needed, units = tolerance_sample_size(tolerance.share), f"{tolerance.unit}s"
            yield FittedPart(part, needed, tolerance.units, units, f"{result}; {tolerance.summary}")
    if margins is not None:
        samples, share = margins.options.samples, f"{margins.agreement:.1%}"
        result = f"label and flags of {samples} samples in {share} (level {margins.level:g})"
        yield FittedPart(_MARGINS, MIN_IMAGES, margins.images, "images", result)
    elif config.thresholds and config.thresholds[0].images < MIN_IMAGES:
        yield FittedPart(_MARGINS, MIN_IMAGES, config.thresholds[0].images, "images")
    for change in config.bfloat16:
        result = f"{change.summary}: {'accepted' if change.admissible else 'refused'} by auto"
        yield FittedPart("precision", 1, change.images, "images", result)
    for sets in config.prediction_sets:
        part = f"{sets_part(sets.coverage)}, {_key(sets.options)}"
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


def sets_part(coverage: float) -> str:
    return f"prediction sets {coverage:g}"


def _key(options: Options) -> str:
    return f"{options.mode} {options.samples} in {options.precision}"
