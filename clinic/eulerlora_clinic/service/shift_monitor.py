"""The shift monitors: what the served models see, compared with their calibration images.

A monitor holds a few numbers per signal and nothing of any picture. It starts anew with the
process and with a new revision of its model. clinic/docs/site.md describes the test.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from eulerlora.inference import InferenceModel
from eulerlora_clinic.monitoring import EventRate, ShiftMonitor
from eulerlora_contract.answers import ModelShift, Prediction, PredictionWarning, WarningCode
from eulerlora_contract.checkpoints import Threshold
from eulerlora_contract.sampling import Options

_FEATURE_DISTANCE = "feature_distance"
_FEATURE_QUARTILE = "feature_distance_quartile"
_MSP = "msp"
_LABEL = "label"
_QUARTER = 0.25

_Rates = Mapping[str, tuple[EventRate, ...]]
"""The rates of the events of each signal, by the signal's name."""


@dataclass(frozen=True)
class _ExpectedRates:
    """What is expected of predictions with a mode and a number of samples."""

    threshold: Threshold
    rates: _Rates

    @classmethod
    def of(cls, threshold: Threshold) -> Self:
        """The rates of all signals that the threshold describes."""
        tolerance = threshold.tolerance  # the images of a lesion are not independent
        units = threshold.images if tolerance is None else tolerance.units
        shares: dict[str, tuple[float, ...]] = {_MSP: (1 - threshold.kept,)}
        if threshold.feature_distance is not None:
            shares[_FEATURE_DISTANCE] = (1 - threshold.feature_distance.kept,)
            shares[_FEATURE_QUARTILE] = (_QUARTER,)
        if threshold.label_shares is not None:
            shares[_LABEL] = threshold.label_shares
        rates = {
            name: tuple(EventRate.calibrated(share, units) for share in events)
            for name, events in shares.items()
        }
        return cls(threshold, rates)

    def events(self, msp: float, distance: float | None, label: int) -> dict[str, int | None]:
        """The events of a picture, as `ShiftMonitor.record` expects them.

        `msp`, `distance` and `label`: its scores, and the index of its predicted class.
        """
        calibrated = self.threshold.feature_distance
        flags = {_MSP: msp < self.threshold.msp}
        if calibrated is not None and distance is not None:
            flags[_FEATURE_DISTANCE] = distance > calibrated.threshold
            flags[_FEATURE_QUARTILE] = distance > calibrated.upper_quartile
        events: dict[str, int | None] = {name: 0 if flag else None for name, flag in flags.items()}
        if _LABEL in self.rates:
            events[_LABEL] = label
        return events


@dataclass(frozen=True)
class _RevisionMonitor:
    """The monitor of one revision.

    Attributes:
        references: By the options of an answer.
        data: Describes the calibration images.
    """

    revision: str
    classes: tuple[str, ...]
    references: Mapping[Options, _ExpectedRates]
    data: str
    tests: ShiftMonitor

    @classmethod
    def of(cls, model: InferenceModel) -> Self | None:
        """A monitor that has seen nothing; None for a checkpoint without thresholds."""
        thresholds = model.config.thresholds
        if not thresholds:
            return None
        references = {
            entry.options.in_precision(model.precision): _ExpectedRates.of(entry)
            for entry in thresholds
        }
        signals = {
            name: rates
            for reference in references.values()
            for name, rates in reference.rates.items()
        }
        tests = ShiftMonitor(signals, {_LABEL: model.classes})
        return cls(model.revision, tuple(model.classes), references, thresholds[0].data, tests)

    def record(self, prediction: Prediction) -> None:
        """Records a prediction; ignores one without thresholds for its options."""
        reference = self.references.get(prediction.options)
        if reference is not None:
            scores = prediction.ood_scores
            distance = None if scores is None else scores.feature_distance
            events = reference.events(
                prediction.msp,
                None if distance is None else distance.value,
                self.classes.index(prediction.label),
            )
            self.tests.record(events, reference.rates)


class ShiftMonitors:
    """The monitors of the served models, by name; for use in one event loop.

    Args:
        models: Returns the served models by name.
    """

    def __init__(self, models: Callable[[], Mapping[str, InferenceModel]]) -> None:
        self._models = models
        self._monitors: dict[str, _RevisionMonitor] = {}

    def record(self, prediction: Prediction) -> None:
        """Records a prediction; ignores one of a revision that is no longer served."""
        monitor = self._monitor(prediction.model)
        if monitor is not None and monitor.revision == prediction.revision:
            monitor.record(prediction)

    def warnings(self, model: str, revision: str) -> tuple[PredictionWarning, ...]:
        """The warning for answers of a revision with an alarm; () without one."""
        monitor = self._monitor(model)
        if monitor is None or monitor.revision != revision or not monitor.tests.alarm:
            return ()
        message = (
            "the pictures that this service receives differ from those that the thresholds were "
            f"checked on ({monitor.data}); eulerlora site fit checks them on local pictures"
        )
        return (PredictionWarning(code=WarningCode.DISTRIBUTION_SHIFT, message=message),)

    def states(self) -> dict[str, ModelShift]:
        """The states of the served models that have thresholds, by name."""
        monitors = {name: self._monitor(name) for name in self._models()}
        return {
            name: monitor.tests.state() for name, monitor in monitors.items() if monitor is not None
        }

    def _monitor(self, name: str) -> _RevisionMonitor | None:
        """The monitor of the served revision of a model; None without thresholds."""
        model = self._models().get(name)
        if model is None:  # no longer served
            return None
        current = self._monitors.get(name)
        if current is not None and current.revision == model.revision:
            return current
        created = _RevisionMonitor.of(model)
        if created is not None:
            self._monitors[name] = created
        return created
