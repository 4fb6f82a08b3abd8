"""The effective number of samples."""

import pytest
import torch

from training.fit.losses import effective_number_weights

HAM10000_TRAINING_COUNTS = torch.tensor([879, 5364, 92, 890, 114, 411, 262])


def test_the_weights_of_ham10000_are_the_paper_s() -> None:
    weights = effective_number_weights(HAM10000_TRAINING_COUNTS, 0.9991)
    expected = [0.0516, 0.0284, 0.3546, 0.0511, 0.2890, 0.0911, 0.1342]
    torch.testing.assert_close(weights, torch.tensor(expected).double(), atol=5e-5, rtol=0)
    assert float(weights.sum()) == pytest.approx(1)


def test_no_beta_weighs_all_classes_alike_and_a_high_one_by_inverse_frequency() -> None:
    counts = torch.tensor([1, 10, 100])
    torch.testing.assert_close(
        effective_number_weights(counts, 0.0), torch.full((3,), 1 / 3).double()
    )
    inverse = (1 / counts.double()) / (1 / counts.double()).sum()
    torch.testing.assert_close(
        effective_number_weights(counts, 1 - 1e-9), inverse, atol=1e-6, rtol=0
    )
