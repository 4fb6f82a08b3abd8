"""How many lesions a site needs for which part of its calibration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from eulerlora.scores.prediction_sets import min_units
from training.evaluation.report_schema import MELANOMA
from training.policy.threshold import min_lesions
from training.reporting.tables import table

TEMPERATURE, FEATURES, OOD = "temperature", "feature means", "OOD thresholds"
URGENT, SETS = "urgent threshold", "prediction sets"

MIN_TEMPERATURE = 10
"""Lesions of each class for a temperature, two in each fold of its cross-validation.

Pictures without some of the classes would give a low temperature, because all probability of these
classes looks wrong.
"""

MIN_FEATURES = 50
"""Lesions for feature means: the mean of n adds 1/n to the expected squared distance, here 2%."""

TOO_FEW = "too few"


@dataclass(frozen=True)
class Needs:
    """What a site wants to fit.

    kept: share of the lesions that the OOD thresholds keep. sensitivity: required of the urgent
    threshold. coverages: of the prediction sets. always_include_rare: True if a class with too few
    lesions for a coverage is in every set.
    """

    kept: float
    sensitivity: float
    coverages: Sequence[float]
    always_include_rare: bool = False


@dataclass(frozen=True)
class Requirement:
    """A part of the calibration. needed, available: numbers of lesions of `kind`."""

    part: str
    needed: int
    available: int
    kind: str

    @property
    def met(self) -> bool:
        return self.available >= self.needed


def bound_part(sensitivity: float) -> str:
    """Returns the name of the exact bound of a sensitivity."""
    return f"bound of {sensitivity:g}"


def sets_part(coverage: float) -> str:
    """Returns the name of the prediction sets of a coverage."""
    return f"{SETS} {coverage:g}"


def requirements(lesions: Mapping[str, int], unit: str, needs: Needs) -> list[Requirement]:
    """Returns the requirements in the order of the calibration.

    lesions: number of each of the checkpoint's classes. unit: "lesion", or "image" if every image
    counts as a lesion.
    """
    return list(_parts(lesions, f"{unit}s", needs))


def requirements_table(parts: Sequence[Requirement], results: Mapping[str, str]) -> str:
    """Returns a Markdown table. results: by part, for parts with enough lesions."""
    rows = [
        [
            part.part,
            f"{part.needed} {part.kind}",
            str(part.available),
            results[part.part] if part.met else TOO_FEW,
        ]
        for part in parts
    ]
    return table(["part", "needed", "available", "result"], rows)


def _parts(lesions: Mapping[str, int], units: str, needs: Needs) -> Iterator[Requirement]:
    total, melanomas = sum(lesions.values()), lesions.get(MELANOMA, 0)
    fewest = min(lesions.values())
    yield Requirement(TEMPERATURE, MIN_TEMPERATURE, fewest, f"{units} of each class")
    yield Requirement(FEATURES, MIN_FEATURES, total, units)
    yield Requirement(OOD, min_units(needs.kept), total, units)
    available, classes = fewest, "each class"
    if needs.always_include_rare:
        available, classes = max(lesions.values()), "a class"
    for coverage in needs.coverages:
        part = sets_part(coverage)
        yield Requirement(part, min_units(coverage), available, f"{units} of {classes}")
    yield Requirement(URGENT, 1, melanomas, f"{units} of {MELANOMA}")
    bound, needed = bound_part(needs.sensitivity), min_lesions(needs.sensitivity)
    yield Requirement(bound, needed, melanomas, f"{units} of {MELANOMA} without a miss")
