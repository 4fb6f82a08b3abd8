"""The printed results of a measurement."""

from dataclasses import replace

import numpy as np

from tests.training.policy.scored_images import scored
from training.policy.evidence import MeasuredOn
from training.policy.fit import fit_policy
from training.policy.measurement import measure_policy
from training.policy.summary import measured_lines


def test_the_summary_names_counts_and_ranking() -> None:
    fit = fit_policy(scored(melanomas=60), 0.95)
    images = scored(melanomas=60, malignant=40, others=100)
    reversed_ = replace(images, melanoma_scores=1 - np.arange(200) / 200)  # melanoma first
    lines = "\n".join(measured_lines(MeasuredOn("other", measure_policy(reversed_, fit))))
    assert "Measured on other: 200 images of 200 lesions." in lines
    assert "60 lesions of mel: 60 urgent, 0 unfamiliar (seen by a person), 0 missed" in lines
    ranked = "AUROC 1.000 (95% interval 1.000 to 1.000), sensitivity 1.000 (95% interval 1.000 to"
    assert f"ranking of images: melanoma, {ranked} 1.000) at a specificity of 0.90" in lines
    assert "malignant classes, AUROC 0.563 (95% interval 0.4" in lines
