"""The policy's decisions on predictions of the library are those of the service."""

from pathlib import Path

import torch

from eulerlora.model import EulerLoRA
from eulerlora_client.policy.policy import default_policy
from service.lifecycle.loading import policy_dispositions

POLICY = default_policy()
CLASSES = POLICY.malignant.classes


def test_each_image_has_the_disposition_of_the_policy(checkpoint_folder: Path) -> None:
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    prediction = model.predict(torch.rand(2, 3, 32, 32))
    decide = policy_dispositions(POLICY)
    names = (CLASSES[0], CLASSES[1], "nv")
    sure = torch.tensor([[1.0, 0, 0], [0, 0, 1.0]]).double()
    prediction.probabilities.copy_(sure)
    prediction.trajectories.copy_(sure[:, None])
    prediction.entropy.copy_(torch.tensor([0.0, 10.0]))
    assert prediction.ood is not None
    prediction.ood.fill_(False)
    if len(CLASSES) > 2:
        assert decide(prediction, names) == []  # a model without the policy's classes
    alone = POLICY.model_copy(
        update={"malignant": POLICY.malignant.model_copy(update={"classes": CLASSES[:2]})}
    )
    assert policy_dispositions(alone)(prediction, names) == ["urgent, False", "refer, True"]
