"""The evidence tables agree with the fit, and round against the policy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eulerlora.checkpoint.files import load_checkpoint
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
    table = evidence_table(model, options, fit, "one", [MeasuredOn("other", measurement)])
    assert (table["model"], table["revision"]) == ("tiny", model.revision)
    assert (table["mode"], table["samples"], table["target"]) == ("stoch", 4, "mel")
    assert table["precision"] == "float32"
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
    (measured,) = table["measured"]
    assert (measured["data"], measured["images"], measured["lesions"]) == ("other", 90, 90)
    assert measured["referral_rate"] >= measurement.referral_rate
    assert "other_malignant" not in measured
    target, others = measured["target"], measured["others"]
    counts = {"lesions": 30, "urgent": 30, "unfamiliar": 0, "reached": 30, "sensitivity": 1.0}
    assert target == target | counts
    assert others == others | {"lesions": 60, "urgent": 30, "unfamiliar": 0, "reached": 30}
    for row, share, interval in (
        (target, "sensitivity", measurement.melanoma.interval),
        (others, "specificity", measurement.others.interval),
    ):
        low, high = interval
        assert row[f"{share}_low"] <= low < row[f"{share}_low"] + 1e-4
        assert row[f"{share}_high"] >= high > row[f"{share}_high"] - 1e-4
    values = [*measured.values(), *target.values(), *others.values()]
    assert not any(isinstance(value, np.generic) for value in values)


def test_malignant_lesions_without_a_class_have_a_table_with_their_labels(
    model: EulerLoRA,
) -> None:
    images = scored(melanomas=62, malignant=5)
    outside = images.malignant & ~images.melanoma
    changed = replace(images, malignant=images.melanoma, outside=outside)
    fit = fit_policy(images, 0.95)
    measured = [MeasuredOn("other", measure_policy(changed, fit), ("SCC",))]
    (table,) = evidence_table(model, SamplingOptions("det"), fit, "one", measured)["measured"]
    assert (table["malignant"]["lesions"], table["others"]["lesions"]) == (62, 100)
    assert (table["other_malignant"]["labels"], table["other_malignant"]["lesions"]) == (["SCC"], 5)


def test_without_other_images_there_is_no_measurement(model: EulerLoRA) -> None:
    fit = fit_policy(scored(melanomas=62), 0.95)
    assert "measured" not in evidence_table(model, SamplingOptions("det"), fit, "one", ())
