"""When `samples=auto` has settled the disposition of a policy."""

from collections.abc import Iterator

import pytest
import torch

from eulerlora.sampling.adaptive import (
    RoundAnswer,
    RoundMargins,
    SettledDecisions,
    StoppingRule,
)
from eulerlora_contract.answers import ImageQuality
from eulerlora_contract.policy.policy import Policy, default_policy, dispositions
from tests.eulerlora_contract.policy_inputs import GOOD

CLASSES = ("nv", "mel", "bcc", "akiec")


def decisions(policy: Policy, offsets: tuple[float, ...], distance: float) -> SettledDecisions:
    """Decisions whose malignant log-odds, entropy and agreement are that far from the limits.

    A margin is 1 in the unit of its value.
    """
    malignant, entropy, agreement = offsets
    share = torch.logit(torch.tensor(policy.target.urgent).double()) + malignant
    probability = float(share.sigmoid())
    answer = RoundAnswer(
        samples=2,
        probabilities=(1 - probability, probability, 0.0, 0.0),
        lead=5.0,
        entropy=policy.uncertainty.entropy_nats + entropy,
        agreement=agreement,
        distance=distance,
    )
    fitted = RoundMargins(samples=2, lead=1, log_odds=1, entropy=1, agreement=1, feature_distance=1)
    return SettledDecisions(answer, fitted)


def is_settled(
    policy: Policy, quality: ImageQuality, limits: StoppingRule, found: SettledDecisions
) -> bool:
    target = [CLASSES.index(name) for name in policy.target.classes]
    entropy_nats = policy.uncertainty.entropy_nats
    states = limits.states(found, target, policy.target.urgent, entropy_nats)
    poor = dict.fromkeys(policy.quality_reasons(quality), True)
    return sum(dispositions(poor | states).values()) == 1


def cases() -> Iterator[tuple[tuple[float, ...], float, bool]]:
    """Offsets, distance (limit 10), and whether the disposition is settled; by hand."""
    far, near = 2.0, 0.5
    yield (far, -far, far), 5.0, True  # urgent
    yield (far, near, 0.5), 5.0, True  # urgent whatever the uncertainty is
    yield (near, -far, far), 5.0, False  # urgent or routine
    yield (-far, -far, far), 5.0, True  # routine
    yield (-far, -near, far), 5.0, False  # refer or routine
    yield (-far, far, 0.5), 5.0, True  # refer whether or not trajectories disagree
    yield (-far, -far, 0.5), 5.0, False
    yield (-far, -far, -0.1), 5.0, True  # trajectories disagree
    yield (near, near, 0.5), 15.0, True  # unfamiliar comes first
    yield (far, -far, far), 10.5, False  # urgent or unfamiliar


@pytest.mark.parametrize(("offsets", "distance", "expected"), list(cases()))
def test_a_disposition_is_settled_if_no_open_decision_can_change_it(
    offsets: tuple[float, ...], distance: float, expected: bool
) -> None:
    policy, limits = default_policy(), StoppingRule(msp=1e-3, feature_distance=10.0)
    found = decisions(policy, offsets, distance)
    assert is_settled(policy, GOOD, limits, found) is expected


def test_a_bad_image_is_settled_as_retake_unless_it_may_be_unfamiliar() -> None:
    policy, limits = default_policy(), StoppingRule(msp=1e-3, feature_distance=10.0)
    dark = GOOD.model_copy(update={"brightness": 0.0})
    for distance, expected in ((5.0, True), (9.5, False), (15.0, True)):
        open_decisions = decisions(policy, (0.0, 0.0, 0.0), distance)
        assert is_settled(policy, dark, limits, open_decisions) is expected
