"""Draws out of queries, and response bodies out of answers."""

import math

import pytest
import torch
from scipy.stats import entropy as scipy_entropy

from eulerlora.checkpoint import Checkpoint
from eulerlora.config import Threshold
from eulerlora.model import EulerLoRA
from eulerlora.settings import Draw
from eulerlora.uncertainty import summarise
from eulerlora_client.contract.fields import DEFAULT_SAMPLES
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.problems import InvalidParameter, ModelFailure
from eulerlora_client.contract.queries import PredictQuery
from service.inference.models import ServedModel
from service.prediction.answer import fewer_samples, prediction_body, samples_of
from service.settings import ImageLimits

LIMITS = ImageLimits()
TRAJECTORIES = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1]], dtype=torch.float64)


@pytest.fixture
def served(model) -> ServedModel:
    return ServedModel.of(model)


@pytest.fixture
def with_threshold(make_network, make_config):
    """msp -> a served model whose threshold for det is `msp`."""

    def serve(msp: float) -> ServedModel:
        network = make_network()
        threshold = Threshold(mode="det", samples=1, msp=msp, kept=0.9, images=9, data="test")
        config = make_config(network, thresholds=(threshold,))
        checkpoint = Checkpoint(network, config, "sha256:0")
        return ServedModel.of(EulerLoRA(checkpoint, torch.device("cpu")))

    return serve


def body_of(
    served: ServedModel,
    trajectories: torch.Tensor = TRAJECTORIES,
    draw: Draw = Draw(seed=7),  # noqa: B008 - frozen
    detailed: bool = False,
) -> Prediction:
    return prediction_body(
        trajectories.log(), draw, served, ("a warning",), "the-id", detailed=detailed
    )


def test_samples_are_one_in_det_and_as_asked_or_four_in_stoch() -> None:
    assert samples_of(PredictQuery()) == 1
    assert samples_of(PredictQuery(mode="stoch")) == DEFAULT_SAMPLES == 4
    assert samples_of(PredictQuery(mode="stoch", samples=9)) == 9
    assert samples_of(PredictQuery(mode="stoch", samples="auto")) == "auto"


@pytest.mark.parametrize("samples", [1, 4, "auto"])
def test_samples_with_det_are_an_invalid_parameter(samples) -> None:
    with pytest.raises(InvalidParameter, match=": samples"):
        samples_of(PredictQuery(mode="det", samples=samples))


@pytest.mark.parametrize(
    ("asked", "calibrated", "run"),
    [(8, (1, 2, 4, 8), 4), (9, (1, 2, 4, 8), 8), (8, (1, 2, 8), 2), (8, (8, 16), 8), (8, (), 8),
     (8, (1, 3), 1), (1, (1, 2), 1), (64, (4, 32), 32), ("auto", (1, 2, 4, 8, 16), 2),
     ("auto", (4, 16), "auto"), ("auto", (), "auto")],
)  # fmt: skip
def test_fewer_samples_are_the_largest_power_of_two_that_has_a_threshold(
    make_network, make_config, asked, calibrated, run
) -> None:
    network = make_network()
    thresholds = tuple(
        Threshold(mode="stoch", samples=each, msp=0.5, kept=0.9, images=9, data="test")
        for each in calibrated
    )
    checkpoint = Checkpoint(network, make_config(network, thresholds=thresholds), "sha256:0")
    served = ServedModel.of(EulerLoRA(checkpoint, torch.device("cpu")))
    assert fewer_samples(served, asked) == run


def test_a_body_summarises_the_trajectories(served) -> None:
    body = body_of(served)
    mean = [0.6, 0.3, 0.1]
    expected = scipy_entropy(TRAJECTORIES.numpy(), axis=1).mean()
    assert body.probabilities == pytest.approx(dict(zip(("bkl", "mel", "nv"), mean, strict=True)))
    assert body.entropy == pytest.approx(scipy_entropy(mean))
    assert body.expected_entropy == pytest.approx(expected)
    assert body.mutual_information == pytest.approx(scipy_entropy(mean) - expected)
    assert body.mutual_information > 0
    assert (body.label, body.msp) == ("bkl", pytest.approx(0.6))
    assert (body.model, body.revision) == ("tiny", served.model.revision)
    assert (body.mode, body.samples, body.trajectories, body.seed) == ("det", 1, 2, 7)
    assert (body.request_id, body.warnings) == ("the-id", ("a warning",))


@pytest.mark.parametrize("trajectories", [1, 2, 8, 128])
def test_a_body_tells_what_the_library_says_of_the_same_answer(served, trajectories) -> None:
    random = torch.Generator().manual_seed(trajectories)
    logits = 5 * torch.randn(trajectories, 3, generator=random, dtype=torch.float64)
    found = logits.softmax(dim=-1)
    wanted, body = summarise(found.unsqueeze(0)), body_of(served, found)
    assert list(body.probabilities.values()) == pytest.approx(
        wanted.probabilities[0].tolist(), rel=1e-12
    )
    for name in ("entropy", "expected_entropy", "mutual_information", "msp"):
        assert getattr(body, name) == pytest.approx(getattr(wanted, name).item(), abs=1e-12)


def test_trajectories_are_added_only_where_asked_for(served) -> None:
    assert "trajectory_probabilities" not in body_of(served).model_fields_set
    detailed = body_of(served, detailed=True).trajectory_probabilities
    assert torch.allclose(torch.tensor(detailed, dtype=torch.float64), TRAJECTORIES)


def test_a_certain_answer_has_no_entropy_and_stays_within_its_bounds(served) -> None:
    body = body_of(served, torch.tensor([[0.0, 1.0, 0.0]] * 7, dtype=torch.float64) + 1e-300)
    assert (body.label, body.msp) == ("mel", 1)
    assert body.entropy == pytest.approx(0, abs=1e-12)
    assert body.mutual_information == pytest.approx(0, abs=1e-12)


def test_an_image_is_out_of_distribution_below_the_threshold_only(with_threshold) -> None:
    msp = body_of(with_threshold(0)).msp
    for threshold, ood in (
        (msp, False),
        (math.nextafter(msp, 0), False),
        (math.nextafter(msp, 1), True),
        (1, True),
    ):
        body = body_of(with_threshold(threshold))
        assert (body.ood, body.ood_threshold) == (ood, threshold)


def test_without_a_threshold_for_the_question_ood_is_null(with_threshold) -> None:
    body = body_of(with_threshold(1), draw=Draw(mode="stoch", samples=1))
    assert (body.ood, body.ood_threshold) == (None, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0])
def test_one_trajectory_that_is_not_finite_fails_the_image(served, value) -> None:
    broken = TRAJECTORIES.clone()
    broken[1, 2] = value
    with pytest.raises(ModelFailure):
        body_of(served, broken)
