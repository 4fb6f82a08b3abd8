"""When the disposition of a policy is settled in a round of `samples=auto`."""

from dataclasses import replace

import pytest
import torch

from eulerlora.answer import Predictions
from eulerlora.sampling.adaptive import StoppingRule
from eulerlora.scores.ood_scores import FlaggedScore
from eulerlora_clinic.policy.policy import Policy, default_policy
from eulerlora_contract.answers import Reason
from tests.eulerlora.sampling.test_adaptive import ROWS, SUMMARY, ends, log_odds, trajectories_of

DISTANCE = FlaggedScore(torch.tensor([30.0]), 20.0, torch.tensor([True]))
UNFAMILIAR = replace(SUMMARY, ood_scores={**SUMMARY.ood_scores, "feature_distance": DISTANCE})


def policy_of(**changes: object) -> Policy:
    """A policy whose thresholds no answer of these tests is near, with other tables or keys."""
    values = default_policy().model_dump()
    values["target"] |= {"classes": ("b", "c"), "critical": {"name": "c", "classes": ("c",)}}
    values["target"] |= {"routine": 0.998, "urgent": 0.999}
    values["uncertainty"]["entropy_nats"] = 5.0
    for key, change in changes.items():
        values[key] = values.get(key, {}) | change
    return Policy.model_validate(values)


def test_a_policy_needs_what_its_disposition_depends_on() -> None:
    """The probability of b and c is 0.5; the rows disagree, which refers the image."""
    distance = log_odds(0.5) - log_odds(0.4)
    for urgent in (0.4, 0.6):
        policy = policy_of(target={"routine": 0.1, "urgent": urgent})
        rule = StoppingRule(msp=0.01, settled=policy.settled(("a", "b", "c")))
        assert ends(SUMMARY, rule, log_odds=distance - 1e-6)
        assert not ends(SUMMARY, rule, log_odds=distance + 1e-6)


def test_entropy_matters_unless_another_reason_refers_the_image() -> None:
    agreeing = Predictions.of(trajectories_of(ROWS[:, :, :1]))
    near = float(agreeing.entropy) + 0.09
    policy = policy_of(uncertainty={"entropy_nats": near})
    rule = StoppingRule(msp=0.01, settled=policy.settled(("a", "b", "c")))
    assert ends(agreeing, rule, samples=1, entropy=0.08)
    assert not ends(agreeing, rule, samples=1, entropy=0.1)
    assert ends(SUMMARY, rule, entropy=9.0)  # its trajectories disagree
    poor = StoppingRule(msp=0.01, settled=policy.settled(("a", "b", "c"), (Reason.BLURRED,)))
    assert ends(agreeing, poor, samples=1, entropy=0.1)  # is retaken


def test_trajectories_that_agree_need_a_margin() -> None:
    agreeing = Predictions.of(trajectories_of(ROWS[:, :, :1]))  # least: log(0.6 / 0.3)
    rule = StoppingRule(msp=0.01, settled=policy_of().settled(("a", "b", "c")))
    assert ends(agreeing, rule, samples=1, agreement=0.69)
    assert not ends(agreeing, rule, samples=1, agreement=0.70)


@pytest.mark.parametrize(("urgent", "needed"), [(0.4, True), (0.6, False)])
def test_a_distance_near_far_matters_only_if_the_image_could_be_urgent(
    urgent: float, needed: bool
) -> None:
    for far in (29.0, 31.0):
        rules = {"far": far, "ood": False}
        policy = policy_of(target={"routine": 0.1, "urgent": urgent}, unfamiliar=rules)
        settled = policy.settled(("a", "b", "c"))
        rule = StoppingRule(msp=0.6, feature_distance=20.0, settled=settled)
        assert ends(UNFAMILIAR, rule, feature_distance=0.9)
        assert ends(UNFAMILIAR, rule, feature_distance=1.1) is not needed


@pytest.mark.parametrize(
    ("ood", "msp", "is_settled"), [(True, 0.6, True), (False, 0.6, False), (True, None, False)]
)
def test_the_target_does_not_matter_for_an_image_that_its_msp_makes_far(
    ood: bool, msp: float | None, is_settled: bool
) -> None:
    rules = {"far": 31.0, "ood": ood}
    policy = policy_of(target={"routine": 0.1, "urgent": 0.49}, unfamiliar=rules)
    rule = StoppingRule(msp, feature_distance=20.0, settled=policy.settled(("a", "b", "c")))
    assert ends(UNFAMILIAR, rule, log_odds=0.1) is is_settled
