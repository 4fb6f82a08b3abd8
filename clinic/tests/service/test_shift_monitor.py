"""The shift monitors of served models: what counts, when they start anew, and the warning."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import Checkpoint
from eulerlora_clinic.monitoring import EventRate
from eulerlora_clinic.service.shift_monitor import ShiftMonitors
from eulerlora_contract.answers import OodScore, OodScores, Prediction
from eulerlora_contract.checkpoints import ScoreThreshold, Threshold, Tolerance
from tests.conftest import DET, STOCH

FIXED = Threshold(options=DET, msp=0.5, kept=0.9, images=500, data="training data")
FULL = Threshold(
    options=STOCH,
    msp=0.5,
    kept=0.95,
    images=1000,
    data="training data",
    feature_distance=ScoreThreshold(threshold=3.0, kept=0.94, upper_quartile=2.0),
    label_shares=(0.1, 0.2, 0.7),
)
AUTO = FULL.model_copy(update={"options": replace(STOCH, samples="auto"), "kept": 0.9})
CLASSES = ("bkl", "mel", "nv")


@pytest.fixture
def make_model(make_network, make_config) -> Any:
    """(thresholds, revision) -> a model with these thresholds."""
    network = make_network()

    def create(*thresholds: Threshold, revision: str = "sha256:1") -> EulerLoRA:
        config = make_config(network, name="tiny", thresholds=thresholds)
        return EulerLoRA(Checkpoint(network, config, revision), torch.device("cpu"))

    return create


def prediction(label: str = "nv", distance: float | None = 1.0, **changes: Any) -> Prediction:
    values = {
        "request_id": "r", "model": "tiny", "revision": "sha256:1", "mode": "stoch", "samples": 4,
        "trajectories": 8, "seed": 1, "label": label,
        "probabilities": {name: 0.8 if name == label else 0.1 for name in CLASSES},
        "entropy": 0.6, "expected_entropy": 0.5, "mutual_information": 0.1, "msp": 0.8,
        "ood": False, "ood_threshold": 0.5, "warnings": (),
    }  # fmt: skip
    if distance is not None:
        score = OodScore(value=distance, threshold=3.0, flagged=distance > 3)
        values["ood_scores"] = OodScores(msp=score, energy=score, feature_distance=score)
    return Prediction.model_validate(values | changes)


@pytest.mark.parametrize(("label", "share"), [("bkl", 0.1), ("mel", 0.2), ("nv", 0.7)])
@pytest.mark.parametrize("units", [None, 200])
def test_the_expected_rates_are_those_of_the_calibration(
    make_model, label: str, share: float, units: int | None
) -> None:
    tolerance = units and Tolerance(share=0.95, confidence=0.95, units=units, unit="lesion")
    model = make_model(FULL.model_copy(update={"tolerance": tolerance}))
    monitors = ShiftMonitors(lambda: {"tiny": model})
    for _ in range(8):  # a block, so that this label has the most evidence
        monitors.record(prediction(label))
    shares = {
        "msp": 1 - 0.95,
        "feature_distance": 1 - 0.94,
        "feature_distance_quartile": 0.25,
        "label": share,
    }
    expected = {name: EventRate.calibrated(one, units or 1000) for name, one in shares.items()}
    signals = {signal.name: signal for signal in monitors.states()["tiny"].signals}
    assert {name: (one.expected, one.tolerated) for name, one in signals.items()} == {
        name: (rate.expected, rate.tolerated) for name, rate in expected.items()
    }


def test_a_model_without_thresholds_has_no_state_and_no_warning(make_model) -> None:
    model = make_model()
    monitors = ShiftMonitors(lambda: {"tiny": model})
    monitors.record(prediction())
    assert monitors.states() == {}
    assert monitors.warnings("tiny", "sha256:1") == ()


def test_only_signals_with_calibration_data_exist(make_model) -> None:
    model = make_model(FIXED)
    state = ShiftMonitors(lambda: {"tiny": model}).states()["tiny"]
    assert [signal.name for signal in state.signals] == ["msp"]
    assert (state.pictures, state.alarm) == (0, False)


def test_each_picture_counts_in_the_signals_that_it_has(make_model) -> None:
    model = make_model(FIXED, FULL, AUTO)
    monitors = ShiftMonitors(lambda: {"tiny": model})
    monitors.record(prediction("mel", msp=0.4))
    monitors.record(prediction("mel", distance=2.5))
    monitors.record(prediction(distance=3.5))
    monitors.record(prediction("mel", distance=None))  # it says nothing about the features
    monitors.record(prediction(mode="det", samples=1, msp=0.4))  # det has no other thresholds
    for other in (
        {"samples": 16},
        {"views": 8},
        {"sampler": "balanced"},
        {"precision": "bfloat16"},
    ):
        monitors.record(prediction(**other))  # no thresholds
    state = monitors.states()["tiny"]
    signals = {signal.name: signal for signal in state.signals}
    rates = {name: (signal.pictures, signal.rate) for name, signal in signals.items()}
    assert state.pictures == 5
    assert rates == {
        "msp": (5, 2 / 5),
        "feature_distance": (3, 1 / 3),
        "feature_distance_quartile": (3, 2 / 3),
        "label": (4, 3 / 4),
    }
    assert (signals["label"].label, signals["label"].expected) == ("mel", 0.2)
    assert signals["msp"].label is None


def test_a_prediction_with_auto_samples_has_the_thresholds_of_auto(make_model) -> None:
    model = make_model(FULL, AUTO)
    monitors = ShiftMonitors(lambda: {"tiny": model})
    monitors.record(prediction(rows=8))
    signals = {signal.name: signal for signal in monitors.states()["tiny"].signals}
    assert signals["msp"].expected == pytest.approx(0.1)


def test_an_alarm_adds_a_warning_that_names_the_data_and_the_command(make_model) -> None:
    model = make_model(FULL)
    monitors = ShiftMonitors(lambda: {"tiny": model})
    for _ in range(80):
        assert monitors.warnings("tiny", "sha256:1") == () or monitors.states()["tiny"].alarm
        monitors.record(prediction(distance=4.0))
    (warning,) = monitors.warnings("tiny", "sha256:1")
    assert warning.code == "distribution_shift"
    assert "training data" in warning.message
    assert "eulerlora site fit" in warning.message
    signals = {signal.name: signal for signal in monitors.states()["tiny"].signals}
    assert signals["feature_distance"].alarm
    assert signals["feature_distance"].evidence >= monitors.states()["tiny"].limit
    assert not signals["msp"].alarm


def test_a_new_revision_starts_anew_and_answers_of_the_old_one_do_not_count(make_model) -> None:
    served = {"tiny": make_model(FULL)}
    monitors = ShiftMonitors(lambda: served)
    for _ in range(80):
        monitors.record(prediction(distance=4.0))
    assert monitors.warnings("tiny", "sha256:1")
    served["tiny"] = make_model(FULL, revision="sha256:2")
    monitors.record(prediction(distance=4.0))
    assert monitors.states()["tiny"].pictures == 0
    assert monitors.warnings("tiny", "sha256:1") == monitors.warnings("tiny", "sha256:2") == ()
    monitors.record(prediction(revision="sha256:2"))
    assert monitors.states()["tiny"].pictures == 1
