"""Prediction sets: thresholds and sets against MAPIE, and the coverage of new lesions."""

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from mapie.classification import SplitConformalClassifier
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Generator, Tensor

from eulerlora import EulerLoRA
from eulerlora.answer import Predictions
from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import read_config
from eulerlora.scores.prediction_sets import (
    PredictionSetCalibration,
    min_units,
    prediction_sets,
)
from eulerlora_contract.sampling import Options
from tests.checkpoint_files import write_config
from tests.conftest import DET

CLASSES = ("mel", "nv", "bkl")
STOCH = Options("stoch", 4, "balanced", 1, "float32")


class Identity(ClassifierMixin, BaseEstimator):
    """A fitted classifier that returns its input as probabilities."""

    def fit(self, probabilities: np.ndarray, labels: np.ndarray) -> "Identity":
        self.classes_ = np.arange(probabilities.shape[1])
        return self

    def predict_proba(self, probabilities: np.ndarray) -> np.ndarray:
        return probabilities

    def predict(self, probabilities: np.ndarray) -> np.ndarray:
        return probabilities.argmax(axis=1)


def predicted(images: int, seed: int) -> tuple[Tensor, Tensor]:
    """Informative probabilities (images, 3) float64, and labels."""
    random = Generator().manual_seed(seed)
    labels = torch.randint(3, (images,), generator=random)
    logits = torch.randn(images, 3, generator=random).double()
    logits[torch.arange(images), labels] += 1.5
    return logits.softmax(dim=1), labels


def calibration(**changes: object) -> PredictionSetCalibration:
    fields = {
        "coverage": 0.9, "options": STOCH, "thresholds": (0.7, 0.4, 1.0), "unit": "lesion",
        "units": (60, 70, 3), "confidences": (0.95, 0.95, 1.0),
        "data": "HAM10000, calibration part", "data_sha256": "0" * 64,
    }  # fmt: skip
    return PredictionSetCalibration.model_validate(fields | changes)


def included(probabilities: Tensor, thresholds: Sequence[float]) -> Tensor:
    """(images, 3) whether a class is in the set with these thresholds."""
    fitted = calibration(thresholds=tuple(thresholds))
    return prediction_sets(probabilities, fitted, CLASSES).included


@pytest.mark.filterwarnings("ignore:WARNING. your conformalization dataset:UserWarning")
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_sets_equal_those_of_mapie_for_each_class(coverage: float) -> None:
    calibrating, labels = predicted(300, seed=1)
    new, _ = predicted(1000, seed=2)
    thresholds = []
    for label in range(3):
        of_class = labels == label
        mapie = SplitConformalClassifier(
            Identity().fit(calibrating.numpy(), labels.numpy()), coverage, "lac"
        )
        mapie.conformalize(calibrating[of_class].numpy(), labels[of_class].numpy())
        _, sets = mapie.predict_set(new.numpy())
        scores = (1 - calibrating[of_class, label]).sort().values
        threshold = float(scores[math.ceil((len(scores) + 1) * Fraction(str(coverage))) - 1])
        thresholds.append(threshold)
        assert (included(new, [threshold] * 3)[:, label].numpy() == sets[:, label, 0]).all()
    shares = included(new, thresholds).double().mean(dim=0)
    assert ((shares > 0.1) & (shares < 0.9)).all()  # the comparison is not trivial


@pytest.mark.parametrize(
    ("coverage", "needed"), [(0.5, 1), (0.9, 9), (0.95, 19), (0.99, 99), (0.8, 4), (0.7, 3)]
)
def test_the_largest_score_of_the_fewest_units_covers_on_average(coverage, needed) -> None:
    assert min_units(coverage) == needed


def test_a_set_names_its_classes_in_their_order_and_may_be_empty() -> None:
    probabilities = torch.tensor([[0.3, 0.6, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64)
    sets = prediction_sets(probabilities, calibration(), CLASSES)
    assert sets.included.tolist() == [[True, True, True], [False, False, True]]
    assert sets.labels == (("mel", "nv", "bkl"), ("bkl",))
    strict = calibration(thresholds=(0.1, 0.1, 0.1))
    assert prediction_sets(probabilities, strict, CLASSES).labels == ((), ())
    assert (sets.coverage, sets.unit, sets.calibrated_on) == (
        0.9, "lesion", "HAM10000, calibration part",
    )  # fmt: skip


def test_a_class_with_threshold_one_is_in_the_set_at_probability_zero() -> None:
    probabilities = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    assert included(probabilities, [1.0, 1.0, 1.0]).all()


@pytest.fixture(scope="module")
def config(make_network, make_config) -> CheckpointConfig:
    sets = [
        calibration(),
        calibration(coverage=0.95),
        calibration(options=DET),
    ]
    return make_config(make_network(), prediction_sets=sets)


def test_a_calibration_applies_to_its_own_options_only(config: CheckpointConfig) -> None:
    assert config.prediction_set_calibration(STOCH, 0.9) == config.prediction_sets[0]
    assert config.prediction_set_calibration(STOCH, 0.95) == config.prediction_sets[1]
    for other in (
        Options("stoch", 2, "balanced", 1, "float32"),
        Options("stoch", "auto", "balanced", 1, "float32"),
        Options("stoch", 4, "independent", 1, "float32"),
    ):
        assert config.prediction_set_calibration(other, 0.9) is None
    assert config.prediction_set_calibration(STOCH, 0.8) is None


def test_a_calibration_of_another_precision_stands_in_for_a_missing_one(
    config: CheckpointConfig,
) -> None:
    options = Options("stoch", 4, "balanced", 1, "bfloat16")
    other = config.prediction_sets[0]
    assert config.prediction_set_calibration(options, 0.9) == other
    exact = calibration(options=options)
    sets = (*config.prediction_sets, exact)
    both = config.model_copy(update={"prediction_sets": sets})
    assert both.prediction_set_calibration(options, 0.9) == exact
    assert both.prediction_set_calibration(STOCH, 0.9) == other


def test_the_sampler_does_not_matter_in_det(config: CheckpointConfig) -> None:
    for sampler in ("independent", "balanced"):
        options = config.options("det", sampler=sampler)
        assert config.prediction_set_calibration(options, 0.9) == config.prediction_sets[2]


def answer_of(folder: Path, sets: list[PredictionSetCalibration], *options: object) -> Predictions:
    """An answer in bfloat16 of a checkpoint with these prediction sets."""
    write_config(folder, read_config(folder).model_copy(update={"prediction_sets": tuple(sets)}))
    model = EulerLoRA.load(folder, "cpu", "bfloat16")
    return model.predict(torch.full((1, 3, 32, 32), 0.5), *options, coverage=0.9)


def test_an_answer_with_sets_of_another_precision_says_so(checkpoint_copy: Path) -> None:
    fitted = calibration(options=DET)
    answer = answer_of(checkpoint_copy, [fitted], "det")
    assert answer.prediction_sets is not None
    assert "other_precision" in [warning.code for warning in answer.warnings]
    exact = calibration(options=DET.in_precision("bfloat16"))
    answer = answer_of(checkpoint_copy, [fitted, exact], "det")
    assert answer.prediction_sets is not None
    assert "other_precision" not in [warning.code for warning in answer.warnings]


def test_an_answer_without_sets_lists_what_was_calibrated(checkpoint_copy: Path) -> None:
    sets = [calibration(), calibration(coverage=0.95), calibration(options=DET)]
    answer = answer_of(checkpoint_copy, sets, "stoch", "auto")
    assert answer.prediction_sets is None
    (message,) = (
        warning.message for warning in answer.warnings if warning.code == "no_prediction_set"
    )
    for part in ("0.9 for stoch, auto samples", f"0.9 and 0.95 for {STOCH}", f"0.9 for {DET}"):
        assert part in message
