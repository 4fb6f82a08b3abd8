"""bfloat16 against float32 with the default checkpoint on real images."""

from pathlib import Path

import pytest
import torch

from eulerlora import EulerLoRA
from eulerlora.answer import Predictions
from eulerlora.checkpoint.config import MAX_CHANGE
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from eulerlora.precision import missing_bfloat16
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset
from training.evaluation.inference import predict_all

MISSING = missing_bfloat16(torch.device("cpu"))


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(MISSING is not None, reason=f"takes hours: {MISSING}")
def test_bfloat16_gives_the_labels_and_flags_of_float32_on_a_quarter_of_ham10000(
    real_data: Path,
) -> None:
    plain = EulerLoRA.load(DEFAULT_CHECKPOINT, "cpu")
    rounded = EulerLoRA.load(DEFAULT_CHECKPOINT, "cpu", precision="bfloat16")
    test = list(read_dataset(DataSettings(kind="ham10000"), real_data).parts["test"])[::4]
    choices = [plain.options("det"), plain.options("stoch", 4)]
    expected = predict_all(plain, test, choices, "float32")
    actual = predict_all(rounded, test, choices, "bfloat16")
    for options, theirs, ours in zip(choices, expected, actual, strict=True):
        exact, close = Predictions.of(theirs), Predictions.of(ours)
        changes = (exact.probabilities - close.probabilities).abs().amax(dim=-1)
        assert changes.quantile(0.99) <= MAX_CHANGE
        assert changes.max() <= 2 * MAX_CHANGE
        same = exact.probabilities.argmax(dim=-1) == close.probabilities.argmax(dim=-1)
        assert same.double().mean() >= 0.99
        threshold = plain.config.threshold(options)
        assert threshold is not None
        flags = (exact.msp < threshold.msp) == (close.msp < threshold.msp)
        assert flags.double().mean() >= 0.985
