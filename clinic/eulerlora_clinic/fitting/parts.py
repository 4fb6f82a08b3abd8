"""The parts of a policy in the table that fits print, and the results of measurements."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from eulerlora_clinic.fitting.policy import PolicyFit, routine_sample_size, urgent_sample_size
from eulerlora_clinic.policy.policy import FarEvidence, UnfamiliarRules
from eulerlora_clinic.policy.results import counted
from eulerlora_contract.checkpoints import TargetClasses
from eulerlora_contract.printable import markdown_table
from training.calibration.parts import FittedPart
from training.evaluation.intervals import tolerance_sample_size

ROUTINE, _URGENT, FAR = "routine threshold", "urgent threshold", "far threshold"


def results_table(title: str, columns: Mapping[str, Mapping[str, str]]) -> str:
    """Results by name as a Markdown table, with the results of each of `columns`."""
    names = dict.fromkeys(name for results in columns.values() for name in results)
    rows = [[name, *(results.get(name, "n/a") for results in columns.values())] for name in names]
    return markdown_table([title, *columns], rows)


def far_table(rules: UnfamiliarRules, evidence: Iterable[FarEvidence]) -> str:
    """What both rules do to target lesions, whether or not `ood` is in force, as Markdown."""
    rows = [
        [f"{one.data}, {one.unit}s, {one.part}", f"{one.lesions:,}", f"{one.far:,}", f"{one.ood:,}"]
        for one in evidence
    ]
    header = ["target lesions", "number", f"far = {rules.far:g}", f"ood = {str(rules.ood).lower()}"]
    return markdown_table(header, rows)


def policy_parts(fit: PolicyFit, in_training: int = 0) -> Iterator[FittedPart]:
    """With results; `in_training` as in `evidence_of`."""
    target, routine, urgent = fit.target, fit.routine, fit.urgent
    required = routine.wanted, urgent.wanted
    parts = list(target_parts(routine.lesions, fit.lesions, *required, target, f"{fit.unit}s"))
    results = (
        f"{'' if parts[0].met else 'stays '}{target.routine:g}: {routine.hits} of "
        f"{counted(routine, fit.unit)} found, lower bound {routine.lower_bound:.3f}",
        "reached" if routine.established and not in_training else "not reached",
        f"{target.urgent:g}: {urgent.hits} of {counted(urgent, fit.unit)} are {target.name}, lower "
        f"bound {urgent.lower_bound:.3f}, "
        f"{'' if urgent.established and not in_training else 'not '}established",
    )
    for part, result in zip(parts, results, strict=True):
        yield replace(part, result=result)
    reached = f"{fit.entropy_nats:g} nats, reached by {fit.uncertain:.3f}"
    yield FittedPart("entropy threshold", 1, fit.images, "images", reached)


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
    yield FittedPart(ROUTINE, routine_sample_size(sensitivity), critical, unit)
    yield FittedPart(f"bound of {sensitivity:g}", needed, critical, f"{unit} without a miss")
    yield FittedPart(_URGENT, urgent_sample_size(predictive_value), total, units)
