"""`samples=auto` in the pipeline, and when the disposition of a policy is settled."""

import asyncio
from collections.abc import Iterator
from io import BytesIO

import pytest
import torch
from PIL import Image

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.errors import SettingsError
from eulerlora.model import EulerLoRA
from eulerlora.sampling.adaptive import (
    DecisionMargins,
    RoundAnswer,
    RoundMargins,
    SettledDecisions,
    StoppingRule,
)
from eulerlora_client.contract.answers import ImageQuality, Prediction, Threshold
from eulerlora_client.contract.problems import InvalidParameter
from eulerlora_client.contract.queries import PredictQuery
from eulerlora_client.policy.policy import Policy, default_policy
from service.prediction.request import disposition_is_settled
from tests.service.harness import PipelineHarness, predict_one

GOOD = ImageQuality(
    width=600, height=450, brightness=0.6, dark_share=0, bright_share=0, sharpness=100
)
CLASSES = ("nv", "mel", "bcc", "akiec")


def adaptive(seed: int) -> PredictQuery:
    return PredictQuery(mode="stoch", samples="auto", seed=seed, detail="trajectories")


def margins(lead: float) -> DecisionMargins:
    """Margins that are all zero, except for the label in mode det."""
    rounds = tuple(
        RoundMargins(
            samples=samples,
            lead=lead if samples == 0 else 0,
            log_odds=0,
            entropy=0,
            agreement=0,
        )
        for samples in (0, 2, 4, 8, 12)
    )
    return DecisionMargins(
        level=1, agreement=1, compared_with=16, rounds=rounds, images=100, data="test"
    )


@pytest.fixture
def served_with(make_network, make_config):
    """margins -> a context of a pipeline harness with thresholds for `samples=auto`."""

    def build(fitted: DecisionMargins | None):
        network = make_network()
        thresholds = tuple(
            Threshold(mode=mode, samples=samples, msp=0.4, kept=0.9, images=9, data="test")
            for mode, samples in (("stoch", 16), ("stoch", "auto"))
        )
        config = make_config(network, thresholds=thresholds, margins=fitted)
        model = EulerLoRA(Checkpoint(network, config, "sha256:0"), torch.device("cpu"))
        return model, PipelineHarness(model, None, {}).running()

    return build


def body(harness: PipelineHarness, png: bytes, query: PredictQuery) -> Prediction:
    return asyncio.run(predict_one(harness, png, query))


def test_a_settled_image_has_the_answer_of_det(served_with, png) -> None:
    _, context = served_with(margins(lead=0))
    with context as harness:
        result, det = body(harness, png, adaptive(1)), body(harness, png, PredictQuery())
    assert (result.mode, result.sampled, result.samples, result.rows) == ("stoch", False, 1, 2)
    assert result.trajectories == len(result.trajectory_probabilities) == 2
    assert result.probabilities == pytest.approx(det.probabilities, abs=1e-5)
    assert "standard_error" not in result.model_fields_set
    assert (result.ood_threshold, result.ood) == (0.4, result.msp < 0.4)


def test_an_unsettled_image_has_the_answer_of_its_samples(served_with, png) -> None:
    model, context = served_with(margins(lead=1e6))
    with context as harness:
        result = body(harness, png, adaptive(1))
        sampled = body(harness, png, PredictQuery(mode="stoch", samples=2, seed=1))
    assert (result.mode, result.sampled, result.samples, result.rows) == ("stoch", True, 2, 6)
    assert result.trajectories == len(result.trajectory_probabilities) == 4
    assert result.probabilities == pytest.approx(sampled.probabilities, abs=1e-5)
    assert result.standard_error is not None
    with Image.open(BytesIO(png)) as image:
        library = model.predict([image], "stoch", "auto", seed=1)
    assert (int(library.samples), bool(library.sampled), int(library.rows)) == (2, True, 6)
    assert library.msp.item() == pytest.approx(result.msp, abs=1e-5)


def test_auto_needs_margins(served_with, png) -> None:
    model, context = served_with(None)
    with context as harness, pytest.raises(InvalidParameter, match="eulerlora calibrate"):
        body(harness, png, adaptive(1))
    with (
        Image.open(BytesIO(png)) as image,
        pytest.raises(SettingsError, match="eulerlora calibrate"),
    ):
        model.predict([image], "stoch", "auto")


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
    assert disposition_is_settled(policy, GOOD, CLASSES, limits, found) is expected


def test_a_bad_image_is_settled_as_retake_unless_it_may_be_unfamiliar() -> None:
    policy, limits = default_policy(), StoppingRule(msp=1e-3, feature_distance=10.0)
    dark = GOOD.model_copy(update={"brightness": 0.0})
    for distance, expected in ((5.0, True), (9.5, False), (15.0, True)):
        open_decisions = decisions(policy, (0.0, 0.0, 0.0), distance)
        assert disposition_is_settled(policy, dark, CLASSES, limits, open_decisions) is expected
