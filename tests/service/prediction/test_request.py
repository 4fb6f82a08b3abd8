"""Options of a request."""

import pytest

from eulerlora_contract.queries import PredictQuery
from eulerlora_contract.sampling import DEFAULT_SAMPLES
from service.inference.engine import ServedModel
from service.prediction.request import options_of


@pytest.fixture(scope="module")
def served(model) -> ServedModel:
    return ServedModel(model)


def test_samples_are_one_in_det_and_four_by_default_in_stoch(served) -> None:
    assert options_of(PredictQuery(), served).samples == 1
    assert options_of(PredictQuery(mode="stoch"), served).samples == DEFAULT_SAMPLES == 4
    assert options_of(PredictQuery(mode="stoch", samples=9), served).samples == 9
    assert options_of(PredictQuery(mode="stoch", samples="auto"), served).samples == "auto"
