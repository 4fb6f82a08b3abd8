"""Samples of a request: requested, default, and reduced under load."""

import pytest
import torch

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.model import EulerLoRA
from eulerlora_contract.answers import Threshold
from eulerlora_contract.queries import PredictQuery
from eulerlora_contract.sampling import DEFAULT_SAMPLES
from service.inference.engine import ServedModel
from service.prediction.request import reduced_samples, requested_samples


@pytest.fixture(scope="module")
def served(model) -> ServedModel:
    return ServedModel(model)


def test_samples_are_one_in_det_and_four_by_default_in_stoch(served) -> None:
    assert requested_samples(PredictQuery(), served) == 1
    assert requested_samples(PredictQuery(mode="stoch"), served) == DEFAULT_SAMPLES == 4
    assert requested_samples(PredictQuery(mode="stoch", samples=9), served) == 9
    assert requested_samples(PredictQuery(mode="stoch", samples="auto"), served) == "auto"


@pytest.mark.parametrize(
    ("samples", "calibrated", "reduced"),
    [(8, (1, 2, 4, 8), 4), (9, (1, 2, 4, 8), 8), (8, (1, 2, 8), 2), (8, (8, 16), 8), (8, (), 8),
     (8, (1, 3), 1), (1, (1, 2), 1), (64, (4, 32), 32), ("auto", (1, 2, 4, 8, 16), 2),
     ("auto", (4, 16), "auto"), ("auto", (), "auto")],
)  # fmt: skip
def test_reduced_samples_are_the_largest_power_of_two_with_a_threshold(
    make_network, make_config, samples, calibrated, reduced
) -> None:
    network = make_network()
    thresholds = tuple(
        Threshold(mode="stoch", samples=number, msp=0.5, kept=0.9, images=9, data="test")
        for number in calibrated
    )
    checkpoint = Checkpoint(network, make_config(network, thresholds=thresholds), "sha256:0")
    served = ServedModel(EulerLoRA(checkpoint, torch.device("cpu")))
    number, warnings = reduced_samples(served, samples)
    assert (number, len(warnings)) == (reduced, reduced != samples)
