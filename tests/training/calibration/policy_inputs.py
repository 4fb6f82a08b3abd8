"""Inputs of a policy with known counts, and a policy fitted to them."""

import numpy as np

from eulerlora_client.contract.answers import TargetClasses
from eulerlora_client.policy.policy import Policy
from training.calibration.policy import PolicyFile, PolicyInputs, fit_policy

MEL = TargetClasses.model_validate({"name": "melanoma", "classes": ("mel",)})


def scored(critical: int, target: int = 0, others: int = 100) -> PolicyInputs:
    """Returns critical images scored from 0.5, other target images 0.6, others from 0 to 1.

    Every image is a familiar lesion by itself with an entropy of 1; each tenth one is doubtful.
    """
    scores = np.concatenate(
        [
            0.5 + np.arange(critical) / 1000,
            np.full(target, 0.6),
            np.arange(others) / max(others, 1),
        ]
    )
    count = len(scores)
    index = np.arange(count)
    return PolicyInputs(
        scores=scores,
        critical_scores=scores,
        entropy=np.ones(count),
        unfamiliar=np.zeros(count, bool),
        doubtful=index % 10 == 0,
        critical=index < critical,
        target=index < critical + target,
        outside=np.zeros(count, bool),
        lesions=index.astype(str),
    )


def fitted_policy(critical: int = 60) -> Policy:
    """Returns thresholds of 0.5 for the target probability and of more than 1 nat."""
    return PolicyFile.read(None).fitted(fit_policy(scored(critical), 0.95))
