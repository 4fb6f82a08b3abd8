"""The response body of one image."""

import math

import pytest
import torch
from scipy.stats import entropy as scipy_entropy

from eulerlora.nn.network import NetworkOutput
from eulerlora.settings import Draw
from eulerlora_client.contract.answers import Prediction, PredictionWarning
from eulerlora_client.contract.problems import ModelFailure
from eulerlora_client.contract.queries import PredictQuery
from service.inference.engine import ServedModel
from service.inference.queue import InferenceResult
from service.prediction.answer import response_body
from service.prediction.request import PredictRequest
from service.settings import ImageSettings

LIMITS = ImageSettings()
OF_IMAGE = PredictionWarning(code="a_code", message="of the image")
OF_REQUEST = PredictionWarning(code="a_code", message="of the request")
TRAJECTORIES = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1]], dtype=torch.float64)


@pytest.fixture
def served(model) -> ServedModel:
    return ServedModel(model)


def body_of(
    served: ServedModel,
    trajectories: torch.Tensor = TRAJECTORIES,
    draw: Draw = Draw(seed=7),  # noqa: B008 - frozen
    detailed: bool = False,
) -> Prediction:
    """Returns the body for trajectories (trajectories, classes) of probabilities."""
    query = PredictQuery(mode=draw.mode, detail="trajectories" if detailed else None)
    request = PredictRequest(query, served, draw.samples, "the-id", warnings=(OF_REQUEST,))
    features = torch.zeros(len(trajectories), 3 * served.model.config.backbone.settings.width)
    output = NetworkOutput(trajectories.log(), features)
    result = InferenceResult(output, draw, queued_s=0, ran_s=0)
    return response_body(result, request, (OF_IMAGE,))


def test_the_body_summarises_the_trajectories(served) -> None:
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
    assert (body.request_id, body.warnings) == (
        "the-id",
        (OF_IMAGE, OF_REQUEST),
    )


def test_trajectories_are_included_only_on_request(served) -> None:
    assert "trajectory_probabilities" not in body_of(served).model_fields_set
    detailed = body_of(served, detailed=True).trajectory_probabilities
    assert torch.allclose(torch.tensor(detailed, dtype=torch.float64), TRAJECTORIES)


def test_a_certain_prediction_stays_within_the_bounds(served) -> None:
    body = body_of(served, torch.tensor([[0.0, 1.0, 0.0]] * 8, dtype=torch.float64) + 1e-300)
    assert (body.label, body.msp) == ("mel", 1)
    assert body.entropy == pytest.approx(0, abs=1e-12)
    assert body.mutual_information == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0])
def test_a_trajectory_that_is_not_finite_fails_the_image(served, value) -> None:
    broken = TRAJECTORIES.clone()
    broken[1, 2] = value
    with pytest.raises(ModelFailure):
        body_of(served, broken)
