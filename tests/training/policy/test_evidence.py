"""The evidence tables agree with the fit, and round against the policy."""

from pathlib import Path

import numpy as np
import pytest
import torch

from eulerlora.checkpoint import load_checkpoint
from eulerlora.model import EulerLoRA
from tests.training.policy.scored_images import scored
from training.evaluation.inference import SamplingOptions
from training.policy.evidence import MeasuredOn, evidence_table
from training.policy.fit import fit_policy
from training.policy.measurement import measure_policy


@pytest.fixture(scope="module")
def model(checkpoint_folder: Path) -> EulerLoRA:
    return EulerLoRA(load_checkpoint(checkpoint_folder), torch.device("cpu"))


def test_fit_and_measurement_have_a_table_each(model: EulerLoRA) -> None:
    fit = fit_policy(scored(melanomas=62), 0.95)
    measurement = measure_policy(scored(melanomas=30, others=60), fit)
    options = SamplingOptions("stoch", 4)
    table = evidence_table(model, options, fit, "one", MeasuredOn("other", measurement))
    assert (table["model"], table["revision"]) == ("tiny", model.revision)
    assert (table["mode"], table["samples"], table["target"]) == ("stoch", 4, "mel")
    assert (table["wanted"], table["confidence"]) == (0.95, 0.95)
    assert table["fit"] == {
        "data": "one",
        "images": 162,
        "lesions": 62,
        "found": 62,
        "lower_bound": 0.9528,  # 0.05 ** (1 / 62) = 0.95283
        "established": True,
        "uncertain": 0.0,
    }
    measured = table["measured"]
    assert (measured["data"], measured["images"], measured["lesions"]) == ("other", 90, 30)
    assert (measured["found"], measured["unfamiliar"], measured["sensitivity"]) == (30, 0, 1.0)
    low, high = measurement.melanoma.interval
    assert measured["sensitivity_low"] <= low < measured["sensitivity_low"] + 1e-4
    assert measured["sensitivity_high"] >= high > measured["sensitivity_high"] - 1e-4
    assert measured["referral_rate"] >= measurement.referral_rate
    assert measured["specificity"] <= measurement.specificity
    assert all(isinstance(value, (str, int, float)) for value in measured.values())
    assert not any(isinstance(value, np.generic) for value in measured.values())


def test_without_other_images_there_is_no_measurement(model: EulerLoRA) -> None:
    fit = fit_policy(scored(melanomas=62), 0.95)
    assert "measured" not in evidence_table(model, SamplingOptions("det"), fit, "one", None)
