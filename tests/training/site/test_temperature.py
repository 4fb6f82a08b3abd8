"""A temperature is that of the lowest NLL, and is used only if it helps other lesions."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from training.site.temperature import at_temperature, fit_temperature, image_nll


def overconfident(lesions: int, factor: float) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities (n, 1, 3) of calibrated logits times `factor`, and labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(lesions, 3, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    return (factor * logits).log_softmax(dim=1).unsqueeze(1), labels


@pytest.mark.parametrize("factor", [3.0, 0.4])
def test_the_factor_of_calibrated_logits_is_found(factor: float) -> None:
    outputs, labels = overconfident(2000, factor)
    fit = fit_temperature(outputs, labels, np.arange(2000))
    assert fit.helps
    assert fit.temperature == pytest.approx(factor, rel=0.1)


def test_calibrated_probabilities_keep_their_temperature() -> None:
    outputs, labels = overconfident(100, 1.0)
    fit = fit_temperature(outputs, labels, np.arange(100))
    assert not fit.helps
    assert fit.temperature == 1


def test_copies_of_a_picture_add_no_lesion() -> None:
    outputs, labels = overconfident(60, 3.0)
    once = fit_temperature(outputs, labels, np.arange(60))
    times = torch.arange(60) % 4 + 1
    groups = torch.arange(60).repeat_interleave(times)
    often = fit_temperature(outputs[groups], labels[groups], groups.numpy())
    assert often.fitted == once.fitted


def test_nll_is_that_of_the_mean_probability() -> None:
    logits = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 1, 0])
    mean = (logits / 2.5).softmax(dim=-1).mean(dim=1)
    expected = F.nll_loss(mean.log(), labels, reduction="none")
    actual = image_nll(logits.log_softmax(dim=-1), labels, 2.5)
    assert actual == pytest.approx(expected.numpy())
    rescaled = at_temperature(logits.log_softmax(dim=-1), 2.5)
    assert torch.allclose(rescaled, (logits / 2.5).log_softmax(dim=-1))
