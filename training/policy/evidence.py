"""The `[evidence]` tables of a policy file."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from eulerlora.model import EulerLoRA
from training.evaluation.inference import SamplingOptions
from training.evaluation.report_schema import MELANOMA
from training.metrics.intervals import CONFIDENCE
from training.policy.fit import PolicyFit
from training.policy.measurement import PolicyMeasurement


@dataclass(frozen=True)
class MeasuredOn:
    """A measurement, and the name of its data."""

    data: str
    measurement: PolicyMeasurement


def evidence_table(
    model: EulerLoRA,
    options: SamplingOptions,
    fit: PolicyFit,
    data: str,
    measured: MeasuredOn | None,
) -> dict[str, Any]:
    """Returns the `[evidence]` table. data: name of the images of the fit."""
    evidence: dict[str, Any] = {
        "model": model.config.name,
        "revision": model.revision,
        "mode": options.mode,
        "samples": options.samples,
        "target": MELANOMA,
        "wanted": fit.melanoma.required,
        "confidence": CONFIDENCE,
        "fit": _fit_table(fit, data),
    }
    if measured is not None:
        evidence["measured"] = _measured_table(measured)
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
    measurement, melanoma = measured.measurement, measured.measurement.melanoma
    low, high = melanoma.interval
    return {
        "data": measured.data,
        "images": measurement.images,
        "lesions": melanoma.lesions,
        "found": melanoma.found,
        "unfamiliar": melanoma.unfamiliar,
        "sensitivity": _rounded_down(melanoma.sensitivity),
        "sensitivity_low": _rounded_down(low),
        "sensitivity_high": _rounded_up(high),
        "specificity": _rounded_down(measurement.specificity),
        "referral_rate": _rounded_up(measurement.referral_rate),
    }


def _rounded_down(share: float) -> float:
    """Returns a share rounded down to four decimals."""
    return float(np.floor(share * 10_000) / 10_000)


def _rounded_up(share: float) -> float:
    """Returns a share rounded up to four decimals."""
    return float(np.ceil(share * 10_000) / 10_000)
