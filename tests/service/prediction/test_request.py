"""Samples of a request."""

import pytest

from eulerlora_contract.queries import PredictQuery
from eulerlora_contract.sampling import DEFAULT_SAMPLES
from service.inference.engine import ServedModel
from service.prediction.request import requested_samples


@pytest.fixture(scope="module")
def served(model) -> ServedModel:
    return ServedModel(model)


def test_samples_are_one_in_det_and_four_by_default_in_stoch(served) -> None:
    assert requested_samples(PredictQuery(), served) == 1
    assert requested_samples(PredictQuery(mode="stoch"), served) == DEFAULT_SAMPLES == 4
    assert requested_samples(PredictQuery(mode="stoch", samples=9), served) == 9
    assert requested_samples(PredictQuery(mode="stoch", samples="auto"), served) == "auto"
