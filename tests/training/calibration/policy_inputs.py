"""Inputs of a policy with known counts, and a policy fitted to them."""

import numpy as np

from eulerlora_client.policy.policy import Policy
from training.calibration.policy import PolicyFile, PolicyInputs, fit_policy


def scored(melanomas: int, malignant: int = 0, others: int = 100) -> PolicyInputs:
    """Returns melanomas scored from 0.5, other malignant images 0.6, others from 0 to 1.

    Every image is a familiar lesion by itself with an entropy of 1; each tenth one is doubtful.
    """
    scores = np.concatenate(
        [
            0.5 + np.arange(melanomas) / 1000,
            np.full(malignant, 0.6),
            np.arange(others) / max(others, 1),
        ]
    )
    count = len(scores)
    index = np.arange(count)
    return PolicyInputs(
        scores=scores,
        melanoma_scores=scores,
        entropy=np.ones(count),
        unfamiliar=np.zeros(count, bool),
        doubtful=index % 10 == 0,
        melanoma=index < melanomas,
        malignant=index < melanomas + malignant,
        outside=np.zeros(count, bool),
        lesions=index.astype(str),
    )


def fitted_policy(melanomas: int = 60) -> Policy:
    """Returns thresholds of 0.5 for the malignant probability and of more than 1 nat."""
    return PolicyFile.read(None).fitted(fit_policy(scored(melanomas), 0.95))
