"""When `samples=auto` has settled the disposition of a policy."""

from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eulerlora.answer import Predictions
from eulerlora.sampling.adaptive import DecisionMargins, RoundMargins, StoppingRule
from eulerlora.scores.ood_scores import FlaggedScore
from eulerlora_clinic.policy.policy import default_policy
from eulerlora_contract.answers import Reason
from tests.conftest import STOCH
from tests.eulerlora_contract.policy_inputs import GOOD

CLASSES = ("nv", "mel", "bcc", "akiec")
WIDTH = 4.0  # between the thresholds, in log-odds
PACKAGED = default_policy()
THRESHOLDS = {"routine": 0.1, "urgent": float(torch.logit(torch.tensor(0.1)).add(WIDTH).sigmoid())}
POLICY = PACKAGED.model_copy(update={"target": PACKAGED.target.model_copy(update=THRESHOLDS)})
ENTRY = RoundMargins(samples=2, lead=0, log_odds=1, entropy=1, agreement=1, feature_distance=1)
MARGINS = DecisionMargins(
    level=1, agreement=1, options=STOCH, rounds=(ENTRY,), images=100, data="synthetic"
)
RULE = StoppingRule(msp=1e-3, feature_distance=10.0, margins=MARGINS)


def is_settled(
    offsets: tuple[float, ...], distance: float, quality: Collection[Reason] = ()
) -> bool:
    """Returns whether the disposition is settled.

    Malignant log-odds, entropy and agreement are `offsets` from their limits, the first one from
    the routine threshold. A margin is 1 in the unit of its value.
    """
    malignant, entropy, agreement = offsets
    share = torch.logit(torch.tensor(POLICY.target.routine).double()) + malignant
    probability = float(share.sigmoid())
    unused = torch.zeros(1).double()

    def value(number: float) -> Tensor:
        return torch.tensor([number]).double()

    summary = Predictions(
        probabilities=torch.tensor([[1 - probability, probability, 0.0, 0.0]]).double(),
        entropy=value(POLICY.uncertainty.entropy_nats + entropy),
        expected_entropy=unused,
        mutual_information=unused,
        msp=value(max(probability, 1 - probability)),
        log_probabilities=unused,
        trajectory_views=unused,
        adapters=1,
        samples=unused,
        agreement=value(agreement),
        ood_scores={"feature_distance": FlaggedScore(value(distance), None, None)},
    )
    (ends,) = replace(RULE, settled=POLICY.settled(CLASSES, quality)).ends(summary, 2)
    return bool(ends)


def cases() -> Iterator[tuple[tuple[float, ...], float, bool]]:
    """Offsets, distance (limit 10), and whether the disposition is settled; by hand."""
    far, near = 2.0, 0.5
    urgent = WIDTH + far
    yield (urgent, -far, far), 5.0, True  # urgent
    yield (urgent, near, 0.5), 5.0, True  # urgent whatever the uncertainty is
    yield (WIDTH + near, -far, far), 5.0, False  # urgent or refer
    yield (far, -far, far), 5.0, True  # refer
    yield (far, near, 0.5), 5.0, True  # refer whatever the uncertainty is
    yield (near, -far, far), 5.0, False  # refer or routine
    yield (near, far, far), 5.0, True  # refer by the entropy, whether or not by the target
    yield (-far, -far, far), 5.0, True  # routine
    yield (-far, -near, far), 5.0, False  # refer or routine
    yield (-far, far, 0.5), 5.0, True  # refer whether or not trajectories disagree
    yield (-far, -far, 0.5), 5.0, False
    yield (-far, -far, -0.1), 5.0, True  # trajectories disagree
    yield (near, near, 0.5), 15.0, True  # unfamiliar comes first
    yield (urgent, near, 0.5), 15.0, True  # urgent comes first
    yield (WIDTH + near, -far, far), 15.0, False  # urgent or unfamiliar
    yield (far, -far, far), 10.5, False  # refer or unfamiliar


@pytest.mark.parametrize(("offsets", "distance", "expected"), list(cases()))
def test_a_disposition_is_settled_if_no_open_decision_can_change_it(
    offsets: tuple[float, ...], distance: float, expected: bool
) -> None:
    assert is_settled(offsets, distance) is expected


def test_a_bad_image_is_settled_as_retake_unless_it_may_be_unfamiliar_or_urgent() -> None:
    dark = tuple(POLICY.quality_reasons(GOOD.model_copy(update={"brightness": 0.0})))
    for distance, expected in ((5.0, True), (9.5, False), (15.0, True)):
        assert is_settled((0.0, 0.0, 0.0), distance, dark) is expected
    assert not is_settled((WIDTH, 0.0, 0.0), 5.0, dark)
