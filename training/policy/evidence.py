"""The `[evidence]` tables of a policy file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eulerlora.model import EulerLoRA
from training.evaluation.inference import SamplingOptions
from training.evaluation.report_schema import MELANOMA
from training.metrics.intervals import CONFIDENCE
from training.policy.fit import PolicyFit
from training.policy.measurement import MalignantCounts, OtherCounts, PolicyMeasurement


@dataclass(frozen=True)
class MeasuredOn:
    """A measurement, and the name of its data.

    outside: the data's labels of malignant lesions of none of the model's classes.
    """

    data: str
    measurement: PolicyMeasurement
    outside: tuple[str, ...] = ()


def evidence_table(
    model: EulerLoRA,
    options: SamplingOptions,
    fit: PolicyFit,
    data: str,
    measured: Sequence[MeasuredOn],
) -> dict[str, Any]:
    """Returns the `[evidence]` table. data: name of the images of the fit."""
    evidence: dict[str, Any] = {
        "model": model.config.name,
        "revision": model.revision,
        "precision": model.precision,
        "mode": options.mode,
        "samples": options.samples,
        "target": MELANOMA,
        "wanted": fit.melanoma.required,
        "confidence": CONFIDENCE,
        "fit": _fit_table(fit, data),
    }
    if measured:
        evidence["measured"] = [_measured_table(one) for one in measured]
    return evidence


def _fit_table(fit: PolicyFit, data: str) -> dict[str, Any]:
    return {
        "data": data,
        "images": fit.images,
        "lesions": fit.melanoma.lesions,
        "found": fit.melanoma.hits,
        "lower_bound": _rounded_down(fit.melanoma.lower_bound),
        "established": fit.melanoma.established,
        "uncertain": _rounded_up(fit.uncertain),
    }


def _measured_table(measured: MeasuredOn) -> dict[str, Any]:
    measurement = measured.measurement
    table: dict[str, Any] = {
        "data": measured.data,
        "images": measurement.images,
        "lesions": measurement.lesions,
        "referral_rate": _rounded_up(measurement.referral_rate),
        "target": _malignant_table(measurement.melanoma),
        "malignant": _malignant_table(measurement.malignant),
    }
    if measurement.outside is not None:
        labels = {"labels": list(measured.outside)}
        table["other_malignant"] = labels | _malignant_table(measurement.outside)
    return table | {"others": _others_table(measurement.others)}


def _malignant_table(counts: MalignantCounts) -> dict[str, Any]:
    low, high = counts.interval
    return {
        "lesions": counts.lesions,
        "urgent": counts.urgent,
        "unfamiliar": counts.unfamiliar,
        "reached": counts.reached,
        "sensitivity": _rounded_down(counts.sensitivity),
        "sensitivity_low": _rounded_down(low),
        "sensitivity_high": _rounded_up(high),
    }


def _others_table(counts: OtherCounts) -> dict[str, Any]:
    low, high = counts.interval
    return {
        "lesions": counts.lesions,
        "urgent": counts.urgent,
        "unfamiliar": counts.unfamiliar,
        "reached": counts.reached,
        "specificity": _rounded_down(counts.specificity),
        "specificity_low": _rounded_down(low),
        "specificity_high": _rounded_up(high),
    }


def _rounded_down(share: float) -> float:
    """Returns a share rounded down to four decimals."""
    return float(np.floor(share * 10_000) / 10_000)


def _rounded_up(share: float) -> float:
    """Returns a share rounded up to four decimals."""
    return float(np.ceil(share * 10_000) / 10_000)
