"""The decisions of a triage policy on predictions of the library."""

from collections.abc import Sequence

from eulerlora.prediction.answer import Prediction
from eulerlora.prediction.precision import Dispositions
from eulerlora_client.contract import answers as contract
from eulerlora_client.contract.answers import ImageQuality, Reason
from eulerlora_client.errors import PolicyError
from eulerlora_client.policy.policy import Policy

FAULTLESS = ImageQuality(
    width=8192, height=8192, brightness=0.5, dark_share=0, bright_share=0, sharpness=1e9
)
"""The disposition then depends on the prediction."""


def policy_dispositions(policy: Policy) -> Dispositions:
    """Returns a function from predictions to what the policy decides about each image.

    That is the disposition, and whether the model is uncertain. It is nothing for a model without
    the policy's classes.
    """

    def dispositions(prediction: Prediction, classes: Sequence[str]) -> list[str]:
        try:
            decisions = [
                policy.decide(_wire(prediction, classes, index), FAULTLESS)
                for index in range(len(prediction.labels))
            ]
        except PolicyError:
            return []
        return [
            f"{decision.disposition}, {Reason.HIGH_ENTROPY in decision.reasons}"
            for decision in decisions
        ]

    return dispositions


def _wire(prediction: Prediction, classes: Sequence[str], index: int) -> contract.Prediction:
    """Returns one image of a prediction as an answer of the service, with what a policy reads."""
    ood, unfamiliar = prediction.ood, prediction.unfamiliar
    return contract.Prediction.model_construct(
        request_id="",
        model="",
        revision="",
        mode="stoch" if prediction.sampled[index] else "det",
        samples=int(prediction.samples[index]),
        seed=0,
        ood_threshold=None,
        warnings=(),
        expected_entropy=prediction.expected_entropy[index].item(),
        mutual_information=prediction.mutual_information[index].item(),
        msp=prediction.msp[index].item(),
        label=prediction.labels[index],
        probabilities=dict(zip(classes, prediction.probabilities[index].tolist(), strict=True)),
        entropy=prediction.entropy[index].item(),
        ood=None if ood is None else bool(ood[index]),
        unfamiliar=None if unfamiliar is None else bool(unfamiliar[index]),
        trajectories=prediction.trajectories.shape[1],
        trajectory_probabilities=tuple(
            tuple(row) for row in prediction.trajectories[index].tolist()
        ),
    )
